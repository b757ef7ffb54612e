# SPDX-License-Identifier: Apache-2.0
"""Serves a plugin: the gRPC services that piped calls, and how piped starts the program."""

import asyncio
import errno
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import grpc
import grpc.aio
import structlog
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pipecd.config.piped import PluginSpec
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.deployment import PLUGIN_STAGE_STATUSES, StageStatus, SyncStrategy
from pipecd.model.errors import PipecdError, Unsupported, UserMistake
from pipecd.model.health import describe_progress
from pipecd.proto.model import application_pb2, common_pb2, deployment_pb2
from pipecd.proto.model import livestate_pb2 as model_livestate_pb2
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin import livestate_pb2, planpreview_pb2
from pipecd.proto.plugin.deployment_pb2 import FetchDefinedStagesRequest
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub
from pipecd.proto.plugin.livestate_pb2 import GetLivestateResponse
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewResponse, PlanPreviewResult
from pipecd.sdk.deployment import Deployment, DeployTarget, PluginEntry, Source
from pipecd.sdk.host import Host
from pipecd.sdk.livestate import (
    Health,
    LiveContext,
    LiveState,
    Preview,
    PreviewContext,
    Resource,
)
from pipecd.sdk.log import SpoolProvider, StageLog
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
from pipecd.sdk.stage import StageContext, StageResult
from pipecd.wire.local_callers import LocalRpcTable

_ApplicationLiveState = model_livestate_pb2.ApplicationLiveState
_ResourceState = model_livestate_pb2.ResourceState
_FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})


def live_state_message(state: LiveState, *, plugin: str, now: int) -> GetLivestateResponse:
    """Returns the message of a live state, with plugin name and times filled in."""
    # The health of the application: as in upstream, an unknown resource precedes an unhealthy one.
    healths = {resource.health for resource in state.resources}
    status = (
        _ApplicationLiveState.UNKNOWN
        if Health.UNKNOWN in healths
        else _ApplicationLiveState.OTHER
        if healths & {Health.UNHEALTHY, Health.PROGRESSING}
        else _ApplicationLiveState.HEALTHY
    )
    resources = [
        _ResourceState(
            id=resource.id,
            parent_ids=resource.parents,
            name=resource.name,
            resource_type=resource.kind,
            resource_metadata=resource.metadata,
            **_health_fields(resource),
            deploy_target=resource.target,
            plugin_name=plugin,
            created_at=now if resource.created_at is None else to_unix(resource.created_at),
            updated_at=now,
        )
        for resource in state.resources
    ]
    return GetLivestateResponse(
        application_live_state=_ApplicationLiveState(resources=resources, health_status=status),
        sync_state=application_pb2.ApplicationSyncState(
            status=application_pb2.ApplicationSyncStatus.ValueType(state.sync.status),
            short_reason=state.sync.summary,
            reason=state.sync.details,
            timestamp=now,
        ),
    )


def _health_fields(resource: Resource) -> dict[str, Any]:
    if resource.health is Health.PROGRESSING:
        description = describe_progress(resource.health_text)
        return {"health_status": _ResourceState.UNHEALTHY, "health_description": description}
    status = _ResourceState.HealthStatus.ValueType(resource.health)
    return {"health_status": status, "health_description": resource.health_text}


def previews_message(previews: Sequence[Preview]) -> GetPlanPreviewResponse:
    """Returns the message of plan previews."""
    return GetPlanPreviewResponse(
        results=[
            PlanPreviewResult(
                deploy_target=preview.target,
                summary=preview.summary,
                no_change=preview.no_change,
                details=preview.details.encode(),
                diff_language=preview.language,
            )
            for preview in previews
        ]
    )


logger = structlog.get_logger()

ResponseT = TypeVar("ResponseT")


