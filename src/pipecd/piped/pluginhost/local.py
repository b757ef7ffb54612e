# SPDX-License-Identifier: Apache-2.0
"""A built-in plugin, called directly: no port, no bytes, and yet no message is shared.

Each side gets a copy, so that neither sees what the other changes later, as over the wire.
"""

from collections.abc import Awaitable, Callable
from importlib.metadata import entry_points
from typing import TypeVar

from google.protobuf.message import Message

from pipecd.model.errors import UserMistake
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest, GetPlanPreviewResponse
from pipecd.sdk.plugin import StagePlugin
from pipecd.sdk.serving import PluginServer

GROUP = "pipecd.plugins"

RequestT = TypeVar("RequestT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)


def builtin_plugins() -> dict[str, Callable[[], StagePlugin]]:
    """The plugins that are installed with piped, by name, not loaded yet."""
    return {entry.name: _loader(entry.name) for entry in entry_points(group=GROUP)}


def _loader(name: str) -> Callable[[], StagePlugin]:
    def load() -> StagePlugin:
        (entry,) = entry_points(group=GROUP, name=name)
        plugin = entry.load()
        if not (isinstance(plugin, type) and issubclass(plugin, StagePlugin)):
            raise UserMistake(f"the entry point {name} of {GROUP} is not a class of a plugin")
        return plugin()

    return load


class LocalPlugin:
    """The server of a plugin in this process; a stopped stage has sent its lines."""

    log_lag = 0.0

    def __init__(self, server: PluginServer) -> None:
        self._server = server

    @property
    def name(self) -> str:
        return self._server.name

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
