# SPDX-License-Identifier: Apache-2.0
"""What each kind of check asks, and how the answer is judged."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import httpx2

from pipecd.plugins.analysis.check import HttpCheck, LogCheck, MetricCheck
from pipecd.plugins.analysis.judge import Sample, Verdict, answered, compare, found, within
from pipecd.plugins.analysis.point import LogProvider, MetricProvider, Point, Window
from pipecd.plugins.analysis.providers.directory import Providers
from pipecd.plugins.analysis.providers.http import status_of
from pipecd.plugins.analysis.query import QueryArguments, fill_in
from pipecd.sdk import Duration, Unavailable, UserMistake


class Measure(Protocol):
    """One look at a check."""

    @property
    def about(self) -> str:
        """What is looked at, in one line or a few."""
        ...

    async def __call__(self) -> Verdict:
        """Asks and judges; an error says that there was no answer to judge."""
        ...


THRESHOLD, PREVIOUS = "THRESHOLD", "PREVIOUS"
CANARY_BASELINE, CANARY_PRIMARY = "CANARY_BASELINE", "CANARY_PRIMARY"
PRIMARY, CANARY, BASELINE = "primary", "canary", "baseline"

_VARIANTS: Mapping[str, tuple[str, ...]] = {
    THRESHOLD: (PRIMARY,),
    PREVIOUS: (PRIMARY,),
    CANARY_BASELINE: (CANARY, BASELINE),
    CANARY_PRIMARY: (CANARY, PRIMARY),
}


@dataclass(frozen=True)
class Times:
    """When this analysis and the one before it began, and what time it is."""

    now: Callable[[], float]
    elapsed: Callable[[], float]
    previous: Callable[[], Awaitable[int | None]]

    def window(self, length: float) -> Window:
        """The time that has just passed."""
        now = self.now()
        return Window(now - length, now)

    def window_of_previous(self, begun: float, length: float) -> Window:
        """The same time of the analysis before."""
        end = begun + self.elapsed()
        return Window(end - length, end)


def queries_of(check: MetricCheck, arguments: QueryArguments) -> Mapping[str, str]:
    """The queries that the strategy of a check needs, by variant."""
    if check.strategy not in _VARIANTS:
        raise UserMistake(
            f'unknown strategy "{check.strategy}" given', hint=f"use one of {', '.join(_VARIANTS)}"
        )
    own = {
        PRIMARY: check.primary_args,
        CANARY: check.canary_args,
        BASELINE: check.baseline_args,
    }
    return {
        variant: fill_in(check.query, variant, own[variant], arguments)
        for variant in _VARIANTS[check.strategy]
    }


class MetricMeasure:
    """Asks for a metric and compares it as the strategy says."""

    def __init__(
        self,
        check: MetricCheck,
        provider: MetricProvider,
        queries: Mapping[str, str],
        times: Times,
    ) -> None:
        expected = check.expected
        if check.strategy == THRESHOLD and expected.min is None and expected.max is None:
            raise UserMistake(
                '"expected" is required to analyze with the THRESHOLD strategy',
                hint="set expected.min, expected.max or both",
            )
        self._check, self._provider = check, provider
        self._queries, self._times = queries, times

    @property
    def about(self) -> str:
        asked = (f"{variant}: {query}" for variant, query in self._queries.items())
        return "\n".join((f"{self._check.strategy} of {self._check.provider}", *asked))

    async def __call__(self) -> Verdict:
        check, now = self._check, self._times.window(self._check.interval)
        match check.strategy:
            case "THRESHOLD":
                return within(await self._points(PRIMARY, now), check.expected)
            case "PREVIOUS":
                return await self._with_previous(now)
            case _:
                experiment, control = _VARIANTS[check.strategy]
                return compare(
                    Sample(experiment, await self._points(experiment, now)),
                    Sample(control, await self._points(control, now)),
                    check.deviation,
                )

    async def _with_previous(self, now: Window) -> Verdict:
        begun = await self._times.previous()
        if begun is None:
            return Verdict(True, "there is no earlier analysis to compare with", is_final=True)
        then = self._times.window_of_previous(begun, self._check.interval)
        return compare(
            Sample("this deployment", await self._points(PRIMARY, now)),
            Sample("the previous one", await self._points(PRIMARY, then)),
            self._check.deviation,
        )

    async def _points(self, variant: str, window: Window) -> Sequence[Point]:
        async with _answer_within(self._check.timeout):
            return await self._provider.points(self._queries[variant], window)


class LogMeasure:
    """Searches logs for what must not be in them."""

    def __init__(self, check: LogCheck, provider: LogProvider, times: Times) -> None:
        self._check, self._provider, self._times = check, provider, times

    @property
    def about(self) -> str:
        return f"nothing to be found in {self._check.provider}: {self._check.query}"

    async def __call__(self) -> Verdict:
        window = self._times.window(self._check.interval)
        async with _answer_within(self._check.timeout):
            return found(await self._provider.entries(self._check.query, window))


class HttpMeasure:
    """Sends a request and looks at the code of the answer."""

    def __init__(self, check: HttpCheck, client: httpx2.AsyncClient) -> None:
        if not check.expected_code:
            # Upstream compares with 0, which no server answers.
            raise UserMistake("expectedCode must be set", hint="write the code of a good answer")
        self._check, self._client = check, client

    @property
    def about(self) -> str:
        check = self._check
        return f"{check.method or 'GET'} {check.url} to be answered with {check.expected_code}"

    async def __call__(self) -> Verdict:
        async with _answer_within(self._check.timeout):
            return answered(await status_of(self._client, self._check), self._check.expected_code)


@dataclass(frozen=True)
class Instruments:
    """What measuring needs: where to ask, what to fill into queries, and the time."""

    client: httpx2.AsyncClient
    providers: Providers
    arguments: QueryArguments
    times: Times

    def metric(self, check: MetricCheck) -> Measure:
        """The measure of a metric; a mistake in the check is found here."""
        own = replace(self.arguments, custom={**self.arguments.custom, **check.template.app_args})
        queries = queries_of(check, own)
        return MetricMeasure(check, self.providers.metrics(check.provider), queries, self.times)

    def log(self, check: LogCheck) -> Measure:
        """The measure of a log."""
        return LogMeasure(check, self.providers.logs(check.provider), self.times)

    def http(self, check: HttpCheck) -> Measure:
        """The measure of an address."""
        return HttpMeasure(check, self.client)


@asynccontextmanager
async def _answer_within(seconds: float) -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as e:
        raise Unavailable(f"there was no answer within {Duration(seconds)}") from e
