# SPDX-License-Identifier: Apache-2.0
"""A plugin in a process of its own, reached over gRPC on this machine."""

from typing import Any, TypeVar

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


class RemotePlugin:
    """Calls the services of a plugin process."""

    # Plugins made with upstream's SDK send what they wrote every five seconds.
    log_lag = 6.0

    def __init__(self, name: str, channel: grpc.aio.Channel) -> None:
        self._name = name
        self._deployment = DeploymentServiceStub(channel)
        self._livestate = LivestateServiceStub(channel)
        self._preview = PlanPreviewServiceStub(channel)

    @property
    def name(self) -> str:
        return self._name

    async def FetchDefinedStages(
        self, request: pb.FetchDefinedStagesRequest
    ) -> pb.FetchDefinedStagesResponse:
        return await self._answer(self._deployment.FetchDefinedStages(request))

    async def DetermineVersions(
        self, request: pb.DetermineVersionsRequest
    ) -> pb.DetermineVersionsResponse:
        return await self._answer(self._deployment.DetermineVersions(request))

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse:
        return await self._answer(self._deployment.DetermineStrategy(request))

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse:
        return await self._answer(self._deployment.BuildPipelineSyncStages(request))

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse:
        return await self._answer(self._deployment.BuildQuickSyncStages(request))

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse:
        return await self._answer(self._deployment.ExecuteStage(request))

    async def GetLivestate(self, request: GetLivestateRequest) -> GetLivestateResponse:
        return await self._answer(self._livestate.GetLivestate(request))

    async def GetPlanPreview(self, request: GetPlanPreviewRequest) -> GetPlanPreviewResponse:
        return await self._answer(self._preview.GetPlanPreview(request))

    async def _answer(self, call: grpc.aio.UnaryUnaryCall[Any, AnswerT]) -> AnswerT:
        try:
            return await call
        except grpc.aio.AioRpcError as e:
            raise self._error(e) from e

    def _error(self, error: grpc.aio.AioRpcError) -> PipecdError:
        """An INTERNAL of a plugin is its own failure and not one of the connection."""
        details = error.details() or error.code().name
        match error.code():
            case grpc.StatusCode.UNIMPLEMENTED:
                return Unsupported(f"plugin {self._name} does not offer this call")
            case grpc.StatusCode.UNAVAILABLE:
                return Unavailable(f"plugin {self._name} cannot be reached: {details}")
            case _:
                return PipecdError(f"plugin {self._name}: {details}")