class PluginServer:
    """Implements the plugin services for one plugin, under its name in piped's configuration."""

    def __init__(
        self, plugin: StagePlugin, entry: PluginEntry, host: Host, *, now: Now = utc_now
    ) -> None:
        _check_entry(plugin, entry)
        self._plugin, self._entry, self._host, self._now = plugin, entry, host, now
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def name(self) -> str:
        """The name of the plugin in application files."""
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
        versions = await self._call(self._plugin.versions(self._plan_context(request.input)))
        return pb.DetermineVersionsResponse(
            versions=[
                common_pb2.ArtifactVersion(
                    kind=common_pb2.ArtifactVersion.Kind.ValueType(v.kind),
                    version=v.version,
                    name=v.name,
                    url=v.url,
                )
                for v in versions
            ]
        )

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse:
        if not isinstance(self._plugin, DeploymentPlugin):
            return pb.DetermineStrategyResponse(unsupported=True)
        chosen = await self._call(self._plugin.strategy(self._plan_context(request.input)))
        if chosen is None:
            return pb.DetermineStrategyResponse(
                sync_strategy=common_pb2.PIPELINE,
                summary="Use PipelineSync because no other logic was matched",
            )
        if chosen.strategy is SyncStrategy.AUTO:
            raise PipecdError(f"plugin {self.name} did not decide between pipeline and quick sync")
        return pb.DetermineStrategyResponse(
            sync_strategy=common_pb2.SyncStrategy.ValueType(chosen.strategy), summary=chosen.summary
        )

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse:
        requested = [RequestedStage(s.name, s.index, s.desc, s.config) for s in request.stages]
        planned = await self._call(self._plugin.plan_pipeline(requested, rollback=request.rollback))
        if misplaced := {stage.index for stage in planned} - {stage.index for stage in requested}:
            raise PipecdError(
                f"plugin {self.name} planned a stage at index {min(misplaced)}, "
                "where none was requested",
                hint="give a planned stage the index of the requested stage it belongs to",
            )
        return pb.BuildPipelineSyncStagesResponse(stages=self._stage_messages(planned))

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse:
        if not isinstance(self._plugin, DeploymentPlugin):
            return pb.BuildQuickSyncStagesResponse()
        planned = await self._call(self._plugin.quick_sync(rollback=request.rollback))
        return pb.BuildQuickSyncStagesResponse(stages=self._stage_messages(planned))

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse:
        input = request.input
        result: StageResult | None = None
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a stage runs in a task")
        spool = None
        if isinstance(self._host, SpoolProvider):
            spool = self._host.spool(input.deployment.id, input.stage.id)
        stage_log = StageLog(self._host, input.deployment.id, input.stage.id, spool=spool)
        self._running.add(task)
        try:
            async with stage_log.kept() as log:
                result = await self._execute(input, log, task)
        except asyncio.CancelledError:
            # If the stage has a result, only the rest of its log was still being sent.
            if result is None:
                raise
        finally:
            self._running.discard(task)
        return pb.ExecuteStageResponse(
            status=deployment_pb2.StageStatus.ValueType(result.status), message=result.message
        )

    async def GetLivestate(
        self, request: livestate_pb2.GetLivestateRequest
    ) -> livestate_pb2.GetLivestateResponse:
        if not isinstance(self._plugin, LiveStatePlugin):
            raise Unsupported(f"plugin {self.name} does not report live state")
        context = LiveContext(
            application_id=request.application_id,
            application_name=request.application_name,
            piped_id=request.piped_id,
            source=Source.of(request.deploy_source),
            targets=self._find_targets(request.deploy_targets),
            plugin=self._entry,
            host=self._host,
        )
        state = await self._call(self._plugin.live_state(context))
        return live_state_message(state, plugin=self.name, now=to_unix(self._now()))

    async def GetPlanPreview(
        self, request: planpreview_pb2.GetPlanPreviewRequest
    ) -> planpreview_pb2.GetPlanPreviewResponse:
        if not isinstance(self._plugin, PreviewPlugin):
            raise Unsupported(f"plugin {self.name} has no plan preview")
        running = request.HasField("running_deployment_source")
        context = PreviewContext(
            application_id=request.application_id,
            application_name=request.application_name,
            piped_id=request.piped_id,
            target=Source.of(request.target_deployment_source),
            running=Source.of(request.running_deployment_source) if running else None,
            targets=self._find_targets(request.deploy_targets),
            plugin=self._entry,
            host=self._host,
        )
        return previews_message(await self._call(self._plugin.preview(context)))

    async def prepare(self, lifetime: AsyncExitStack) -> None:
        """Calls `prepare` of the plugin, before any other call."""
        await self._call(self._plugin.prepare(StartContext(self._entry, self._host, lifetime)))

    @property
    def has_live_state(self) -> bool:
        """Whether the plugin reports live state."""
        return isinstance(self._plugin, LiveStatePlugin)

    @property
    def tells_changes(self) -> bool:
        """Whether the plugin reports changes of the live state by itself."""
        return isinstance(self._plugin, LiveStatePlugin) and self._plugin.tells_changes

    @property
    def has_plan_preview(self) -> bool:
        """Whether the plugin has plan previews."""
        return isinstance(self._plugin, PreviewPlugin)

    def stop_stages(self) -> None:
        """Cancels running stages when the process stops."""
        for task in self._running:
            task.cancel()

    async def _execute(
        self, input: pb.ExecutePluginInput, log: StageLog, task: asyncio.Task[Any]
    ) -> StageResult:
        """Executes a stage; an error of the plugin becomes a failure with the cause in the log."""
        declared = [stage.name for stage in self._plugin.stages]
        if input.stage.name not in declared:
            names = ", ".join(declared) or "none"
            message = f"plugin {self.name} has no stage {input.stage.name}; its stages are: {names}"
            log.error(message)
            return StageResult.failed(message)
        try:
            result = await self._plugin.execute(self._stage_context(input, log))
        except PipecdError as e:
            result = StageResult.failed(str(e))
        except Exception as e:  # noqa: BLE001 - any error of a plugin ends its stage
            result = StageResult.failed(self._unexpected(e))
        if result.status is StageStatus.FAILURE and task.cancelling():
            # The cancellation made the stage fail.
            raise asyncio.CancelledError
        if result.status not in PLUGIN_STAGE_STATUSES:
            result = StageResult.failed(
                f"plugin {self.name} returned {result.status.name}, which is not a final status"
            )
        if result.message:
            has_failed = result.status is StageStatus.FAILURE
            (log.error if has_failed else log.success)(result.message)
        return result

    async def _call(self, call: Awaitable[ResponseT]) -> ResponseT:
        """Awaits a call of the plugin; an error names the plugin and the cause."""
        try:
            return await call
        except PipecdError:
            raise
        except Exception as e:
            raise PipecdError(self._unexpected(e)) from e

    def _unexpected(self, error: Exception) -> str:
        """Describes an error for which the plugin has no words; logs one that may be a bug."""
        if isinstance(error, OSError) and error.errno in _FULL_DISK:
            return f"the disk of piped is full: free some space and deploy again ({error})"
        logger.error("plugin failed unexpectedly", plugin=self.name, exc_info=error)
        return f"plugin {self.name} failed: {type(error).__name__}: {error}"

    def _plan_context(self, input: pb.PlanPluginInput) -> PlanContext:
        running = input.HasField("running_deployment_source")
        return PlanContext(
            deployment=(deployment := Deployment.of(input.deployment)),
            target=Source.of(input.target_deployment_source),
            running=Source.of(input.running_deployment_source) if running else None,
            targets=self._targets(deployment),
            plugin=self._entry,
            host=self._host,
        )

    def _stage_context(self, input: pb.ExecutePluginInput, log: StageLog) -> StageContext:
        running = input.HasField("running_deployment_source")
        deployment = Deployment.of(input.deployment)
        return StageContext(
            id=input.stage.id,
            name=input.stage.name,
            index=input.stage.index,
            is_rollback=input.stage.rollback,
            deployment=deployment,
            target=Source.of(input.target_deployment_source),
            running=Source.of(input.running_deployment_source) if running else None,
            targets=self._targets(deployment),
            plugin=self._entry,
            log=log,
            config=input.stage_config,
            host=self._host,
        )

    def _targets(self, deployment: Deployment) -> tuple[DeployTarget, ...]:
        """Returns the deploy targets of the deployment; a plugin with only stages has none."""
        if not isinstance(self._plugin, DeploymentPlugin):
            return ()
        return self._find_targets(deployment.target_names.get(self.name, ()))

    def _find_targets(self, names: Sequence[str]) -> tuple[DeployTarget, ...]:
        configured = {target.name: target for target in self._entry.targets}
        if not names:
            first = next(iter(configured), "NAME")
            raise UserMistake(
                "no deploy targets provided",
                hint=f"give the application one of the plugin {self.name} with"
                f" pipectl application edit --deploy-target {self.name}={first}",
            )
        if unknown := [name for name in names if name not in configured]:
            raise PipecdError(
                f"deploy target {unknown[0]} is not defined for plugin {self.name}",
                hint=f"add it to piped's configuration or use one of: {', '.join(configured)}",
            )
        return tuple(configured[name] for name in names)

    def _stage_messages(
        self, planned: Sequence[PlannedStage]
    ) -> list[deployment_pb2.PipelineStage]:
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
    """Validates the entry at start, not at the first deployment."""
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


