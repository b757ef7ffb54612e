# SPDX-License-Identifier: Apache-2.0
"""The client of piped's PluginService, for a plugin in a process of its own."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import grpc.aio
import structlog

from pipecd.observe.metrics import PluginMetrics
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.plugin.host_pb2_grpc import PluginServiceStub
from pipecd.proto.plugin.livestatechanges_pb2 import LiveStateChangedRequest
from pipecd.proto.plugin.livestatechanges_pb2_grpc import LiveStateChangesStub
from pipecd.sdk.host import plain_git_variables
from pipecd.wire.status import from_rpc_error

AnswerT = TypeVar("AnswerT")

# Nothing tells a plugin in another process about new commands, and asking on loopback is cheap.
_ASK_EVERY = 1.0
_TELL_AT_MOST = 10.0

logger = structlog.get_logger()


class PollingWatch:
    """Polls for commands every second."""

    async def wait(self, at_most: float) -> None:
        await asyncio.sleep(min(at_most, _ASK_EVERY))

    def close(self) -> None:
        """Does nothing."""


class RemoteHost:
    """Calls piped's PluginService; metrics stay in this process, for its own admin port."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub, self._changes = PluginServiceStub(channel), LiveStateChangesStub(channel)
        self.plugin_metrics = PluginMetrics()
        # The applications of which piped has not been told yet, and the task that does it.
        self._changed: set[str] = set()
        self._telling: asyncio.Task[None] | None = None

    def watch_commands(self) -> PollingWatch:
        return PollingWatch()

    def git_variables(self, remote: str) -> Mapping[str, str]:
        return plain_git_variables(remote)

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        self._changed.update(application_ids)
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_changes())

    async def _tell_changes(self) -> None:
        """Sends changes; those that arrive during a call are sent with the next."""
        while self._changed:
            told, self._changed = sorted(self._changed), set()
            try:
                await self._changes.LiveStateChanged(
                    LiveStateChangedRequest(application_ids=told), timeout=_TELL_AT_MOST
                )
            except grpc.aio.AioRpcError as e:
                # A piped of upstream does not listen, and every piped asks by itself later.
                logger.debug("piped was not told of a change", error=e.details())

    async def InstallTool(self, request: pb.InstallToolRequest) -> pb.InstallToolResponse:
        return await _answer(self._stub.InstallTool(request))

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        return await _answer(self._stub.ReportStageLogs(request))

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        return await _answer(self._stub.ReportStageLogsFromLastCheckpoint(request))

    async def GetStageMetadata(
        self, request: pb.GetStageMetadataRequest
    ) -> pb.GetStageMetadataResponse:
        return await _answer(self._stub.GetStageMetadata(request))

    async def PutStageMetadata(
        self, request: pb.PutStageMetadataRequest
    ) -> pb.PutStageMetadataResponse:
        return await _answer(self._stub.PutStageMetadata(request))

    async def PutStageMetadataMulti(
        self, request: pb.PutStageMetadataMultiRequest
    ) -> pb.PutStageMetadataMultiResponse:
        return await _answer(self._stub.PutStageMetadataMulti(request))

    async def GetDeploymentPluginMetadata(
        self, request: pb.GetDeploymentPluginMetadataRequest
    ) -> pb.GetDeploymentPluginMetadataResponse:
        return await _answer(self._stub.GetDeploymentPluginMetadata(request))

    async def PutDeploymentPluginMetadata(
        self, request: pb.PutDeploymentPluginMetadataRequest
    ) -> pb.PutDeploymentPluginMetadataResponse:
        return await _answer(self._stub.PutDeploymentPluginMetadata(request))

    async def PutDeploymentPluginMetadataMulti(
        self, request: pb.PutDeploymentPluginMetadataMultiRequest
    ) -> pb.PutDeploymentPluginMetadataMultiResponse:
        return await _answer(self._stub.PutDeploymentPluginMetadataMulti(request))

    async def GetDeploymentSharedMetadata(
        self, request: pb.GetDeploymentSharedMetadataRequest
    ) -> pb.GetDeploymentSharedMetadataResponse:
        return await _answer(self._stub.GetDeploymentSharedMetadata(request))

    async def ListStageCommands(
        self, request: pb.ListStageCommandsRequest
    ) -> pb.ListStageCommandsResponse:
        return await _answer(self._stub.ListStageCommands(request))

    async def GetApplicationSharedObject(
        self, request: pb.GetApplicationSharedObjectRequest
    ) -> pb.GetApplicationSharedObjectResponse:
        return await _answer(self._stub.GetApplicationSharedObject(request))

    async def PutApplicationSharedObject(
        self, request: pb.PutApplicationSharedObjectRequest
    ) -> pb.PutApplicationSharedObjectResponse:
        return await _answer(self._stub.PutApplicationSharedObject(request))


async def _answer(call: grpc.aio.UnaryUnaryCall[Any, AnswerT]) -> AnswerT:
    try:
        return await call
    except grpc.aio.AioRpcError as e:
        raise from_rpc_error(e) from e
