# SPDX-License-Identifier: Apache-2.0
"""The plugin `lambda`: deploys functions to AWS Lambda.

The stages are in `stages`, what AWS is asked in `functions` and `traffic`, packages of code from
Git in `package`, and live state and drift in `livestate` and `drift`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipecd.plugins.aws_lambda.config import CONFIG, LambdaFunction, LambdaTarget
from pipecd.plugins.aws_lambda.drift import drift, preview
from pipecd.plugins.aws_lambda.functions import Functions
from pipecd.plugins.aws_lambda.livestate import LiveFunctions, resource
from pipecd.plugins.aws_lambda.manifest import read_manifest, versions
from pipecd.plugins.aws_lambda.stages import StageRun
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
    Source,
    Stage,
    StageContext,
    StageResult,
    StartContext,
    Strategy,
    SyncState,
    SyncStatus,
    SyncStrategy,
    UserMistake,
    Version,
)
from pipecd.sdk.aws import AwsAccount, AwsAccounts, Polling
from pipecd.sdk.targets import only_target

PluginContext: TypeAlias = PlanContext | LiveContext | PreviewContext | StageContext
_SYNC, _ROLLOUT = "LAMBDA_SYNC", "LAMBDA_CANARY_ROLLOUT"
_PROMOTE, _ROLLBACK = "LAMBDA_PROMOTE", "LAMBDA_ROLLBACK"
_ROLLBACK_STAGE = PlannedStage(_ROLLBACK, description="Rollback the deployment", is_rollback=True)
_POLLING = Polling(within=600)
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class _OpenTarget:
    """A deploy target with its account and what is known about its functions."""

    settings: LambdaTarget
    account: AwsAccount
    live: LiveFunctions


class LambdaPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Deploys the function in the manifest of an application."""

    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_ROLLBACK),
    )
    config = CONFIG
    rollback_stage = _ROLLBACK_STAGE

    def __init__(self, polling: Polling = _POLLING) -> None:
        self._polling = polling
        self._accounts = AwsAccounts()
        self._open: dict[str, _OpenTarget] = {}

    async def prepare(self, start: StartContext) -> None:
        start.lifetime.push_async_callback(self._accounts.close)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        return versions(await _manifest(plan, plan.target)) or (Version(_UNKNOWN),)

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        """Returns the pipeline, which a change of any field may need."""
        target = await _manifest(plan, plan.target)
        summary = "Sync with the specified pipeline"
        try:
            if plan.running is not None:
                old, new = await _manifest(plan, plan.running), target
                summary = (
                    f"Sync with pipeline to update version from {_version(old)} to {_version(new)}"
                )
        except UserMistake:
            # A deployed commit whose manifest cannot be read has no version to show.
            pass
        return Strategy(SyncStrategy.PIPELINE, summary)

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        planned = PlannedStage(
            _SYNC, description="Deploy the new version and configure all traffic to it"
        )
        return (planned, _ROLLBACK_STAGE) if rollback else (planned,)

    async def execute(self, stage: StageContext) -> StageResult:
        try:
            target = self._target(stage)
            run = StageRun(stage, Functions(target.account, self._polling, stage.log.info))
            handlers = {
                _SYNC: run.sync,
                _ROLLOUT: run.rollout,
                _PROMOTE: run.promote,
                _ROLLBACK: run.rollback,
            }
            try:
                return await handlers[stage.name]()
            finally:
                target.live.invalidate()
        except PipecdError as e:
            return StageResult.failed(str(e))

    async def live_state(self, look: LiveContext) -> LiveState:
        target = self._target(look)
        try:
            declared = await _manifest(look, look.source)
        except UserMistake as e:
            return LiveState((), SyncState(SyncStatus.INVALID_CONFIG, str(e)))
        live = await target.live.find(declared.name)
        if live is None or not live.belongs_to(look.application_id):
            why = "is not deployed" if live is None else "has not the tags of this application"
            summary = f"Function {declared.name} {why}"
            return LiveState((), SyncState(SyncStatus.OUT_OF_SYNC, summary))
        state = drift(live.function, declared, look.source.commit, look.source.ignored_fields())
        return LiveState((resource(live, look.targets[0].name),), state)

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        desired = await _manifest(change, change.target)
        running = await _manifest(change, change.running) if change.running else None
        return (preview(only_target(change.targets, "Lambda").name, running, desired),)

    def _target(self, context: PluginContext) -> _OpenTarget:
        target = only_target(context.targets, "Lambda")
        settings = target.settings(LambdaTarget)
        known = self._open.get(target.name)
        if known is None or known.settings != settings:
            account = self._accounts.account(target.name, settings)
            functions = Functions(account, self._polling, _silent)
            live = LiveFunctions(functions, settings.aws_api_polling_interval)
            known = self._open[target.name] = _OpenTarget(settings, account, live)
        return known


async def _manifest(context: PluginContext, source: Source) -> LambdaFunction:
    return await asyncio.to_thread(read_manifest, source, context.plugin.name)


def _version(function: LambdaFunction) -> str:
    return next((version.version for version in versions(function)), "") or _UNKNOWN


def _silent(_: str) -> None:
    return


PLUGIN = LambdaPlugin
