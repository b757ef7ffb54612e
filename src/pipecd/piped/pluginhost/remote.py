# SPDX-License-Identifier: Apache-2.0
"""A plugin in a process of its own, reached over gRPC on this machine."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from pipecd.model.errors import PipecdError, Unavailable, Unsupported
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.deployment_pb2_grpc import DeploymentServiceStub
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.proto.plugin.livestate_pb2_grpc import LivestateServiceStub
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest, GetPlanPreviewResponse
from pipecd.proto.plugin.planpreview_pb2_grpc import PlanPreviewServiceStub

AnswerT = TypeVar("AnswerT")

# A question is answered from files and from the platform, a look at the platform may take longer;
# how long a stage may take is the business of whoever runs it.
_QUESTION, _LOOK = 300.0, 900.0


class Connection(Protocol):
    """The way to one process of a plugin."""

    @property
    def channel(self) -> grpc.aio.Channel: ...

    async def lost(self, error: PipecdError) -> PipecdError:
        """What it means that the process could not be reached, which it was before."""
        ...


class RemotePlugin:
    """Calls the services of a plugin process."""

    # Plugins made with upstream's SDK send what they wrote every five seconds.
    log_lag = 6.0
    # Those cannot tell of changes, and from outside all of them look alike.
    tells_changes = False

    def __init__(self, name: str, connected: Callable[[], Awaitable[Connection]]) -> None:
        """Asks for the way before each call, since the process may be another one by then."""
        self._name, self._connected = name, connected

    @property
    def name(self) -> str:
        return self._name

    async def FetchDefinedStages(
        self, request: pb.FetchDefinedStagesRequest
    ) -> pb.FetchDefinedStagesResponse:
        return await self._ask(
            lambda c: DeploymentServiceStub(c).FetchDefinedStages(request, timeout=_QUESTION)
        )

    async def DetermineVersions(
        self, request: pb.DetermineVersionsRequest
    ) -> pb.DetermineVersionsResponse:
        return await self._ask(
            lambda c: DeploymentServiceStub(c).DetermineVersions(request, timeout=_QUESTION)
        )

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse:
        return await self._ask(
            lambda c: DeploymentServiceStub(c).DetermineStrategy(request, timeout=_QUESTION)
        )

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse:
        return await self._ask(
            lambda c: DeploymentServiceStub(c).BuildPipelineSyncStages(request, timeout=_QUESTION)
        )

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse:
        return await self._ask(
            lambda c: DeploymentServiceStub(c).BuildQuickSyncStages(request, timeout=_QUESTION)
        )

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse:
        return await self._ask(lambda c: DeploymentServiceStub(c).ExecuteStage(request))

    async def GetLivestate(self, request: GetLivestateRequest) -> GetLivestateResponse:
        return await self._ask(
            lambda c: LivestateServiceStub(c).GetLivestate(request, timeout=_LOOK)
        )

    async def GetPlanPreview(self, request: GetPlanPreviewRequest) -> GetPlanPreviewResponse:
        return await self._ask(
            lambda c: PlanPreviewServiceStub(c).GetPlanPreview(request, timeout=_LOOK)
        )

    async def _ask(
        self, call: Callable[[grpc.aio.Channel], grpc.aio.UnaryUnaryCall[Any, AnswerT]]
    ) -> AnswerT:
        connection = await self._connected()
        try:
            # Bytes that are no message come out of gRPC as None.
            answer: AnswerT | None = await call(connection.channel)
        except grpc.aio.AioRpcError as e:
            error, cause = self._error(e), e
        except (asyncio.CancelledError, grpc.aio.UsageError) as e:
            # A channel that is closed cancels its calls; then nobody has told us to stop.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            error, cause = Unavailable(f"plugin {self._name} was disconnected"), e
        else:
            if answer is None:
                raise PipecdError(f"plugin {self._name} answered what nobody can understand")
            return answer
        if isinstance(error, Unavailable):
            error = await connection.lost(error)
        raise error from cause

    def _error(self, error: grpc.aio.AioRpcError) -> PipecdError:
        """An INTERNAL of a plugin is its own failure and not one of the connection."""
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.UNIMPLEMENTED:
                return Unsupported(f"plugin {self._name} does not offer this call")
            case grpc.StatusCode.UNAVAILABLE:
                return Unavailable(f"plugin {self._name} cannot be reached: {details}")
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return Unavailable(f"plugin {self._name} did not answer in time: {details}")
            case _:
                return PipecdError(f"plugin {self._name}: {details}")
