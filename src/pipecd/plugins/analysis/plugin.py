# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004, TRY400 - a stage log takes whole lines, it is no logger
"""ANALYSIS lets the pipeline go on only if what is measured is as expected."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from pipecd.plugins.analysis.analyzer import Analyzer, analyzers_of, first_failure
from pipecd.plugins.analysis.check import TEMPLATE_KIND
from pipecd.plugins.analysis.config import AnalysisApplication, AnalysisOptions, AnalysisTemplate
from pipecd.plugins.analysis.course import Course, read_previous, write_previous
from pipecd.plugins.analysis.measure import Instruments, Times
from pipecd.plugins.analysis.provider import AnalysisSettings
from pipecd.plugins.analysis.providers.directory import Providers
from pipecd.plugins.analysis.query import QueryArguments
from pipecd.plugins.analysis.template import needs_templates, with_templates
from pipecd.sdk import (
    DISPLAY_KEY,
    Duration,
    ManualOperation,
    PipecdError,
    PlannedStage,
    RequestedStage,
    Stage,
    StageCommandKind,
    StageContext,
    StageLog,
    StagePlugin,
    StageResult,
)


class AnalysisPlugin(StagePlugin):
    """Measures for a while; a person may skip the rest of it."""

    stages = (Stage("ANALYSIS", AnalysisOptions),)

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        requested.options(AnalysisOptions)
        return (
            PlannedStage(
                requested.name,
                requested.index,
                requested.description,
                operation=ManualOperation.SKIP,
            ),
        )

    async def execute(self, stage: StageContext) -> StageResult:
        options, arguments = await asyncio.to_thread(_read, stage)
        course = Course(stage.metadata, options.duration)
        times = Times(self._now, lambda: course.elapsed, lambda: read_previous(stage.objects))
        known = stage.plugin.settings(AnalysisSettings).analysis_providers
        # The certificates of this machine take a while to read.
        trusted = await asyncio.to_thread(httpx2.create_ssl_context)
        # Every check limits the time of its questions itself.
        async with httpx2.AsyncClient(verify=trusted, timeout=None) as client:
            instruments = Instruments(client, Providers(client, known), arguments, times)
            analyzers = tuple(analyzers_of(options, instruments))
            await course.begin()
            begun = self._now() - course.resumed_at
            _introduce(stage.log, course, analyzers)
            async with course.kept():
                result = await _unless_skipped(stage, first_failure(analyzers, course, stage.log))
        if isinstance(result, _Skipped):
            await stage.metadata.put({DISPLAY_KEY: f"SkippedBy: {result.by}"})
            return StageResult.skipped(f"Skipped by {result.by}")
        if result is not None:
            return StageResult.failed(result)
        try:
            await write_previous(stage.objects, begun)
        except PipecdError as e:
            stage.log.error(f"The next analysis cannot be compared with this one: {e}")
        return StageResult.succeeded("The analysis found nothing unexpected")


@dataclass(frozen=True)
class _Skipped:
    """Somebody did not want to wait for the end of the analysis."""

    by: str


def _read(stage: StageContext) -> tuple[AnalysisOptions, QueryArguments]:
    """What the stage is to do, by its own options and the files of the repository."""
    options = stage.options(AnalysisOptions)
    if needs_templates(options):
        found = stage.target.shared_config(TEMPLATE_KIND, AnalysisTemplate)
        options = with_templates(options, found or AnalysisTemplate())
    section = stage.target.application_settings(stage.plugin.name, AnalysisApplication)
    name = stage.deployment.application_name
    return options, QueryArguments(name, section.app_custom_args)


def _introduce(log: StageLog, course: Course, analyzers: Sequence[Analyzer]) -> None:
    duration = Duration(course.duration)
    if course.resumed_at:
        passed = Duration(round(course.resumed_at, 1))
        log.info(f"Resuming the analysis after a restart: {passed} of {duration} are over")
    else:
        log.info(f"Analysing for {duration}")
    for analyzer in analyzers:
        check = analyzer.check
        log.info(f"[{analyzer.id}] every {check.interval}, {check.failure_limit} failures allowed")
        for line in analyzer.measure.about.splitlines():
            log.info(f"[{analyzer.id}] {line}")
        if check.interval > course.duration:
            log.error(f"[{analyzer.id}] will not run: its interval is longer than the analysis")


async def _unless_skipped(
    stage: StageContext, analysis: Coroutine[Any, Any, str | None]
) -> str | _Skipped | None:
    """The outcome of the analysis, unless somebody skips it first."""
    async with asyncio.TaskGroup() as tasks:
        analysing = tasks.create_task(analysis, name="analysis")
        listening = tasks.create_task(_skipped(stage), name="skip commands")
        await asyncio.wait({analysing, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        analysing.cancel()
    return analysing.result() if not analysing.cancelled() else listening.result()


async def _skipped(stage: StageContext) -> _Skipped:
    async for command in stage.commands():
        if command.kind is StageCommandKind.SKIP:
            return _Skipped(command.commander)
    raise RuntimeError("commands do not end before the stage")


PLUGIN = AnalysisPlugin
