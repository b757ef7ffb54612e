# SPDX-License-Identifier: Apache-2.0
"""The interface of a plugin, whether it runs in this process or in its own."""

from collections.abc import Sequence
from typing import Protocol

from pipecd.model.errors import PipecdError, Unavailable
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.plugin.livestate_pb2 import GetLivestateRequest, GetLivestateResponse
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewRequest, GetPlanPreviewResponse


class PluginDied(Unavailable):
    """The process of a plugin exited, or stopped answering, during a call.

    It is being restarted: the same call may succeed later. The caller knows whether it may be
    repeated.
    """

    def __init__(self, plugin: str, how: str, *, output: Sequence[str] = ()) -> None:
        last = f", its last output was:\n{chr(10).join(output)}" if output else ""
        super().__init__(f"plugin {plugin} {how}{last}")
        self.plugin, self.how, self.output = plugin, how, tuple(output)


class PluginNotStarted(PipecdError):
    """A plugin, or a deploy target of one, that this piped runs without.

    It is retried: a deployment that has begun waits for it. One that has not begun fails, unless
    the cause `is_temporary`, such as a registry that cannot be reached.
    """

    def __init__(self, message: str, *, is_temporary: bool) -> None:
        super().__init__(message)
        self.is_temporary = is_temporary


class Plugin(Protocol):
    """A plugin, with methods named as the RPCs of upstream's plugin API.

    A call that the plugin does not implement raises `Unsupported`, a failure of the plugin a
    `PipecdError` with its cause, a process that exited `PluginDied`.
    """

    @property
    def name(self) -> str:
        """The name in the configuration of piped."""
        ...

    @property
    def log_lag(self) -> float:
        """For how many seconds log lines of a stopped stage may still arrive."""
        ...

    @property
    def tells_changes(self) -> bool:
        """Whether it reports every change of the live state itself."""
        ...

    @property
    def has_plan_preview(self) -> bool:
        """Whether it may have plan previews."""
        ...

    async def FetchDefinedStages(
        self, request: pb.FetchDefinedStagesRequest
    ) -> pb.FetchDefinedStagesResponse: ...

    async def DetermineVersions(
        self, request: pb.DetermineVersionsRequest
    ) -> pb.DetermineVersionsResponse: ...

    async def DetermineStrategy(
        self, request: pb.DetermineStrategyRequest
    ) -> pb.DetermineStrategyResponse: ...

    async def BuildPipelineSyncStages(
        self, request: pb.BuildPipelineSyncStagesRequest
    ) -> pb.BuildPipelineSyncStagesResponse: ...

    async def BuildQuickSyncStages(
        self, request: pb.BuildQuickSyncStagesRequest
    ) -> pb.BuildQuickSyncStagesResponse: ...

    async def ExecuteStage(self, request: pb.ExecuteStageRequest) -> pb.ExecuteStageResponse: ...

    async def GetLivestate(self, request: GetLivestateRequest) -> GetLivestateResponse: ...

    async def GetPlanPreview(self, request: GetPlanPreviewRequest) -> GetPlanPreviewResponse: ...
