# SPDX-License-Identifier: Apache-2.0
"""Deploys to clusters: what the plugin for one and the plugin for several have in common."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from pipecd.plugins.kubernetes.aim import Aim, limited
from pipecd.plugins.kubernetes.live.drift import preview
from pipecd.plugins.kubernetes.live.state import Declared, live_state, merged, without_manifests
from pipecd.plugins.kubernetes.manifest.image import Image, images
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.options import TrafficRoutingOptions
from pipecd.plugins.kubernetes.plan.strategy import strategy
from pipecd.plugins.kubernetes.plan.versions import versions
from pipecd.plugins.kubernetes.render.load import Order
from pipecd.plugins.kubernetes.stages import rollout, sync, traffic
from pipecd.plugins.kubernetes.stages.workbench import Workbench, open_workbench
from pipecd.plugins.kubernetes.workshop import Workshop, open_workshop
from pipecd.sdk import (
    DeploymentPlugin,
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
    Spec,
    StageContext,
    StageResult,
    StageStatus,
    StartContext,
    Strategy,
    SyncStrategy,
    UserMistake,
    Version,
)

SYNC, TRAFFIC_ROUTING, ROLLBACK = "SYNC", "TRAFFIC_ROUTING", "ROLLBACK"
Asked: TypeAlias = PlanContext | LiveContext | PreviewContext | StageContext
ResultT = TypeVar("ResultT")

_WORK: Mapping[str, Callable[[Workbench, Any], Awaitable[StageResult]]] = {
    SYNC: sync.sync,
    "PRIMARY_ROLLOUT": rollout.primary,
    "CANARY_ROLLOUT": rollout.canary,
    "CANARY_CLEAN": lambda bench, _: rollout.clean(bench, "canary"),
    "BASELINE_ROLLOUT": rollout.baseline,
    "BASELINE_CLEAN": lambda bench, _: rollout.clean(bench, "baseline"),
    TRAFFIC_ROUTING: traffic.route,
    ROLLBACK: lambda bench, _: sync.rollback(bench),
}


class ClusterPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Deploys manifests to the clusters that an application aims at."""

    prefix: ClassVar[str]
    tells_changes = True
    _workshop: Workshop

    def images(self, manifest: Manifest) -> Iterable[Image]:
        """Returns the images of an object that are versions of the application."""
        return images(manifest)

    @abstractmethod
    def aims(self, asked: Asked, source: Source) -> list[Aim]:
        """Returns where the application of a source goes."""

    async def prepare(self, start: StartContext) -> None:
        self._workshop = open_workshop(start)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        aims = self.aims(plan, plan.target)
        found = [await self._manifests(plan, aim, plan.target) for aim in aims]
        return versions((m for manifests in found for m in manifests), self.images)

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        """The first cluster that needs the pipeline decides."""
        if plan.running is None:
            return None
        chosen = None
        before = {aim.target.name: aim for aim in self.aims(plan, plan.running)}
        for aim in self.aims(plan, plan.target):
            old = before.get(aim.target.name, aim)
            running = await self._manifests(plan, old, plan.running)
            target = await self._manifests(plan, aim, plan.target)
            found = strategy(running, target, aim.application.workloads)
            if found.strategy is SyncStrategy.PIPELINE:
                return found
            chosen = chosen or found
        return chosen

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        planned = PlannedStage(self.prefix + SYNC, description="Sync by applying all manifests")
        return (planned, self._undo(0)) if rollback else (planned,)

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = await super().plan_stage(requested, rollback=rollback)
        if requested.name != self.prefix + TRAFFIC_ROUTING:
            return planned
        metadata = traffic.shown(requested.options(TrafficRoutingOptions))
        return [replace(stage, metadata=metadata) for stage in planned]

    async def plan_pipeline(
        self, requested: Sequence[RequestedStage], *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = list(await super().plan_pipeline(requested, rollback=rollback))
        if rollback and requested:
            planned.append(self._undo(min(stage.index for stage in requested)))
        return planned

    def _undo(self, index: int) -> PlannedStage:
        name = self.prefix + ROLLBACK
        return PlannedStage(name, index, "Rollback the deployment", is_rollback=True)

    async def execute(self, stage: StageContext) -> StageResult:
        noun = stage.name.removeprefix(self.prefix)
        aims = self._undone(stage) if noun == ROLLBACK else self.aims(stage, stage.target)
        options = self._options(stage, aims)
        aims = limited(aims, options)
        async with asyncio.TaskGroup() as tasks:
            begun = [
                tasks.create_task(self._execute(stage, aim, options, is_alone=len(aims) == 1))
                for aim in aims
            ]
        return together(_by_name(aims, begun))

    def _undone(self, stage: StageContext) -> list[Aim]:
        """Returns where a rollback works: where the commit before was, and where this one came."""
        before = self.aims(stage, stage.running or stage.target)
        known = {aim.target.name for aim in before}
        new = (aim for aim in self.aims(stage, stage.target) if aim.target.name not in known)
        return [*before, *(replace(aim, is_new=True) for aim in new)]

    def _options(self, stage: StageContext, aims: Sequence[Aim]) -> Spec | None:
        """Reads the options of a stage; a quick sync has those of the application."""
        if stage.name == self.prefix + SYNC and not stage.config:
            return aims[0].application.quick_sync if aims else None
        offered = {known.name: known.options for known in self.stages}
        options = offered[stage.name]
        return stage.options(options) if options else None

    async def _execute(
        self, stage: StageContext, aim: Aim, options: Spec | None, *, is_alone: bool
    ) -> StageResult:
        work = _WORK[stage.name.removeprefix(self.prefix)]
        try:
            async with open_workbench(stage, aim, self._workshop, is_alone=is_alone) as bench:
                return await work(bench, options)
        except PipecdError as e:
            return StageResult.failed(str(e))

    async def live_state(self, look: LiveContext) -> LiveState:
        aims = self.aims(look, look.source)
        async with asyncio.TaskGroup() as tasks:
            looks = [tasks.create_task(self._live_state(look, aim)) for aim in aims]
        return merged(_by_name(aims, looks))

    async def _live_state(self, look: LiveContext, aim: Aim) -> LiveState | PipecdError:
        try:
            return await self._seen(look, aim)
        except PipecdError as e:
            return e

    async def _seen(self, look: LiveContext, aim: Aim) -> LiveState:
        lookout = await self._workshop.lookouts.of(aim.target)
        try:
            manifests = await self._manifests_there(look, aim, look.source)
        except UserMistake as e:
            return await without_manifests(lookout, look.application_id, e)
        return await live_state(lookout, Declared(look.application_id, look.source, manifests))

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        running = change.running
        before = {aim.target.name: aim for aim in self.aims(change, running)} if running else {}
        shown: list[Preview] = []
        for aim in self.aims(change, change.target):
            old = before.get(aim.target.name)
            deployed = await self._manifests_there(change, old, running) if old and running else []
            wanted = await self._manifests_there(change, aim, change.target)
            shown.append(preview(aim.target.name, deployed, wanted))
        return shown

    async def _manifests(self, asked: Asked, aim: Aim, source: Source) -> list[Manifest]:
        whose = asked.deployment if isinstance(asked, PlanContext | StageContext) else asked
        return await self._workshop.loader.load(
            Order(source, aim.application.input, whose.application_name, asked, aim.below)
        )

    async def _manifests_there(self, asked: Asked, aim: Aim, source: Source) -> list[Manifest]:
        return [m for m in await self._manifests(asked, aim, source) if aim.takes(m)]


def _by_name(aims: Sequence[Aim], tasks: Sequence[asyncio.Task[ResultT]]) -> dict[str, ResultT]:
    return {aim.target.name: task.result() for aim, task in zip(aims, tasks, strict=True)}


def together(results: Mapping[str, StageResult]) -> StageResult:
    """Returns the result of a stage on all of its clusters; one that failed fails the stage."""
    if not results:
        return StageResult.succeeded("No deploy target is chosen")
    if len(results) == 1:
        return next(iter(results.values()))
    told = "\n".join(f"{name}: {result.message}" for name, result in results.items())
    is_bad = any(result.status is StageStatus.FAILURE for result in results.values())
    return StageResult.failed(told) if is_bad else StageResult.succeeded(told)
