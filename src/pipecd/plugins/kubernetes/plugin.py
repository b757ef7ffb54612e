# SPDX-License-Identifier: Apache-2.0
"""The plugin `kubernetes`: deploys to one cluster.

`ClusterPlugin` handles every call of piped for this plugin and for `kubernetes_multicluster`: it
resolves the clusters of the application and runs the stage, the live state or the plan preview on
each of them. The stages themselves are in `stages` and `traffic`.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, TypeVar

from pipecd.plugins.kubernetes import stages, traffic
from pipecd.plugins.kubernetes.cluster_target import ClusterTarget, resolve_routes, select_targets
from pipecd.plugins.kubernetes.config import CONFIG, KubernetesApplication, TrafficRoutingOptions
from pipecd.plugins.kubernetes.drift import preview
from pipecd.plugins.kubernetes.livestate import (
    live_state,
    live_state_without_manifests,
    merge_live_states,
)
from pipecd.plugins.kubernetes.loader import RenderRequest
from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plan import decide_strategy, image_versions
from pipecd.plugins.kubernetes.stage_session import (
    PluginState,
    StageSession,
    open_plugin_state,
    open_stage_session,
)
from pipecd.plugins.kubernetes.workload import template_images
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
    Stage,
    StageContext,
    StageResult,
    StageStatus,
    StartContext,
    Strategy,
    SyncStrategy,
    UserMistake,
    Version,
)
from pipecd.sdk.images import Image

SYNC, TRAFFIC_ROUTING, ROLLBACK = "SYNC", "TRAFFIC_ROUTING", "ROLLBACK"
PluginContext: TypeAlias = PlanContext | LiveContext | PreviewContext | StageContext
ResultT = TypeVar("ResultT")

_STAGE_HANDLERS: Mapping[str, Callable[[StageSession, Any], Awaitable[StageResult]]] = {
    SYNC: stages.sync,
    "PRIMARY_ROLLOUT": stages.rollout_primary,
    "CANARY_ROLLOUT": stages.rollout_canary,
    "CANARY_CLEAN": lambda session, _: stages.clean_variant(session, "canary"),
    "BASELINE_ROLLOUT": stages.rollout_baseline,
    "BASELINE_CLEAN": lambda session, _: stages.clean_variant(session, "baseline"),
    TRAFFIC_ROUTING: traffic.route_traffic,
    ROLLBACK: lambda session, _: stages.rollback(session),
}


class ClusterPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Deploys manifests to the clusters of an application, all clusters concurrently.

    A subclass names its stages with `prefix` and resolves the clusters in `cluster_targets`.
    """

    prefix: ClassVar[str]
    tells_changes = True
    _state: PluginState

    def images(self, manifest: Manifest) -> Iterable[Image]:
        """Returns the images of an object that count as versions of the application."""
        return template_images(manifest)

    @abstractmethod
    def cluster_targets(self, context: PluginContext, source: Source) -> list[ClusterTarget]:
        """Returns the clusters that the application of a source is deployed to."""

    async def prepare(self, start: StartContext) -> None:
        self._state = open_plugin_state(start)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        per_target = [
            await self._manifests(plan, target, plan.target)
            for target in self.cluster_targets(plan, plan.target)
        ]
        return image_versions((m for manifests in per_target for m in manifests), self.images)

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        """Returns the pipeline as soon as one cluster needs it."""
        if plan.running is None:
            return None
        chosen = None
        deployed = {target.name: target for target in self.cluster_targets(plan, plan.running)}
        for target in self.cluster_targets(plan, plan.target):
            before = deployed.get(target.name, target)
            running = await self._manifests(plan, before, plan.running)
            desired = await self._manifests(plan, target, plan.target)
            decision = decide_strategy(running, desired, target.application.workloads)
            if decision.strategy is SyncStrategy.PIPELINE:
                return decision
            chosen = chosen or decision
        return chosen

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        planned = PlannedStage(self.prefix + SYNC, description="Sync by applying all manifests")
        return (planned, self._rollback_stage(0)) if rollback else (planned,)

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = await super().plan_stage(requested, rollback=rollback)
        if requested.name != self.prefix + TRAFFIC_ROUTING:
            return planned
        metadata = traffic.stage_metadata(requested.options(TrafficRoutingOptions))
        return [replace(stage, metadata=metadata) for stage in planned]

    async def plan_pipeline(
        self, requested: Sequence[RequestedStage], *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = list(await super().plan_pipeline(requested, rollback=rollback))
        if rollback and requested:
            planned.append(self._rollback_stage(min(stage.index for stage in requested)))
        return planned

    def _rollback_stage(self, index: int) -> PlannedStage:
        name = self.prefix + ROLLBACK
        return PlannedStage(name, index, "Rollback the deployment", is_rollback=True)

    async def execute(self, stage: StageContext) -> StageResult:
        if stage.name == self.prefix + ROLLBACK:
            targets = self.cluster_targets(stage, stage.running or stage.target)
            names = {target.name for target in targets}
            new = (t for t in self.cluster_targets(stage, stage.target) if t.name not in names)
            targets += (replace(target, is_new=True) for target in new)
        else:
            targets = self.cluster_targets(stage, stage.target)
        options: Spec | None
        if stage.name == self.prefix + SYNC and not stage.config:
            # Quick sync has the options of the application.
            options = targets[0].application.quick_sync if targets else None
        else:
            declared = {each.name: each.options for each in self.stages}[stage.name]
            options = stage.options(declared) if declared else None
        targets = select_targets(targets, options)
        handler = _STAGE_HANDLERS[stage.name.removeprefix(self.prefix)]

        async def execute_on(target: ClusterTarget) -> StageResult:
            try:
                async with open_stage_session(
                    stage, target, self._state, is_only_target=len(targets) == 1
                ) as session:
                    return await handler(session, options)
            except PipecdError as e:
                return StageResult.failed(str(e))

        async with asyncio.TaskGroup() as tasks:
            executions = [tasks.create_task(execute_on(target)) for target in targets]
        return combined_result(_results_by_name(targets, executions))

    async def live_state(self, look: LiveContext) -> LiveState:
        targets = self.cluster_targets(look, look.source)

        async def live_state_on(target: ClusterTarget) -> LiveState | PipecdError:
            # An error on one cluster does not hide the objects on the others.
            try:
                informer = await self._state.informers.informer(target.deploy_target)
                informer.drifts.expire(look.application_id)
                try:
                    manifests = await self._routed_manifests(look, target, look.source)
                except UserMistake as e:
                    return await live_state_without_manifests(informer, look.application_id, e)
                return await live_state(informer, look.application_id, look.source, manifests)
            except PipecdError as e:
                return e

        async with asyncio.TaskGroup() as tasks:
            queries = [tasks.create_task(live_state_on(target)) for target in targets]
        states = _results_by_name(targets, queries)
        if any(isinstance(state, PipecdError) for state in states.values()):
            self._state.informers.expire(look.application_id)
        return merge_live_states(states)

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        running = change.running
        deployed = {t.name: t for t in self.cluster_targets(change, running)} if running else {}
        previews: list[Preview] = []
        for target in self.cluster_targets(change, change.target):
            before = deployed.get(target.name)
            current = (
                await self._routed_manifests(change, before, running) if before and running else []
            )
            desired = await self._routed_manifests(change, target, change.target)
            previews.append(preview(target.name, current, desired))
        return previews

    async def _manifests(
        self, context: PluginContext, target: ClusterTarget, source: Source
    ) -> list[Manifest]:
        application = (
            context.deployment if isinstance(context, PlanContext | StageContext) else context
        )
        return await self._state.loader.load(
            RenderRequest(
                source,
                target.application.input,
                release=application.application_name,
                installer=context,
                kustomize_dir=target.kustomize_dir,
            )
        )

    async def _routed_manifests(
        self, context: PluginContext, target: ClusterTarget, source: Source
    ) -> list[Manifest]:
        return [m for m in await self._manifests(context, target, source) if target.includes(m)]


def _results_by_name(
    targets: Sequence[ClusterTarget], tasks: Sequence[asyncio.Task[ResultT]]
) -> dict[str, ResultT]:
    return {target.name: task.result() for target, task in zip(targets, tasks, strict=True)}


def combined_result(results: Mapping[str, StageResult]) -> StageResult:
    """Returns the result of a stage on all of its clusters; one failure fails the stage."""
    if not results:
        return StageResult.succeeded("No deploy target is chosen")
    if len(results) == 1:
        return next(iter(results.values()))
    message = "\n".join(f"{name}: {result.message}" for name, result in results.items())
    has_failed = any(result.status is StageStatus.FAILURE for result in results.values())
    return StageResult.failed(message) if has_failed else StageResult.succeeded(message)


_PREFIX = "K8S_"


class KubernetesPlugin(ClusterPlugin):
    """Deploys manifests to one cluster, the first of the application's deploy targets.

    Objects in `resourceRoutes` go to other deploy targets of the piped.
    """

    prefix = _PREFIX
    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_PREFIX + ROLLBACK),
    )
    config = CONFIG

    def cluster_targets(self, context: PluginContext, source: Source) -> list[ClusterTarget]:
        settings = source.application_settings(context.plugin.name, KubernetesApplication)
        default = context.targets[0]
        if not settings.resource_routes:
            return [ClusterTarget(default, settings)]
        routes = resolve_routes(default.name, settings.resource_routes, context.plugin.targets)
        others = [t for t in context.plugin.targets if t.name in routes.targets - {default.name}]
        return [ClusterTarget(target, settings, routes=routes) for target in (default, *others)]


PLUGIN = KubernetesPlugin
