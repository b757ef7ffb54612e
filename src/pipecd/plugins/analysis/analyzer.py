# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""Repeats checks at their intervals until the analysis is over or one of them has failed."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pipecd.plugins.analysis.check import Check
from pipecd.plugins.analysis.config import AnalysisOptions
from pipecd.plugins.analysis.course import Course
from pipecd.plugins.analysis.judge import Verdict
from pipecd.plugins.analysis.measure import Instruments, Measure
from pipecd.plugins.analysis.point import NoData
from pipecd.sdk import PipecdError, StageLog, UserMistake

CheckT = TypeVar("CheckT", bound=Check)


@dataclass(frozen=True)
class Analyzer:
    """One check of the stage, named as upstream names it: metrics-0, log-0, http-0."""

    id: str
    check: Check
    measure: Measure

    async def run(self, course: Course, log: StageLog) -> str | None:
        """Looks again and again; returns why the check failed, None if it did not."""
        async for _ in course.looks(self.check.interval):
            try:
                verdict = await self.measure()
            except NoData as e:
                verdict = Verdict(self.check.skip_on_no_data, f"no data: {e}")
            except PipecdError as e:
                verdict = Verdict(False, str(e))
            course.looked()
            if verdict.is_expected:
                log.success(f"[{self.id}] fine: {verdict.reason}")
            elif (told := self._failed(verdict.reason, course, log)) is not None:
                return told
            if verdict.is_final:
                return None
        await course.until(course.duration)
        return None

    def _failed(self, reason: str, course: Course, log: StageLog) -> str | None:
        count, limit = course.failed(self.id), self.check.failure_limit
        log.error(f"[{self.id}] failure {count}, {limit} allowed: {reason}")
        if count <= limit:
            return None
        return f"{self.id} failed {_times(count)}, {limit} allowed; the last time: {reason}"


def analyzers_of(options: AnalysisOptions, instruments: Instruments) -> Iterator[Analyzer]:
    """The checks of a stage, ready to run."""
    for i, metric in enumerate(options.metrics):
        yield _analyzer(f"metrics-{i}", metric, instruments.metric)
    for i, log in enumerate(options.logs):
        yield _analyzer(f"log-{i}", log, instruments.log)
    for i, http in enumerate(options.https):
        yield _analyzer(f"http-{i}", http, instruments.http)


def _analyzer(id: str, check: CheckT, measure: Callable[[CheckT], Measure]) -> Analyzer:
    try:
        return Analyzer(id, check, measure(check))
    except UserMistake as e:
        raise UserMistake(f"{id}: {e.message}", hint=e.hint) from e


async def first_failure(analyzers: Sequence[Analyzer], course: Course, log: StageLog) -> str | None:
    """Runs all checks at once, until they have nothing more to find out or one of them fails."""
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(analyzer.run(course, log), name=analyzer.id) for analyzer in analyzers
        ]
        for ended in asyncio.as_completed(running):
            if (told := await ended) is not None:
                for task in running:
                    task.cancel()
                return told
    return None


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
