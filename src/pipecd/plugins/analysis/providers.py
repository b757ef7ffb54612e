# SPDX-License-Identifier: Apache-2.0
"""The analysis providers of the piped, by name."""

from collections.abc import Callable, Sequence
from typing import Protocol

import httpx2

from pipecd.plugins.analysis.config import (
    DATADOG,
    PROMETHEUS,
    STACKDRIVER,
    AnalysisProvider,
    ProviderConfig,
)
from pipecd.plugins.analysis.datadog import DatadogProvider
from pipecd.plugins.analysis.prometheus import PrometheusProvider
from pipecd.plugins.analysis.provider_client import Point, Window
from pipecd.plugins.analysis.stackdriver import StackdriverProvider
from pipecd.sdk import UserMistake


class MetricProvider(Protocol):
    """Queries metrics."""

    async def points(self, query: str, window: Window) -> Sequence[Point]:
        """Returns the points in the window; raises `NoData` if there are none."""
        ...


class LogProvider(Protocol):
    """Searches logs."""

    async def entries(self, query: str, window: Window) -> Sequence[str]:
        """Returns the first matching entries in the window, as text."""
        ...


_METRICS: dict[str, Callable[[httpx2.AsyncClient, ProviderConfig], MetricProvider]] = {
    PROMETHEUS: PrometheusProvider,
    DATADOG: DatadogProvider,
    STACKDRIVER: StackdriverProvider,
}
_LOGS: dict[str, Callable[[httpx2.AsyncClient, ProviderConfig], LogProvider]] = {
    STACKDRIVER: StackdriverProvider,
}


class ProviderRegistry:
    """Creates the providers in `analysisProviders` of the piped for checks."""

    def __init__(self, client: httpx2.AsyncClient, providers: Sequence[AnalysisProvider]) -> None:
        self._client, self._providers = client, providers

    def metrics(self, name: str) -> MetricProvider:
        """Returns the metric provider of a name."""
        provider = self._find(name)
        return _METRICS[provider.type](self._client, provider.config)

    def logs(self, name: str) -> LogProvider:
        """Returns the log provider of a name."""
        provider = self._find(name)
        if provider.type not in _LOGS:
            raise UserMistake(
                f"provider {name} is of type {provider.type}, which has no logs",
                hint=f"use one of type {' or '.join(_LOGS)}",
            )
        return _LOGS[provider.type](self._client, provider.config)

    def _find(self, name: str) -> AnalysisProvider:
        for provider in self._providers:
            if provider.name == name:
                return provider
        names = ", ".join(provider.name for provider in self._providers) or "none"
        raise UserMistake(
            f"unknown provider name {name}",
            hint=f"add it to analysisProviders in the piped configuration; defined there: {names}",
        )
