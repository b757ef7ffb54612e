# SPDX-License-Identifier: Apache-2.0
"""The plugin `cloudrun`: deploys services to Cloud Run.

The stages are in `stages`, what is sent in `manifest`, requests in `client`, and live state and
drift in `livestate` and `drift`.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipecd.plugins.cloudrun.client import CloudRunClient
from pipecd.plugins.cloudrun.config import CONFIG, CloudRunTarget
from pipecd.plugins.cloudrun.drift import drift, preview
from pipecd.plugins.cloudrun.livestate import LiveServices, resources
from pipecd.plugins.cloudrun.manifest import ServiceManifest, read_manifest
from pipecd.plugins.cloudrun.stages import StageRun
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
from pipecd.sdk.polling import Polling
from pipecd.sdk.targets import only_target

PluginContext: TypeAlias = PlanContext | LiveContext | PreviewContext | StageContext
_SYNC, _PROMOTE, _ROLLBACK = "CLOUDRUN_SYNC", "CLOUDRUN_PROMOTE", "CLOUDRUN_ROLLBACK"
_ROLLBACK_STAGE = PlannedStage(_ROLLBACK, description="Rollback the deployment", is_rollback=True)
# Cloud Run gives up a revision that does not start after some minutes, and says why.
_POLLING = Polling(within=600)


@dataclass(frozen=True)
class _OpenTarget:
    """A deploy target with its connections and what is known about its services."""

    settings: CloudRunTarget
    client: CloudRunClient
    services: LiveServices


class CloudRunPlugin(DeploymentPlugin, LiveStatePlugin, PreviewPlugin):
    """Deploys the service in the manifest of an application."""

    stages = (
        *(Stage(name, options) for name, options in CONFIG.stages.items()),
        Stage(_ROLLBACK),
    )
    config = CONFIG
    rollback_stage = _ROLLBACK_STAGE

    def __init__(self, polling: Polling = _POLLING) -> None:
        self._polling = polling
        self._open: dict[str, _OpenTarget] = {}
        self._clients: list[CloudRunClient] = []

    async def prepare(self, start: StartContext) -> None:
        start.lifetime.push_async_callback(self._close)

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        manifest = await _manifest(plan, plan.target)
        return [Version(image.tag, image.name, image.reference) for image in manifest.images]

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        """Returns the pipeline, which a change of any field may need."""
        target = await _manifest(plan, plan.target)
        summary = "Sync with the specified pipeline"
        try:
            if plan.running is not None:
                running = await _manifest(plan, plan.running)
                summary = (
                    f"Sync with pipeline to update image from {running.images[0].tag} "
                    f"to {target.images[0].tag}"
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
            run = StageRun(stage, target.client, self._polling)
            handlers = {_SYNC: run.sync, _PROMOTE: run.promote, _ROLLBACK: run.rollback}
            try:
                return await handlers[stage.name]()
            finally:
                target.services.invalidate()
        except PipecdError as e:
            return StageResult.failed(str(e))

    async def live_state(self, look: LiveContext) -> LiveState:
        target, name = self._target(look), look.targets[0].name
        live = await target.services.find(look.application_id)
        found = resources(live, name) if live else []
        try:
            declared = await _manifest(look, look.source)
        except UserMistake as e:
            return LiveState(found, SyncState(SyncStatus.INVALID_CONFIG, str(e)))
        ignored = look.source.ignored_fields()
        service = live.service if live else None
        return LiveState(found, drift(service, declared, look.source.commit, ignored))

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        desired = await _manifest(change, change.target)
        running = await _manifest(change, change.running) if change.running else None
        return (preview(only_target(change.targets, "Cloud Run").name, running, desired),)

    def _target(self, context: PluginContext) -> _OpenTarget:
        target = only_target(context.targets, "Cloud Run")
        settings = target.settings(CloudRunTarget)
        known = self._open.get(target.name)
        if known is None or known.settings != settings:
            client = CloudRunClient(target.name, settings)
            self._clients.append(client)
            known = self._open[target.name] = _OpenTarget(settings, client, LiveServices(client))
        return known

    async def _close(self) -> None:
        """Closes also clients of settings that have changed, which a stage may have used since."""
        for client in self._clients:
            await client.close()


async def _manifest(context: PluginContext, source: Source) -> ServiceManifest:
    return await asyncio.to_thread(read_manifest, source, context.plugin.name)


PLUGIN = CloudRunPlugin
