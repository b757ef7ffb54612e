# SPDX-License-Identifier: Apache-2.0
"""The gRPC client of a plugin that runs in a process of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio

from pipecd.model.errors import PipecdError, Unavailable, Unsupported
from pipecd.piped.pluginhost.process import PluginInstance
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.proto.plugin.livestate_pb2_grpc import LivestateServiceStub
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest, GetPlanPreviewResponse
from pipecd.proto.plugin.planpreview_pb2_grpc import PlanPreviewServiceStub
from pipecd.wire.cancellation import watch_cancellation

ResponseT = TypeVar("ResponseT")

# Deadlines in seconds. Reading a platform takes longer than planning; a stage has no deadline here,
# its caller stops it.
_DEADLINE, _LIVE_DEADLINE = 300.0, 900.0


class RemotePlugin:
    """Calls the services of a plugin process."""

    # Plugins built with upstream's SDK send their log lines every five seconds.
    log_lag = 6.0
    # Upstream's plugins cannot report changes, and a process does not say which SDK it uses.
    tells_changes = False
    # Only a call can tell.
    has_plan_preview = True

    def __init__(self, name: str, connect: Callable[[], Awaitable[PluginInstance]]) -> None:
        """`connect` is called before each call, since the process may have been restarted."""
        self._name, self._connect = name, connect

    @property
    def name(self) -> str:
        return self._name

    async def FetchDefinedStages(
        self, request: pb.FetchDefinedStagesRequest
    ) -> pb.FetchDefinedStagesResponse:
        return await self._call(
            lambda c: DeploymentServiceStub(c).FetchDefinedStages(request, timeout=_DEADLINE)
        )

    async def DetermineVersions(
        self, request: pb.DetermineVersionsRequest
    ) -> pb.DetermineVersionsResponse:
        return await self._call(
            lambda c: DeploymentServiceStub(c).DetermineVersions(request, timeout=_DEADLINE)
        )

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse:
        return await self._call(
            lambda c: DeploymentServiceStub(c).DetermineStrategy(request, timeout=_DEADLINE)
        )

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse:
        return await self._call(
            lambda c: DeploymentServiceStub(c).BuildPipelineSyncStages(request, timeout=_DEADLINE)
        )

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse:
        return await self._call(
            lambda c: DeploymentServiceStub(c).BuildQuickSyncStages(request, timeout=_DEADLINE)
        )

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse:
        return await self._call(lambda c: DeploymentServiceStub(c).ExecuteStage(request))

    async def GetLivestate(self, request: GetLivestateRequest) -> GetLivestateResponse:
        return await self._call(
            lambda c: LivestateServiceStub(c).GetLivestate(request, timeout=_LIVE_DEADLINE)
        )

    async def GetPlanPreview(self, request: GetPlanPreviewRequest) -> GetPlanPreviewResponse:
        return await self._call(
            lambda c: PlanPreviewServiceStub(c).GetPlanPreview(request, timeout=_LIVE_DEADLINE)
        )

    async def _call(
        self, call: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryCall[Any, ResponseT]]
    ) -> ResponseT:
        instance = await self._connect()
        is_cancelled = watch_cancellation()
        try:
            # gRPC returns None for bytes that it cannot decode.
            response: ResponseT | None = await call(instance.channel)
        except grpc.aio.AioRpcError as e:
            error, cause = self._error(e), e
        except (asyncio.CancelledError, grpc.aio.UsageError) as e:
            # A channel that is closed cancels its calls, although this task was not cancelled.
            if is_cancelled():
                raise
            error, cause = Unavailable(f"plugin {self._name} was disconnected"), e
        else:
            if response is None:
                raise PipecdError(f"plugin {self._name} returned a response that cannot be decoded")
            return response
        if isinstance(error, Unavailable):
            error = await instance.connection_lost(error)
        raise error from cause

    def _error(self, error: grpc.aio.AioRpcError) -> PipecdError:
        """Returns our error; INTERNAL is a failure of the plugin, not of the connection."""
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.UNIMPLEMENTED:
                return Unsupported(f"plugin {self._name} does not implement this call")
            case grpc.StatusCode.UNAVAILABLE:
                return Unavailable(f"plugin {self._name} cannot be reached: {details}")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return Unavailable(f"plugin {self._name} did not answer in time: {details}")
            case _:
                return PipecdError(f"plugin {self._name}: {details}")
