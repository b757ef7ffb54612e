# SPDX-License-Identifier: Apache-2.0
"""A plugin as the RPCs of upstream's plugin API.

One object serves both ways of running: piped calls the methods of a built-in plugin directly, and
`pipecd.sdk.process` puts the same object behind gRPC.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

import structlog
from google.protobuf.descriptor import ServiceDescriptor

from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import STAGE_ANSWERS, StageStatus, SyncStrategy
from pipecd.model.errors import PipecdError, Unsupported, UserMistake
from pipecd.proto.model import common_pb2, deployment_pb2
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin import livestate_pb2, planpreview_pb2
from pipecd.sdk.facts import Deployment, DeployTarget, PluginEntry, Source
from pipecd.sdk.host import Host
from pipecd.sdk.log import SpoolKeeper, StageLog
from pipecd.sdk.look import LiveContext, PreviewContext
from pipecd.sdk.plugin import (
    DeploymentPlugin,
    LiveStatePlugin,
    PlanContext,
    PlannedStage,
    PreviewPlugin,
    RequestedStage,
    StagePlugin,
    StartContext,
)
from pipecd.sdk.serving.answer import live_state_message, previews_message
from pipecd.sdk.stage import StageContext, StageResult
from pipecd.wire.credentials import Metadata
from pipecd.wire.table import RpcTable

logger = structlog.get_logger()

AnswerT = TypeVar("AnswerT")


class PluginServer:
    """Answers for one plugin under the name that piped's configuration gives it."""

    def __init__(
        self, plugin: StagePlugin, entry: PluginEntry, host: Host, *, now: Now = utc_now
    ) -> None:
        _check_entry(plugin, entry)
        self._plugin, self._entry, self._host, self._now = plugin, entry, host, now
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        """The name under which applications know the plugin."""
        return self._entry.name

    async def FetchDefinedStages(
        self, request: pb.FetchDefinedStagesRequest
    ) -> pb.FetchDefinedStagesResponse:
        return pb.FetchDefinedStagesResponse(stages=[stage.name for stage in self._plugin.stages])

    async def DetermineVersions(
        self, request: pb.DetermineVersionsRequest
    ) -> pb.DetermineVersionsResponse:
        if not isinstance(self._plugin, DeploymentPlugin):
            return pb.DetermineVersionsResponse()
        versions = await self._asked(self._plugin.versions(self._plan(request.input)))
        return pb.DetermineVersionsResponse(
            versions=[
                common_pb2.ArtifactVersion(version=v.version, name=v.name, url=v.url)
                for v in versions
            ]
        )

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse:
        if not isinstance(self._plugin, DeploymentPlugin):
            return pb.DetermineStrategyResponse(unsupported=True)
        answer = await self._asked(self._plugin.strategy(self._plan(request.input)))
        if answer is None:
            return pb.DetermineStrategyResponse(
                sync_strategy=common_pb2.PIPELINE,
                summary="Use PipelineSync because no other logic was matched",
            )
        if answer.strategy is SyncStrategy.AUTO:
            raise PipecdError(f"plugin {self.name} did not decide between pipeline and quick sync")
        return pb.DetermineStrategyResponse(
            sync_strategy=common_pb2.SyncStrategy.ValueType(answer.strategy), summary=answer.summary
        )

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse:
        requested = [RequestedStage(s.name, s.index, s.desc, s.config) for s in request.stages]
        planned = await self._asked(
            self._plugin.plan_pipeline(requested, rollback=request.rollback)
        )
        if strange := {stage.index for stage in planned} - {stage.index for stage in requested}:
            raise PipecdError(
                f"plugin {self.name} planned a stage at {min(strange)}, where none was asked for",
                hint="a planned stage has the index of the stage it belongs to",
            )
        return pb.BuildPipelineSyncStagesResponse(stages=self._stages(planned))

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse:
        if not isinstance(self._plugin, DeploymentPlugin):
            return pb.BuildQuickSyncStagesResponse()
        planned = await self._asked(self._plugin.quick_sync(rollback=request.rollback))
        return pb.BuildQuickSyncStagesResponse(stages=self._stages(planned))

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse:
        given = request.input
        result: StageResult | None = None
        try:
            with self._stoppable() as task:
                async with self._log(given.deployment.id, given.stage.id).kept() as log:
                    result = await self._execute(given, log, task)
        except asyncio.CancelledError:
            # Told to stop too late: the stage is over and only its log was still on its way.
            if result is None:
                raise
        return pb.ExecuteStageResponse(
            status=deployment_pb2.StageStatus.ValueType(result.status), message=result.message
        )

    async def GetLivestate(
        self, request: livestate_pb2.GetLivestateRequest
    ) -> livestate_pb2.GetLivestateResponse:
        if not isinstance(self._plugin, LiveStatePlugin):
            raise Unsupported(f"plugin {self.name} does not tell what is running")
        look = LiveContext(
            application_id=request.application_id,
            application_name=request.application_name,
            piped_id=request.piped_id,
            source=Source.of(request.deploy_source),
            targets=self._named(request.deploy_targets),
            plugin=self._entry,
            host=self._host,
        )
        state = await self._asked(self._plugin.live_state(look))
        return live_state_message(state, plugin=self.name, now=to_unix(self._now()))

    async def GetPlanPreview(
        self, request: planpreview_pb2.GetPlanPreviewRequest
    ) -> planpreview_pb2.GetPlanPreviewResponse:
        if not isinstance(self._plugin, PreviewPlugin):
            raise Unsupported(f"plugin {self.name} has no plan preview")
        running = request.HasField("running_deployment_source")
        change = PreviewContext(
            application_id=request.application_id,
            application_name=request.application_name,
            piped_id=request.piped_id,
            target=Source.of(request.target_deployment_source),
            running=Source.of(request.running_deployment_source) if running else None,
            targets=self._named(request.deploy_targets),
            plugin=self._entry,
            host=self._host,
        )
        return previews_message(await self._asked(self._plugin.preview(change)))

    async def prepare(self, lifetime: AsyncExitStack) -> None:
        """Lets the plugin prepare itself, before anything else is asked of it."""
        await self._asked(self._plugin.prepare(StartContext(self._entry, self._host, lifetime)))

    @property
    def looks(self) -> bool:
        """Whether the plugin tells what runs."""
        return isinstance(self._plugin, LiveStatePlugin)

    @property
    def tells_changes(self) -> bool:
        """Whether the plugin tells of each change of what runs by itself."""
        return isinstance(self._plugin, LiveStatePlugin) and self._plugin.tells_changes

    @property
    def previews(self) -> bool:
        """Whether the plugin tells what a change would do."""
        return isinstance(self._plugin, PreviewPlugin)

    def _log(self, deployment_id: str, stage_id: str) -> StageLog:
        host = self._host
        spool = host.spool(deployment_id, stage_id) if isinstance(host, SpoolKeeper) else None
        return StageLog(host, deployment_id, stage_id, spool=spool)

    def stop_stages(self) -> None:
        """Cancels the stages that are running, because the process is to end."""
        for task in self._running:
            task.cancel()

    @contextmanager
    def _stoppable(self) -> Iterator[asyncio.Task[Any]]:
        if (task := asyncio.current_task()) is None:
            raise RuntimeError("a stage runs in a task")
        self._running.add(task)
        try:
            yield task
        finally:
            self._running.discard(task)

    async def _execute(
        self, given: pb.ExecutePluginInput, log: StageLog, task: asyncio.Task[Any]
    ) -> StageResult:
        """Whatever the author's code does, the stage ends with a result and its log says why."""
        try:
            self._refuse_unknown(given.stage.name)
            result = await self._plugin.execute(self._stage(given, log))
        except PipecdError as e:
            result = StageResult.failed(str(e))
        except Exception as e:
            logger.exception("a plugin failed unexpectedly", plugin=self.name)
            result = StageResult.failed(f"plugin {self.name} failed: {type(e).__name__}: {e}")
        if result.status is StageStatus.FAILURE and task.cancelling():
            # It only failed because it was told to stop.
            raise asyncio.CancelledError
        if result.status not in STAGE_ANSWERS:
            told = f"plugin {self.name} answered {result.status.name}, which is not an ending"
            result = StageResult.failed(told)
        if result.message:
            is_bad = result.status is StageStatus.FAILURE
            (log.error if is_bad else log.success)(result.message)
        return result

    def _refuse_unknown(self, stage: str) -> None:
        offered = [known.name for known in self._plugin.stages]
        if stage not in offered:
            raise UserMistake(
                f"plugin {self.name} has no stage {stage}",
                hint=f"its stages are: {', '.join(offered) or 'none'}",
            )

    async def _asked(self, question: Awaitable[AnswerT]) -> AnswerT:
        """An error of the author's code becomes one that names the plugin and the cause."""
        try:
            return await question
        except PipecdError:
            raise
        except Exception as e:
            logger.exception("a plugin failed unexpectedly", plugin=self.name)
            told = f"plugin {self.name} failed: {type(e).__name__}: {e}"
            raise PipecdError(told) from e

    def _plan(self, given: pb.PlanPluginInput) -> PlanContext:
        running = given.HasField("running_deployment_source")
        return PlanContext(
            deployment=(deployment := Deployment.of(given.deployment)),
            target=Source.of(given.target_deployment_source),
            running=Source.of(given.running_deployment_source) if running else None,
            targets=self._targets(deployment),
            plugin=self._entry,
            host=self._host,
        )

    def _stage(self, given: pb.ExecutePluginInput, log: StageLog) -> StageContext:
        running = given.HasField("running_deployment_source")
        deployment = Deployment.of(given.deployment)
        return StageContext(
            id=given.stage.id,
            name=given.stage.name,
            index=given.stage.index,
            is_rollback=given.stage.rollback,
            deployment=deployment,
            target=Source.of(given.target_deployment_source),
            running=Source.of(given.running_deployment_source) if running else None,
            targets=self._targets(deployment),
            plugin=self._entry,
            log=log,
            config=given.stage_config,
            host=self._host,
        )

    def _targets(self, deployment: Deployment) -> tuple[DeployTarget, ...]:
        """The deploy targets of the deployment; a plugin of stages only has none."""
        if not isinstance(self._plugin, DeploymentPlugin):
            return ()
        return self._named(deployment.target_names.get(self.name, ()))

    def _named(self, names: Sequence[str]) -> tuple[DeployTarget, ...]:
        known = {target.name: target for target in self._entry.targets}
        if not names:
            raise UserMistake("no deploy targets provided")
        if unknown := [name for name in names if name not in known]:
            raise PipecdError(
                f"deploy target {unknown[0]} is not defined for plugin {self.name}",
                hint=f"add it to the configuration of piped, or use one of: {', '.join(known)}",
            )
        return tuple(known[name] for name in names)

    def _stages(self, planned: Sequence[PlannedStage]) -> list[deployment_pb2.PipelineStage]:
        now = to_unix(self._now())
        return [
            deployment_pb2.PipelineStage(
                name=stage.name,
                desc=stage.description,
                index=stage.index,
                rollback=stage.is_rollback,
                metadata=stage.metadata,
                available_operation=deployment_pb2.ManualOperation.ValueType(stage.operation),
                authorized_operators=stage.operators,
                created_at=now,
                updated_at=now,
            )
            for stage in planned
        ]


