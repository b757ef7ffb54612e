# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004, TRY400 - a stage log takes whole lines, it is no logger
"""The plugin `analysis`: the stage ANALYSIS succeeds if all checks pass for its duration."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2

from pipecd.plugins.analysis.analyzer import (
    AnalysisClock,
    MeasurementFactory,
    build_analyzers,
    run_analyzers,
)
from pipecd.plugins.analysis.config import (
    TEMPLATE_KIND,
    AnalysisApplication,
    AnalysisOptions,
    AnalysisSettings,
    AnalysisTemplate,
    needs_templates,
    with_templates,
)
from pipecd.plugins.analysis.progress import (
    AnalysisProgress,
    read_previous_start,
    write_previous_start,
)
from pipecd.plugins.analysis.providers import ProviderRegistry
from pipecd.plugins.analysis.query import QueryArguments
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
    StagePlugin,
    StageResult,
)


class AnalysisPlugin(StagePlugin):
    """Runs checks for the duration of the stage; a user may skip the rest."""

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
        options, arguments = await asyncio.to_thread(_read_options, stage)
        progress = AnalysisProgress(stage.metadata, options.duration)
        clock = AnalysisClock(
            self._now, lambda: progress.elapsed, lambda: read_previous_start(stage.objects)
        )
        providers = stage.plugin.settings(AnalysisSettings).analysis_providers
        # Reading the CA certificates of the machine blocks for a while.
        tls = await asyncio.to_thread(httpx2.create_ssl_context)
        # Every check has a timeout of its own.
        async with httpx2.AsyncClient(verify=tls, timeout=None) as client:
            registry = ProviderRegistry(client, providers)
            workers = stage.host.workers
            measurements = MeasurementFactory(client, registry, arguments, clock, workers)
            analyzers = [each async for each in build_analyzers(options, measurements)]
            await progress.start()
            started_at = self._now() - progress.resumed_at
            duration = Duration(progress.duration)
            if progress.resumed_at:
                elapsed = Duration(round(progress.resumed_at, 1))
                resumed = f"{elapsed} of {duration} are over"
                stage.log.info(f"Resuming the analysis after a restart: {resumed}")
            else:
                stage.log.info(f"Analysing for {duration}")
            async with progress.saving():
                result = await _run_unless_skipped(
                    stage, run_analyzers(analyzers, progress, stage.log)
                )
        if isinstance(result, _Skipped):
            await stage.metadata.put({DISPLAY_KEY: f"SkippedBy: {result.by}"})
            return StageResult.skipped(f"Skipped by {result.by}")
        if result is not None:
            return StageResult.failed(result)
        try:
            await write_previous_start(stage.objects, started_at)
        except PipecdError as e:
            stage.log.error(f"The next analysis cannot be compared with this one: {e}")
        return StageResult.succeeded("The analysis found nothing unexpected")


@dataclass(frozen=True)
class _Skipped:
    """A user skipped the rest of the analysis."""

    by: str


def _read_options(stage: StageContext) -> tuple[AnalysisOptions, QueryArguments]:
    """Reads the options of the stage with the analysis templates of the repository."""
    options = stage.options(AnalysisOptions)
    if needs_templates(options):
        templates = stage.target.shared_config(TEMPLATE_KIND, AnalysisTemplate)
        options = with_templates(options, templates or AnalysisTemplate())
    section = stage.target.application_settings(stage.plugin.name, AnalysisApplication)
    name = stage.deployment.application_name
    return options, QueryArguments(name, section.app_custom_args)


async def _run_unless_skipped(
    stage: StageContext, analysis: Coroutine[Any, Any, str | None]
) -> str | _Skipped | None:
    """Returns the failure of the analysis, None if it passed, or who skipped it."""
    async with asyncio.TaskGroup() as tasks:
        analysing = tasks.create_task(analysis, name="analysis")
        listening = tasks.create_task(_wait_for_skip(stage), name="skip commands")
        await asyncio.wait({analysing, listening}, return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        analysing.cancel()
    return analysing.result() if not analysing.cancelled() else listening.result()


async def _wait_for_skip(stage: StageContext) -> _Skipped:
    async for command in stage.commands():
        if command.kind is StageCommandKind.SKIP:
            return _Skipped(command.commander)
    raise RuntimeError("commands do not end before the stage")


PLUGIN = AnalysisPlugin
