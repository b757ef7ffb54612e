# SPDX-License-Identifier: Apache-2.0
"""A piped that keeps everything in memory."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pipecd.model.command import CommandKind
from pipecd.model.errors import Conflict, NotFound
from pipecd.model.ids import new_id
from pipecd.observe.metrics import PluginMetrics
from pipecd.proto.model import command_pb2
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2
from pipecd.sdk.host import plain_git_variables
from pipecd.sdk.stage import StageCommandKind

_KINDS = {
    StageCommandKind.APPROVE: CommandKind.APPROVE_STAGE,
    StageCommandKind.SKIP: CommandKind.SKIP_STAGE,
}


class MemoryHost:
    """A piped that keeps everything in memory, for a deployment with one plugin at work."""

    def __init__(self) -> None:
        self.stage_metadata: dict[str, str] = {}
        self.plugin_metadata: dict[str, str] = {}
        self.shared_metadata: dict[str, str] = {}
        self.objects: dict[str, bytes] = {}
        self.tools: dict[str, Path] = {}
        self.blocks: dict[int, LogBlock] = {}
        self.is_log_completed = False
        self.changed_applications: list[str] = []
        self.plugin_metrics = PluginMetrics()
        self._commands: list[command_pb2.Command] = []
        self._told = asyncio.Event()
        self._called = asyncio.Event()

    @property
    def lines(self) -> list[str]:
        """What the stage wrote to its log."""
        return [self.blocks[index].log for index in sorted(self.blocks)]

    def counted(self, name: str, **labels: str) -> float:
        """How often the plugin counted something."""
        return self.plugin_metrics.value(name, labels)

    def tell(self, kind: StageCommandKind, commander: str) -> None:
        """Gives a command to the running stage, as a person would."""
        command = command_pb2.Command(
            id=new_id(), commander=commander, created_at=len(self._commands) + 1
        )
        command.type = command_pb2.Command.Type.ValueType(_KINDS[kind])
        self._commands.append(command)
        self._told.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Waits for something the stage does: a line, a piece of metadata, an object."""
        while not is_so():
            self._called.clear()
            await self._called.wait()

    def watch_commands(self) -> "MemoryHost":
        return self

    def git_variables(self, remote: str) -> Mapping[str, str]:
        return plain_git_variables(remote)

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        self.changed_applications += application_ids
        self._called.set()

    async def wait(self, at_most: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most):
                await self._told.wait()
        self._told.clear()

    def close(self) -> None:
        """Nothing is held."""

    async def InstallTool(
        self, request: host_pb2.InstallToolRequest
    ) -> host_pb2.InstallToolResponse:
        name = f"{request.name}-{request.version}"
        if name not in self.tools:
            raise NotFound(f"the test did not put {name} into `tools`")
        return host_pb2.InstallToolResponse(installed_path=str(self.tools[name]))

    async def ReportStageLogs(
        self, request: host_pb2.ReportStageLogsRequest
    ) -> host_pb2.ReportStageLogsResponse:
        self._keep(request.blocks)
        return host_pb2.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: host_pb2.ReportStageLogsFromLastCheckpointRequest
    ) -> host_pb2.ReportStageLogsFromLastCheckpointResponse:
        self._keep(request.blocks)
        self.is_log_completed = request.completed
        return host_pb2.ReportStageLogsFromLastCheckpointResponse()

    async def GetStageMetadata(
        self, request: host_pb2.GetStageMetadataRequest
    ) -> host_pb2.GetStageMetadataResponse:
        value = self.stage_metadata.get(request.key)
        return host_pb2.GetStageMetadataResponse(value=value or "", found=value is not None)

    async def PutStageMetadata(
        self, request: host_pb2.PutStageMetadataRequest
    ) -> host_pb2.PutStageMetadataResponse:
        self.stage_metadata[request.key] = request.value
        self._called.set()
        return host_pb2.PutStageMetadataResponse()

    async def PutStageMetadataMulti(
        self, request: host_pb2.PutStageMetadataMultiRequest
    ) -> host_pb2.PutStageMetadataMultiResponse:
        self.stage_metadata.update(request.metadata)
        self._called.set()
        return host_pb2.PutStageMetadataMultiResponse()

    async def GetDeploymentPluginMetadata(
        self, request: host_pb2.GetDeploymentPluginMetadataRequest
    ) -> host_pb2.GetDeploymentPluginMetadataResponse:
        value = self.plugin_metadata.get(request.key)
        return host_pb2.GetDeploymentPluginMetadataResponse(
            value=value or "", found=value is not None
        )

    async def PutDeploymentPluginMetadata(
        self, request: host_pb2.PutDeploymentPluginMetadataRequest
    ) -> host_pb2.PutDeploymentPluginMetadataResponse:
        self.plugin_metadata[request.key] = request.value
        self._called.set()
        return host_pb2.PutDeploymentPluginMetadataResponse()

    async def PutDeploymentPluginMetadataMulti(
        self, request: host_pb2.PutDeploymentPluginMetadataMultiRequest
    ) -> host_pb2.PutDeploymentPluginMetadataMultiResponse:
        self.plugin_metadata.update(request.metadata)
        self._called.set()
        return host_pb2.PutDeploymentPluginMetadataMultiResponse()

    async def GetDeploymentSharedMetadata(
        self, request: host_pb2.GetDeploymentSharedMetadataRequest
    ) -> host_pb2.GetDeploymentSharedMetadataResponse:
        value = self.shared_metadata.get(request.key)
        return host_pb2.GetDeploymentSharedMetadataResponse(
            value=value or "", found=value is not None
        )

    async def ListStageCommands(
        self, request: host_pb2.ListStageCommandsRequest
    ) -> host_pb2.ListStageCommandsResponse:
        return host_pb2.ListStageCommandsResponse(commands=self._commands)

    async def GetApplicationSharedObject(
        self, request: host_pb2.GetApplicationSharedObjectRequest
    ) -> host_pb2.GetApplicationSharedObjectResponse:
        if request.key not in self.objects:
            raise NotFound(f"there is no object {request.key}")
        return host_pb2.GetApplicationSharedObjectResponse(object=self.objects[request.key])

    async def PutApplicationSharedObject(
        self, request: host_pb2.PutApplicationSharedObjectRequest
    ) -> host_pb2.PutApplicationSharedObjectResponse:
        self.objects[request.key] = request.object
        self._called.set()
        return host_pb2.PutApplicationSharedObjectResponse()

    def _keep(self, blocks: Iterable[LogBlock]) -> None:
        if self.is_log_completed:
            raise Conflict("the stage was already completed")
        for block in blocks:
            self.blocks.setdefault(block.index, block)
        self._called.set()
