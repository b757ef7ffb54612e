# SPDX-License-Identifier: Apache-2.0
"""Deploys to a Kubernetes cluster."""

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from pipecd.plugins.kubernetes import options as of
from pipecd.plugins.kubernetes.application import KubernetesApplication
from pipecd.plugins.kubernetes.config import CONFIG
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.plugins.kubernetes.plan.strategy import strategy
from pipecd.plugins.kubernetes.plan.versions import versions
from pipecd.plugins.kubernetes.render.load import Loader
from pipecd.plugins.kubernetes.stages import rollout, sync, traffic
from pipecd.plugins.kubernetes.stages.workbench import Workbench, open_workbench
from pipecd.plugins.kubernetes.target import ChartSources
from pipecd.sdk import (
    DeploymentPlugin,
    PipecdError,
    PlanContext,
    PlannedStage,
    RequestedStage,
    Source,
    Stage,
    StageContext,
    StageResult,
    StartContext,
    Strategy,
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


class KubernetesPlugin(DeploymentPlugin):
    """Deploys manifests to one cluster."""

    stages = (*(Stage(name, options) for name, options in CONFIG.stages.items()), Stage(ROLLBACK))
    config = CONFIG

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="pipecd-kubernetes-"))
        self._loader = Loader(ChartSources(), self._directory)

    async def prepare(self, start: StartContext) -> None:
        self._loader = Loader(start.plugin.settings(ChartSources), self._directory)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        return versions(await self._manifests(plan, plan.target))

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        if plan.running is None:
            return None
        settings = plan.target.application_settings(plan.plugin.name, KubernetesApplication)
        running = await self._manifests(plan, plan.running)
        return strategy(running, await self._manifests(plan, plan.target), settings.workloads)

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
            async with open_workbench(stage, stage.targets[0], source, self._loader) as bench:
                return await _WORK[stage.name](bench, stage)
        except PipecdError as e:
            return StageResult.failed(str(e))

    async def _manifests(self, plan: PlanContext, source: Source) -> list[Manifest]:
        settings = source.application_settings(plan.plugin.name, KubernetesApplication)
        name = plan.deployment.application_name
        return await self._loader.load(source, settings.input, application=name, installer=plan)


def _sync_options(bench: Workbench, stage: StageContext) -> of.SyncOptions:
    """A quick sync has no options of its own, the application has them."""
    return stage.options(of.SyncOptions) if stage.config else bench.application.quick_sync


PLUGIN = KubernetesPlugin