def rpc_handlers(service: ServiceDescriptor, handler: object) -> LocalRpcTable:
    """Returns gRPC handlers for an object with the RPCs of a service, for callers of this user."""
    return LocalRpcTable(service, _RpcHandlers(service, handler))


class _RpcHandlers:
    """The methods of an object as handlers of an RpcTable, which passes the caller as well."""

    def __init__(self, service: ServiceDescriptor, handler: object) -> None:
        for method in service.methods:
            setattr(self, method.name, _ignoring_caller(getattr(handler, method.name)))


def _ignoring_caller(
    method: Callable[[object], Awaitable[object]],
) -> Callable[[object, None], Awaitable[object]]:
    async def handle(request: object, caller: None) -> object:
        return await method(request)

    return handle


# Far more than any response needs, and little enough for the memory of piped.
MAX_RESPONSE_BYTES = 64 << 20
_LOCAL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
    # A program that starts slowly is found soon after it listens, not after a backoff of seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_Health = health_pb2.HealthCheckResponse

# The path of the Unix socket that our piped wants a plugin to listen on. A program that does so
# announces by it that it is built with this SDK; upstream's ignore the variable.
SOCKET_VARIABLE = "PIPECD_PLUGIN_SOCKET"


def start_arguments(spec: PluginSpec, *, piped: str) -> list[str]:
    """Returns the arguments that upstream's piped adds to the command of a plugin.

    `piped` is the address of its plugin service.
    """
    return ["start", "--piped-plugin-service", piped, "--config", entry_json(spec)]


