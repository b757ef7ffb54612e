# SPDX-License-Identifier: Apache-2.0
"""A plugin in this process, called without a port and without serialisation.

Messages are copied in both directions, so that neither side sees later changes of the other.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.metadata import entry_points
from typing import TypeVar

from google.protobuf.message import Message

from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest, GetPlanPreviewResponse
from pipecd.sdk.plugin import StagePlugin
from pipecd.sdk.process import GROUP, installed_plugin
from pipecd.sdk.serving import PluginServer

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def builtin_plugins() -> dict[str, Callable[[], StagePlugin]]:
    """Returns the installed plugins by name; they are imported when they are called."""
    return {entry.name: partial(_load, entry.name) for entry in entry_points(group=GROUP)}


def third_party_plugins() -> frozenset[str]:
    """Returns the names of plugins of other packages, which run in processes of their own."""
    return frozenset(
        entry.name
        for entry in entry_points(group=GROUP)
        if entry.dist is not None and entry.dist.name != "pipecd"
    )


def _load(name: str) -> StagePlugin:
    return installed_plugin(name)()


class LocalPlugin:
    """Calls the server of a plugin in this process."""

    # A stopped stage has sent all its lines.
    log_lag = 0.0

    def __init__(self, server: PluginServer) -> None:
        self._server = server

    @property
    def name(self) -> str:
        return self._server.name

    @property
    def tells_changes(self) -> bool:
        return self._server.tells_changes

    @property
    def has_plan_preview(self) -> bool:
        return self._server.has_plan_preview

    async def FetchDefinedStages(
        self, request: pb.FetchDefinedStagesRequest
    ) -> pb.FetchDefinedStagesResponse:
        return await _call(self._server.FetchDefinedStages, request)

    async def DetermineVersions(
        self, request: pb.DetermineVersionsRequest
    ) -> pb.DetermineVersionsResponse:
        return await _call(self._server.DetermineVersions, request)

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse:
        return await _call(self._server.DetermineStrategy, request)

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse:
        return await _call(self._server.BuildPipelineSyncStages, request)

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse:
        return await _call(self._server.BuildQuickSyncStages, request)

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse:
        return await _call(self._server.ExecuteStage, request)

    async def GetLivestate(self, request: GetLivestateRequest) -> GetLivestateResponse:
        return await _call(self._server.GetLivestate, request)

    async def GetPlanPreview(self, request: GetPlanPreviewRequest) -> GetPlanPreviewResponse:
        return await _call(self._server.GetPlanPreview, request)


async def _call(method: Callable[[RequestT], Awaitable[ResponseT]], request: RequestT) -> ResponseT:
    return _copy(await method(_copy(request)))


def _copy(message: RequestT) -> RequestT:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
