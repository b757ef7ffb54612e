# SPDX-License-Identifier: Apache-2.0
"""The plugin `ecs`: deploys services and tasks to Amazon ECS.

The stages are in `stages`, `routing` and `rollback`, services with rolling updates in `rolling`,
live state in `livestate` and `snapshots`, drift and plan preview in `drift`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from pipecd.plugins.ecs import stages
from pipecd.plugins.ecs.api import Ecs
from pipecd.plugins.ecs.config import CONFIG, EcsCanaryRolloutOptions, EcsTrafficRoutingOptions
from pipecd.plugins.ecs.definitions import TaskDefinition, load_definitions
from pipecd.plugins.ecs.drift import preview
from pipecd.plugins.ecs.livestate import live_state
from pipecd.plugins.ecs.plan import decide_strategy, decide_v0_strategy, image_versions
from pipecd.plugins.ecs.rollback import rollback
from pipecd.plugins.ecs.routing import route_traffic
from pipecd.plugins.ecs.session import Session
from pipecd.plugins.ecs.snapshots import Snapshots
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
    StartContext,
    Strategy,
    UserMistake,
    Version,
)
from pipecd.sdk.aws import AwsAccount, AwsAccounts, AwsTarget, Polling
from pipecd.sdk.targets import only_target

_SYNC, _ROLLBACK = "ECS_SYNC", "ECS_ROLLBACK"
_ROLLBACK_STAGE = PlannedStage(
    _ROLLBACK, description="Rollback to previous task set", is_rollback=True
)
_CANARY_ROLLOUT, _TRAFFIC_ROUTING = "ECS_CANARY_ROLLOUT", "ECS_TRAFFIC_ROUTING"
_V0_KIND = "ECSApp"
Handler: TypeAlias = Callable[[Session], Awaitable[StageResult]]

_HANDLERS: Mapping[str, Handler] = {
    _SYNC: stages.sync,
    _CANARY_ROLLOUT: stages.rollout_canary,
    "ECS_PRIMARY_ROLLOUT": stages.rollout_primary,
    _TRAFFIC_ROUTING: route_traffic,
    "ECS_CANARY_CLEAN": stages.clean_canary,
    _ROLLBACK: rollback,
}


class EcsPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Deploys to the deploy target of an application, an AWS account and region."""

    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_ROLLBACK),
    )
    config = CONFIG
    rollback_stage = _ROLLBACK_STAGE
    polling = Polling(within=600)
    _accounts: AwsAccounts
    _snapshots: Snapshots

    async def prepare(self, start: StartContext) -> None:
        self._accounts = AwsAccounts()
        self._snapshots = Snapshots()
        start.lifetime.push_async_callback(self._accounts.close)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        definitions = await load_definitions(plan.target, plan.plugin.name)
        return image_versions(definitions.task)

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        target = (await load_definitions(plan.target, plan.plugin.name)).task
        running: TaskDefinition | None = None
        if plan.running is not None:
            try:
                running = (await load_definitions(plan.running, plan.plugin.name)).task
            except UserMistake:
                # The running commit was written by hand or is broken; the pipeline is the safe way.
                running = None
        decide = decide_v0_strategy if plan.target.kind == _V0_KIND else decide_strategy
        return decide(running, target)

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        planned = PlannedStage(_SYNC, description="Sync ECS service with given task definition")
        return (planned, _ROLLBACK_STAGE) if rollback else (planned,)

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        planned = await super().plan_stage(requested, rollback=rollback)
        if requested.name == _TRAFFIC_ROUTING:
            primary, canary = requested.options(EcsTrafficRoutingOptions).shares()
            shown = f"primary {primary}%, canary {canary}%"
        elif requested.name == _CANARY_ROLLOUT:
            shown = f"canary {requested.options(EcsCanaryRolloutOptions).scale:g}%"
        else:
            return planned
        return [replace(stage, metadata={DISPLAY_KEY: shown}) for stage in planned]

    async def execute(self, stage: StageContext) -> StageResult:
        try:
            session = await self._open(stage)
            for path in session.definitions.unknown:
                session.log(f"AWS does not know {path}, so it is left out")
            try:
                return await _HANDLERS[stage.name](session)
            finally:
                if service := session.definitions.service:
                    target = session.account.target
                    self._snapshots.forget(target, service.cluster, service.name)
        except PipecdError as e:
            return StageResult.failed(str(e))

    async def live_state(self, look: LiveContext) -> LiveState:
        definitions = await load_definitions(look.source, look.plugin.name)
        ecs = Ecs(self._account(look.targets))
        return await live_state(look, ecs, self._snapshots, definitions)

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        target = only_target(change.targets, "ECS").name
        running = change.running
        before = await load_definitions(running, change.plugin.name) if running else None
        return (preview(target, before, await load_definitions(change.target, change.plugin.name)),)

    async def _open(self, stage: StageContext) -> Session:
        source: Source = stage.target
        if stage.name == _ROLLBACK:
            if stage.running is None:
                raise UserMistake(
                    "There is no commit to roll back to: this is the first deployment",
                    hint="correct the service by a new commit, or delete it",
                )
            source = stage.running
        definitions = await load_definitions(source, stage.plugin.name)
        account = self._account(stage.targets)
        return Session(stage, source, definitions, account, self.polling)

    def _account(self, targets: Sequence[DeployTarget]) -> AwsAccount:
        target = only_target(targets, "ECS")
        return self._accounts.account(target.name, target.settings(AwsTarget))


PLUGIN = EcsPlugin
