# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""Runs the checks of an ANALYSIS stage at their intervals until one of them fails.

A check is a query for a metric, a search in logs or an HTTP request; `Measurement` sends it once
and evaluates the response.
"""

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import httpx2

from pipecd.plugins.analysis.config import (
    AnalysisOptions,
    Check,
    HttpCheck,
    LogCheck,
    MetricCheck,
)
from pipecd.plugins.analysis.evaluation import (
    CheckResult,
    MetricSample,
    evaluate_deviation,
    evaluate_log_entries,
    evaluate_status_code,
    evaluate_threshold,
)
from pipecd.plugins.analysis.progress import AnalysisProgress
from pipecd.plugins.analysis.provider_client import NoData, Point, Window, request_status
from pipecd.plugins.analysis.providers import LogProvider, MetricProvider, ProviderRegistry
from pipecd.plugins.analysis.query import QueryArguments, render_query
from pipecd.sdk import (
    Duration,
    PipecdError,
    StageLog,
    Unavailable,
    UserMistake,
)
from pipecd.sdk.counts import counted
from pipecd.sdk.workers import WorkerPool, has_actions

THRESHOLD, PREVIOUS = "THRESHOLD", "PREVIOUS"
CANARY_BASELINE, CANARY_PRIMARY = "CANARY_BASELINE", "CANARY_PRIMARY"
PRIMARY, CANARY, BASELINE = "primary", "canary", "baseline"

_VARIANTS: Mapping[str, tuple[str, ...]] = {
    THRESHOLD: (PRIMARY,),
    PREVIOUS: (PRIMARY,),
    CANARY_BASELINE: (CANARY, BASELINE),
    CANARY_PRIMARY: (CANARY, PRIMARY),
}

CheckT = TypeVar("CheckT", bound=Check)


async def render_queries(
    check: MetricCheck, arguments: QueryArguments, workers: WorkerPool
) -> Mapping[str, str]:
    """Renders the queries that the strategy of a check needs, by variant."""
    if check.strategy not in _VARIANTS:
        raise UserMistake(
            f'unknown strategy "{check.strategy}" given', hint=f"use one of {', '.join(_VARIANTS)}"
        )
    variant_arguments = {
        PRIMARY: check.primary_args,
        CANARY: check.canary_args,
        BASELINE: check.baseline_args,
    }
    return {
        variant: await workers.run(
            render_query,
            check.query,
            variant,
            variant_arguments[variant],
            arguments.application,
            arguments.custom,
        )
        if has_actions(check.query)
        else check.query
        for variant in _VARIANTS[check.strategy]
    }


@dataclass(frozen=True)
class AnalysisClock:
    """The time, how long the analysis runs, and when the previous analysis started."""

    now: Callable[[], float]
    elapsed: Callable[[], float]
    previous_start: Callable[[], Awaitable[int | None]]

    def window(self, length: float) -> Window:
        """Returns the last `length` seconds."""
        now = self.now()
        return Window(now - length, now)

    def previous_window(self, previous_start: float, length: float) -> Window:
        """Returns the same period of the previous analysis."""
        end = previous_start + self.elapsed()
        return Window(end - length, end)


class Measurement(Protocol):
    """Runs a check once."""

    @property
    def description(self) -> str:
        """What is measured, in one line or a few."""
        ...

    async def __call__(self) -> CheckResult:
        """Sends the query and evaluates the response; raises if there is none."""
        ...


class MetricMeasurement:
    """Queries a metric and evaluates it by the strategy of the check."""

    def __init__(
        self,
        check: MetricCheck,
        provider: MetricProvider,
        queries: Mapping[str, str],
        clock: AnalysisClock,
    ) -> None:
        expected = check.expected
        if check.strategy == THRESHOLD and expected.min is None and expected.max is None:
            raise UserMistake(
                '"expected" is required to analyze with the THRESHOLD strategy',
                hint="set expected.min, expected.max or both",
            )
        self._check, self._provider = check, provider
        self._queries, self._clock = queries, clock

    @property
    def description(self) -> str:
        queries = (f"{variant}: {query}" for variant, query in self._queries.items())
        return "\n".join((f"{self._check.strategy} of {self._check.provider}", *queries))

    async def __call__(self) -> CheckResult:
        check, window = self._check, self._clock.window(self._check.interval)
        match check.strategy:
            case "THRESHOLD":
                return evaluate_threshold(await self._points(PRIMARY, window), check.expected)
            case "PREVIOUS":
                previous_start = await self._clock.previous_start()
                if previous_start is None:
                    reason = "there is no earlier analysis to compare with"
                    return CheckResult(True, reason, is_terminal=True)
                previous = self._clock.previous_window(previous_start, check.interval)
                experiment = MetricSample("this deployment", await self._points(PRIMARY, window))
                control = MetricSample("the previous one", await self._points(PRIMARY, previous))
            case _:
                first, second = _VARIANTS[check.strategy]
                experiment = MetricSample(first, await self._points(first, window))
                control = MetricSample(second, await self._points(second, window))
        return evaluate_deviation(experiment, control, check.deviation)

    async def _points(self, variant: str, window: Window) -> Sequence[Point]:
        async with _response_timeout(self._check.timeout):
            return await self._provider.points(self._queries[variant], window)


class LogMeasurement:
    """Searches logs for entries that must not occur."""

    def __init__(self, check: LogCheck, provider: LogProvider, clock: AnalysisClock) -> None:
        self._check, self._provider, self._clock = check, provider, clock

    @property
    def description(self) -> str:
        return f"no log entry expected in {self._check.provider}: {self._check.query}"

    async def __call__(self) -> CheckResult:
        window = self._clock.window(self._check.interval)
        async with _response_timeout(self._check.timeout):
            return evaluate_log_entries(await self._provider.entries(self._check.query, window))


class HttpMeasurement:
    """Sends a request and evaluates the status code of the response."""

    def __init__(self, check: HttpCheck, client: httpx2.AsyncClient) -> None:
        if not check.expected_code:
            # Upstream compares with 0, which no server returns.
            raise UserMistake("expectedCode must be set", hint="write the status code of success")
        self._check, self._client = check, client

    @property
    def description(self) -> str:
        check = self._check
        return f"{check.method or 'GET'} {check.url}, expected status code {check.expected_code}"

    async def __call__(self) -> CheckResult:
        async with _response_timeout(self._check.timeout):
            code = await request_status(self._client, self._check)
        return evaluate_status_code(code, self._check.expected_code)


@asynccontextmanager
async def _response_timeout(seconds: float) -> AsyncGenerator[None, None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as e:
        raise Unavailable(f"no response within {Duration(seconds)}") from e


@dataclass(frozen=True)
class MeasurementFactory:
    """Creates the measurements of checks; a mistake in a check is an error here."""

    client: httpx2.AsyncClient
    providers: ProviderRegistry
    arguments: QueryArguments
    clock: AnalysisClock
    workers: WorkerPool

    async def metric(self, check: MetricCheck) -> Measurement:
        """Creates the measurement of a metric."""
        custom = {**self.arguments.custom, **check.template.app_args}
        queries = await render_queries(check, replace(self.arguments, custom=custom), self.workers)
        provider = self.providers.metrics(check.provider)
        return MetricMeasurement(check, provider, queries, self.clock)

    async def log(self, check: LogCheck) -> Measurement:
        """Creates the measurement of a log."""
        return LogMeasurement(check, self.providers.logs(check.provider), self.clock)

    async def http(self, check: HttpCheck) -> Measurement:
        """Creates the measurement of an HTTP endpoint."""
        return HttpMeasurement(check, self.client)


@dataclass(frozen=True)
class Analyzer:
    """One check of the stage; its id in the metadata is that of upstream, such as http-0."""

    id: str
    name: str
    check: Check
    measurement: Measurement

    async def run(self, progress: AnalysisProgress, log: StageLog) -> str | None:
        """Logs the check and repeats it; returns why it failed, None if it did not."""
        check = self.check
        failures = counted(check.failure_limit, "failure")
        log.info(f"[{self.name}] every {check.interval}, {failures} allowed")
        for line in self.measurement.description.splitlines():
            log.info(f"[{self.name}] {line}")
        if check.interval > progress.duration:
            log.error(f"[{self.name}] will not run: its interval is longer than the analysis")
        async for _ in progress.schedule(check.interval):
            try:
                result = await self.measurement()
            except NoData as e:
                result = CheckResult(check.skip_on_no_data, f"no data: {e}")
            except PipecdError as e:
                result = CheckResult(False, str(e))
            progress.check_completed()
            if result.is_expected:
                log.success(f"[{self.name}] fine: {result.reason}")
            else:
                count, limit = progress.failed(self.id), check.failure_limit
                log.error(f"[{self.name}] failure {count}, {limit} allowed: {result.reason}")
                if count > limit:
                    times = "once" if count == 1 else f"{count} times"
                    last = f"the last time: {result.reason}"
                    failed = f"{self.name} ({self.check.subject}) failed {times}"
                    return f"{failed}, {limit} allowed; {last}"
            if result.is_terminal:
                return None
        await progress.wait_until(progress.duration)
        return None


async def build_analyzers(
    options: AnalysisOptions, measurements: MeasurementFactory
) -> AsyncIterator[Analyzer]:
    """Yields the analyzers of all checks of a stage."""
    for i, metric in enumerate(options.metrics):
        yield await _analyzer("metrics", i, metric, measurements.metric)
    for i, log in enumerate(options.logs):
        yield await _analyzer("log", i, log, measurements.log)
    for i, http in enumerate(options.https):
        yield await _analyzer("http", i, http, measurements.http)


async def _analyzer(
    prefix: str, index: int, check: CheckT, measure: Callable[[CheckT], Awaitable[Measurement]]
) -> Analyzer:
    name = f"{check.kind} {index + 1}"
    try:
        return Analyzer(f"{prefix}-{index}", name, check, await measure(check))
    except UserMistake as e:
        raise UserMistake(f"{name}: {e.message}", hint=e.hint) from e


async def run_analyzers(
    analyzers: Sequence[Analyzer], progress: AnalysisProgress, log: StageLog
) -> str | None:
    """Runs all checks concurrently; returns the first failure, None if all of them pass."""
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(analyzer.run(progress, log), name=analyzer.id)
            for analyzer in analyzers
        ]
        for completed in asyncio.as_completed(running):
            if (failure := await completed) is not None:
                for task in running:
                    task.cancel()
                return failure
    return None
