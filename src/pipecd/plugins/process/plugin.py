# SPDX-License-Identifier: Apache-2.0
"""The plugin `process`: runs plain programs on the machine of piped.

The stages are in `stages`, what the configuration means in `wanted`. A supervisor per deploy
target, which outlives piped, keeps the programs running and routes requests to them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from pipecd.plugins.process.config import (
    CONFIG,
    ProcessApplication,
    ProcessTarget,
    ProcessTrafficRoutingOptions,
)
from pipecd.plugins.process.desired import PRIMARY
from pipecd.plugins.process.instance import ApplicationStatus
from pipecd.plugins.process.livestate import live_state
from pipecd.plugins.process.plan import changed_names, decide_strategy
from pipecd.plugins.process.release_files import read_manifest
from pipecd.plugins.process.releases import SourceTree, read_tree
from pipecd.plugins.process.stages import StageRun
from pipecd.plugins.process.supervisors import Supervisors
from pipecd.plugins.process.wanted import WantedApplication, wanted_application
from pipecd.sdk import (
    DISPLAY_KEY,
    DeploymentPlugin,
    DeployTarget,
    LiveContext,
    LiveState,
    LiveStatePlugin,
    PipecdError,
    PlanContext,
    PlannedStage,
    Preview,
    PreviewContext,
    PreviewPlugin,
    RequestedStage,
    Source,
    Stage,
    StageContext,
    StageResult,
    StageStatus,
    StartContext,
    Strategy,
    SyncState,
    SyncStatus,
    Version,
)

_SYNC, _ROUTING, _ROLLBACK = "PROCESS_SYNC", "PROCESS_TRAFFIC_ROUTING", "PROCESS_ROLLBACK"
PluginContext: TypeAlias = PlanContext | LiveContext | PreviewContext


class ProcessPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Deploys programs to the directories of the application's deploy targets."""

    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_ROLLBACK),
    )
    config = CONFIG
    tells_changes = True
    _supervisors: Supervisors

    async def prepare(self, start: StartContext) -> None:
        directory = start.host.private_directory(start.plugin.name)
        self._supervisors = Supervisors(directory, start.host.live_state_changed)
        start.lifetime.push_async_callback(self._supervisors.close)
        for target in start.plugin.targets:
            self._supervisors.resume(target)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        return (Version(plan.target.commit[:7], name=plan.deployment.application_name),)

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        if plan.running is None:
            return None
        before, running = await self._wanted(plan, plan.running, plan.targets[0])
        after, target = await self._wanted(plan, plan.target, plan.targets[0])
        return decide_strategy(running, target, changed_names(before.contents, after))

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        planned = PlannedStage(_SYNC, description="Sync by starting the new version")
        return (planned, _rollback_stage(0)) if rollback else (planned,)

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = await super().plan_stage(requested, rollback=rollback)
        if requested.name != _ROUTING:
            return planned
        primary, canary = requested.options(ProcessTrafficRoutingOptions).shares()
        metadata = {DISPLAY_KEY: f"primary {primary}%, canary {canary}%"}
        return [replace(stage, metadata=metadata) for stage in planned]

    async def plan_pipeline(
        self, requested: Sequence[RequestedStage], *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = list(await super().plan_pipeline(requested, rollback=rollback))
        if rollback and requested:
            planned.append(_rollback_stage(min(stage.index for stage in requested)))
        return planned

    async def execute(self, stage: StageContext) -> StageResult:
        async def execute_on(target: DeployTarget) -> StageResult:
            try:
                run = await self._open(stage, target)
                result = await _STAGES[stage.name](run)
                await run.warn_of_status_page()
            except PipecdError as e:
                return StageResult.failed(str(e))
            return result

        async with asyncio.TaskGroup() as tasks:
            running = {t.name: tasks.create_task(execute_on(t)) for t in stage.targets}
        return combined_result({name: task.result() for name, task in running.items()})

    async def live_state(self, look: LiveContext) -> LiveState:
        states: dict[str, LiveState] = {}
        for target in look.targets:
            tree, wanted = await self._wanted(look, look.source, target)
            status = await self._status(look.application_id, target)
            if status is None:
                states[target.name] = LiveState(
                    sync=SyncState(SyncStatus.OUT_OF_SYNC, "nothing runs")
                )
            else:
                files = await asyncio.to_thread(_changed_files, status, tree)
                states[target.name] = live_state(status, wanted, target.name, files)
        return merged_state(states)

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        previews: list[Preview] = []
        for target in change.targets:
            after, wanted = await self._wanted(change, change.target, target)
            if change.running is None:
                text = f"{_count(len(after.files), 'file')} will be deployed"
                previews.append(
                    Preview(target.name, text, "\n".join(f"+ {n}" for n in after.files))
                )
                continue
            before, running = await self._wanted(change, change.running, target)
            names = changed_names(before.contents, after)
            differences = wanted.differences(running.variant, running.listener)
            others = [each.text for each in differences if not each.is_of_files]
            summary = _change_summary(len(names), len(others))
            details = "\n".join((*(_file_line(name, before, after) for name in names), *others))
            previews.append(Preview(target.name, summary, details, no_change=not (names or others)))
        return previews

    async def _open(self, stage: StageContext, target: DeployTarget) -> StageRun:
        def log(line: str) -> None:
            stage.log.info(line if len(stage.targets) == 1 else f"[{target.name}] {line}")

        client = await self._supervisors.running(target)
        return StageRun(stage, target.settings(ProcessTarget), client, log)

    async def _status(self, application_id: str, target: DeployTarget) -> ApplicationStatus | None:
        client = self._supervisors.client(target)
        if not await client.is_running() and not client.directory.state_file.exists():
            return None
        client = await self._supervisors.running(target)
        return await client.status(application_id)

    async def _wanted(
        self, context: PluginContext, source: Source, target: DeployTarget
    ) -> tuple[SourceTree, WantedApplication]:
        settings = source.application_settings(context.plugin.name, ProcessApplication)
        allowed = target.settings(ProcessTarget)
        tree = await asyncio.to_thread(
            read_tree,
            source.application_directory,
            source.working_copy,
            config=source.config_filename,
            limits=allowed.release_limits,
        )
        wanted = wanted_application(
            settings.input,
            allowed,
            digest=tree.digest,
            commit=source.commit,
        )
        return tree, wanted


_STAGES: Mapping[str, Callable[[StageRun], Awaitable[StageResult]]] = {
    _SYNC: StageRun.sync,
    "PROCESS_CANARY_ROLLOUT": StageRun.roll_out_canary,
    _ROUTING: StageRun.route_traffic,
    "PROCESS_PRIMARY_ROLLOUT": StageRun.roll_out_primary,
    "PROCESS_CANARY_CLEAN": StageRun.clean_canary,
    _ROLLBACK: StageRun.rollback,
}


def _rollback_stage(index: int) -> PlannedStage:
    return PlannedStage(_ROLLBACK, index, "Rollback the deployment", is_rollback=True)


def _changed_files(status: ApplicationStatus, tree: SourceTree) -> list[str]:
    """Returns the files of Git that are different in the running release."""
    primary = status.desired.variants.get(PRIMARY)
    if primary is None or primary.program.digest == tree.digest:
        return []
    manifest = read_manifest(Path(primary.program.release))
    return changed_names(manifest.files, tree) if manifest else []


def _change_summary(files: int, settings: int) -> str:
    """`1 file and 2 settings will change`, without what does not change."""
    parts = [_count(n, noun) for n, noun in ((files, "file"), (settings, "setting")) if n]
    return f"{' and '.join(parts) or 'nothing'} will change"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"


def _file_line(name: str, before: SourceTree, after: SourceTree) -> str:
    if name not in before.files:
        return f"+ {name}"
    return f"- {name}" if name not in after.files else f"~ {name}"


def combined_result(results: Mapping[str, StageResult]) -> StageResult:
    """Returns the result on all deploy targets; one failure fails the stage."""
    if len(results) == 1:
        return next(iter(results.values()))
    message = "\n".join(f"{name}: {result.message}" for name, result in results.items())
    has_failed = any(result.status is StageStatus.FAILURE for result in results.values())
    return StageResult.failed(message) if has_failed else StageResult.succeeded(message)


def merged_state(states: Mapping[str, LiveState]) -> LiveState:
    """Returns the live state of all deploy targets."""
    different = {n: s.sync for n, s in states.items() if s.sync.status is not SyncStatus.SYNCED}
    resources = [resource for state in states.values() for resource in state.resources]
    if len(states) == 1:
        return next(iter(states.values()))
    status = SyncStatus.OUT_OF_SYNC if different else SyncStatus.SYNCED
    summary = "\n".join(f"{name}: {sync.summary}" for name, sync in different.items())
    details = "\n".join(f"{n}: {s.details or s.summary}" for n, s in different.items())
    return LiveState(resources, SyncState(status, summary, details))


PLUGIN = ProcessPlugin