def entry_json(spec: PluginSpec) -> str:
    """Returns the plugin's entry as JSON, in upstream's form."""
    entry: dict[str, object] = {"name": spec.name, "url": spec.url, "port": spec.port}
    if spec.config:
        entry["config"] = spec.config
    if spec.deploy_targets:
        entry["deployTargets"] = [
            {"name": t.name, **({"labels": t.labels} if t.labels else {}), "config": t.config}
            for t in spec.deploy_targets
        ]
    return json.dumps(entry)


def local_channel(address: str) -> grpc.aio.Channel:
    """Returns a channel to a plugin on this machine: `localhost:PORT` or `unix:PATH`."""
    return grpc.aio.insecure_channel(address, options=_LOCAL_OPTIONS)


async def is_serving(channel: grpc.aio.Channel, seconds: float) -> bool:
    """Asks the health service, or for the list of stages if the plugin has no health service."""
    try:
        await asyncio.wait_for(channel.channel_ready(), seconds)
        health: Any = health_pb2_grpc.HealthStub(channel)
        checked: _Health = await health.Check(health_pb2.HealthCheckRequest(), timeout=seconds)
    except TimeoutError:
        return False
    except grpc.aio.AioRpcError as e:
        if e.code() is not grpc.StatusCode.UNIMPLEMENTED:
            return False
    else:
        return checked.status == _Health.SERVING
    try:
        request = FetchDefinedStagesRequest()
        await DeploymentServiceStub(channel).FetchDefinedStages(request, timeout=seconds)
    except grpc.aio.AioRpcError as e:
        # A plugin that only reports live state has no DeploymentService.
        return e.code() is grpc.StatusCode.UNIMPLEMENTED
    return True