def _check_entry(plugin: StagePlugin, entry: PluginEntry) -> None:
    """Finds out at the start what would else be found out by the first deployment."""
    needs_target = isinstance(plugin, DeploymentPlugin | LiveStatePlugin | PreviewPlugin)
    if needs_target and not entry.targets:
        raise UserMistake(
            f"plugin {entry.name} requires at least one deploy target to be configured",
            hint="add one under plugins[].deployTargets in the configuration of piped",
        )
    if (config := plugin.config) is None:
        return
    if config.piped is not None:
        entry.settings(config.piped)
    if (settings := config.deploy_target) is not None:
        for target in entry.targets:
            target.settings(settings)


def open_door(service: ServiceDescriptor, answering: object) -> RpcTable[None]:
    """Puts an object with the RPCs of a service behind gRPC, for anyone on this machine."""
    return RpcTable(service, [_Part(service, answering)], _anyone)


class _Part:
    """The methods of an object in the shape of a table's part, which also gets the caller."""

    def __init__(self, service: ServiceDescriptor, answering: object) -> None:
        for method in service.methods:
            setattr(self, method.name, _without_caller(getattr(answering, method.name)))


def _without_caller(
    method: Callable[[object], Awaitable[object]],
) -> Callable[[object, None], Awaitable[object]]:
    async def answer(request: object, caller: None) -> object:
        return await method(request)

    return answer


async def _anyone(metadata: Metadata) -> None:
    return None
