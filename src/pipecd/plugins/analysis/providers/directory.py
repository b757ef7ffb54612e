# SPDX-License-Identifier: Apache-2.0
"""Finds the provider that a check names."""

from collections.abc import Callable, Sequence

import httpx2

from pipecd.plugins.analysis.point import LogProvider, MetricProvider
from pipecd.plugins.analysis.provider import (
    DATADOG,
    PROMETHEUS,
    STACKDRIVER,
    AnalysisProvider,
    ProviderConfig,
)
from pipecd.plugins.analysis.providers.datadog import DatadogProvider
from pipecd.plugins.analysis.providers.prometheus import PrometheusProvider
from pipecd.plugins.analysis.providers.stackdriver import StackdriverProvider
from pipecd.sdk import UserMistake

_METRICS: dict[str, Callable[[httpx2.AsyncClient, ProviderConfig], MetricProvider]] = {
    PROMETHEUS: PrometheusProvider,
    DATADOG: DatadogProvider,
    STACKDRIVER: StackdriverProvider,
}
_LOGS: dict[str, Callable[[httpx2.AsyncClient, ProviderConfig], LogProvider]] = {
    STACKDRIVER: StackdriverProvider,
}


class Providers:
    """The providers in the configuration of piped, opened when a check asks for them."""

    def __init__(self, client: httpx2.AsyncClient, known: Sequence[AnalysisProvider]) -> None:
        self._client, self._known = client, known

    def metrics(self, name: str) -> MetricProvider:
        """The provider of that name, which must have metrics."""
        found = self._named(name)
        return _METRICS[found.type](self._client, found.config)

    def logs(self, name: str) -> LogProvider:
        """The provider of that name, which must have logs."""
        found = self._named(name)
        if found.type not in _LOGS:
            raise UserMistake(
                f"provider {name} is of type {found.type}, which has no logs",
                hint=f"use one of type {' or '.join(_LOGS)}",
            )
        return _LOGS[found.type](self._client, found.config)

    def _named(self, name: str) -> AnalysisProvider:
        for provider in self._known:
            if provider.name == name:
                return provider
        known = ", ".join(provider.name for provider in self._known) or "none"
        raise UserMistake(
            f"unknown provider name {name}",
            hint=f"add it to analysisProviders in the configuration of piped; known there: {known}",
        )
