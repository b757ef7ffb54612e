# SPDX-License-Identifier: Apache-2.0
"""A built-in plugin, called directly: no port, no bytes, and yet no message is shared.

Each side gets a copy, so that neither sees what the other changes later, as over the wire.
"""

from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import TypeVar

from google.protobuf.message import Message

from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest, GetPlanPreviewResponse
from pipecd.sdk.plugin import StagePlugin
from pipecd.sdk.process import GROUP, installed_plugin
from pipecd.sdk.serving import PluginServer

_OURS = "pipecd"

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)


def builtin_plugins() -> dict[str, Callable[[], StagePlugin]]:
    """The plugins that are installed beside piped, by name, not loaded yet."""
    return {name: _loader(name) for name in (entry.name for entry in entry_points(group=GROUP))}


def foreign_plugins() -> frozenset[str]:
    """The names of those that somebody else brought, which run in a process of their own."""
    return frozenset(
        entry.name
        for entry in entry_points(group=GROUP)
        if entry.dist is not None and entry.dist.name != _OURS
    )


def _loader(name: str) -> Callable[[], StagePlugin]:
    def load() -> StagePlugin:
        return installed_plugin(name)()

    return load


class LocalPlugin:
    """The server of a plugin in this process; a stopped stage has sent its lines."""

    log_lag = 0.0

    def __init__(self, server: PluginServer) -> None:
        self._server = server

    @property
    def name(self) -> str:
        return self._server.name

    @property
    def tells_changes(self) -> bool:
        return self._server.tells_changes

    async def FetchDefinedStages(
        self, request: pb.FetchDefinedStagesRequest
    ) -> pb.FetchDefinedStagesResponse:
        return await _apart(self._server.FetchDefinedStages, request)

    async def DetermineVersions(
        self, request: pb.DetermineVersionsRequest
    ) -> pb.DetermineVersionsResponse:
        return await _apart(self._server.DetermineVersions, request)

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse:
        return await _apart(self._server.DetermineStrategy, request)

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse:
        return await _apart(self._server.BuildPipelineSyncStages, request)

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse:
        return await _apart(self._server.BuildQuickSyncStages, request)

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse:
        return await _apart(self._server.ExecuteStage, request)

    async def GetLivestate(self, request: GetLivestateRequest) -> GetLivestateResponse:
        return await _apart(self._server.GetLivestate, request)

    async def GetPlanPreview(self, request: GetPlanPreviewRequest) -> GetPlanPreviewResponse:
        return await _apart(self._server.GetPlanPreview, request)


async def _apart(method: Callable[[RequestT], Awaitable[AnswerT]], request: RequestT) -> AnswerT:
    return _copy(await method(_copy(request)))


def _copy(message: RequestT) -> RequestT:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
