# SPDX-License-Identifier: Apache-2.0
"""Deploys to a Kubernetes cluster."""

from collections.abc import Awaitable, Callable, Mapping, Sequence

from pipecd.plugins.kubernetes import options as of
from pipecd.plugins.kubernetes.application import KubernetesApplication
from pipecd.plugins.kubernetes.config import CONFIG
from pipecd.plugins.kubernetes.live.drift import preview
from pipecd.plugins.kubernetes.live.state import Declared, live_state, without_manifests
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.plan.strategy import strategy
from pipecd.plugins.kubernetes.plan.versions import versions
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
    Stage,
    StageContext,
    StageResult,
    StartContext,
    Strategy,
    UserMistake,
    Version,
)

SYNC, ROLLBACK = "K8S_SYNC", "K8S_ROLLBACK"
_WORK: Mapping[str, Callable[[Workbench, StageContext], Awaitable[StageResult]]] = {
    SYNC: lambda bench, stage: sync.sync(bench, _sync_options(bench, stage)),
    "K8S_PRIMARY_ROLLOUT": lambda bench, stage: rollout.primary(
        bench, stage.options(of.PrimaryRolloutOptions)
    ),
    "K8S_CANARY_ROLLOUT": lambda bench, stage: rollout.canary(
        bench, stage.options(of.CanaryRolloutOptions)
    ),
    "K8S_CANARY_CLEAN": lambda bench, _: rollout.clean(bench, "canary"),
    "K8S_BASELINE_ROLLOUT": lambda bench, stage: rollout.baseline(
        bench, stage.options(of.BaselineRolloutOptions)
    ),
    "K8S_BASELINE_CLEAN": lambda bench, _: rollout.clean(bench, "baseline"),
    "K8S_TRAFFIC_ROUTING": lambda bench, stage: traffic.route(
        bench, stage.options(of.TrafficRoutingOptions)
    ),
    ROLLBACK: lambda bench, _: sync.rollback(bench),
}


class KubernetesPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Deploys manifests to one cluster."""

    stages = (*(Stage(name, options) for name, options in CONFIG.stages.items()), Stage(ROLLBACK))
    config = CONFIG

    _workshop: Workshop

    async def prepare(self, start: StartContext) -> None:
        self._workshop = open_workshop(start)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        name = plan.deployment.application_name
        return versions(await self._manifests(plan, name, plan.target))

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        if plan.running is None:
            return None
        settings = plan.target.application_settings(plan.plugin.name, KubernetesApplication)
        name = plan.deployment.application_name
        running = await self._manifests(plan, name, plan.running)
        return strategy(running, await self._manifests(plan, name, plan.target), settings.workloads)

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        planned = PlannedStage(SYNC, description="Sync by applying all manifests")
        undo = PlannedStage(ROLLBACK, description="Rollback the deployment", is_rollback=True)
        return (planned, undo) if rollback else (planned,)

    async def plan_pipeline(
        self, requested: Sequence[RequestedStage], *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = list(await super().plan_pipeline(requested, rollback=rollback))
        if rollback and requested:
            index = min(stage.index for stage in requested)
            planned.append(
                PlannedStage(ROLLBACK, index, "Rollback the deployment", is_rollback=True)
            )
        return planned

    async def execute(self, stage: StageContext) -> StageResult:
        source = stage.running if stage.name == ROLLBACK and stage.running else stage.target
        try:
            async with open_workbench(
                stage, stage.targets[0], source, self._workshop.loader
            ) as bench:
                return await _WORK[stage.name](bench, stage)
        except PipecdError as e:
            return StageResult.failed(str(e))

    async def live_state(self, look: LiveContext) -> LiveState:
        lookout = await self._workshop.lookouts.of(look.targets[0])
        try:
            manifests = await self._manifests(look, look.application_name, look.source)
        except UserMistake as e:
            return await without_manifests(lookout, look.application_id, e)
        return await live_state(lookout, Declared(look.application_id, look.source, manifests))

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        name, running = change.application_name, change.running
        before = await self._manifests(change, name, running) if running else []
        wanted = await self._manifests(change, name, change.target)
        return [preview(change.targets[0].name, before, wanted)]

    async def _manifests(
        self, asked: PlanContext | LiveContext | PreviewContext, name: str, source: Source
    ) -> list[Manifest]:
        settings = source.application_settings(asked.plugin.name, KubernetesApplication)
        loader = self._workshop.loader
        return await loader.load(source, settings.input, application=name, installer=asked)


def _sync_options(bench: Workbench, stage: StageContext) -> of.SyncOptions:
    """A quick sync has no options of its own, the application has them."""
    return stage.options(of.SyncOptions) if stage.config else bench.application.quick_sync


PLUGIN = KubernetesPlugin
