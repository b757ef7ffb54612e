# SPDX-License-Identifier: Apache-2.0
"""The client of piped's PluginService, for a plugin in its own process."""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

import grpc.aio
import structlog

from pipecd.config.rendering import RenderingSpec
from pipecd.model.errors import Unavailable
from pipecd.observe.metrics import PluginMetrics
from pipecd.program.workers import WorkerPool
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.plugin.host_pb2_grpc import PluginServiceStub
from pipecd.proto.plugin.livestatechanges_pb2 import LiveStateChangedRequest
from pipecd.proto.plugin.livestatechanges_pb2_grpc import LiveStateChangesStub
from pipecd.sdk.host import (
    create_private_directory,
    default_state_directory,
    plain_git_variables,
)
from pipecd.sdk.workers import worker_limits
from pipecd.wire.status import from_rpc_error

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

# The protocol does not push new commands, and polling on loopback is cheap.
_POLL_INTERVAL = 1.0
_REPORT_TIMEOUT = 10.0
# The section `rendering` of the piped file, as JSON; upstream's piped sets no such variable.
RENDERING_VARIABLE = "PIPECD_RENDERING"

logger = structlog.get_logger()


class PollingWatch:
    """Polls for commands every second."""

    async def wait(self, at_most: float) -> None:
        await asyncio.sleep(min(at_most, _POLL_INTERVAL))

    def close(self) -> None:
        """Does nothing."""


class RemoteHost:
    """Calls piped's PluginService; metrics stay in this process, for its own admin port."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub, self._changes = PluginServiceStub(channel), LiveStateChangesStub(channel)
        self.plugin_metrics = PluginMetrics()
        self.rendering = RenderingSpec.model_validate_json(os.environ.get(RENDERING_VARIABLE, "{}"))
        self.workers = WorkerPool(worker_limits(self.rendering))
        # The applications whose changes are not reported yet, and the task that reports them.
        self._changed: set[str] = set()
        self._reporting: asyncio.Task[None] | None = None

    def watch_commands(self) -> PollingWatch:
        return PollingWatch()

    def private_directory(self, plugin: str) -> Path:
        return create_private_directory(default_state_directory(), plugin)

    def git_variables(self, remote: str) -> Mapping[str, str]:
        return plain_git_variables(remote)

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        self._changed.update(application_ids)
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.create_task(self._report_changes())

    async def _report_changes(self) -> None:
        """Reports changes; those that arrive during a call are sent with the next."""
        while self._changed:
            application_ids, self._changed = sorted(self._changed), set()
            try:
                await self._changes.LiveStateChanged(
                    LiveStateChangedRequest(application_ids=application_ids),
                    timeout=_REPORT_TIMEOUT,
                )
            except grpc.aio.AioRpcError as e:
                # Upstream's piped does not offer this RPC, and every piped polls anyway.
                logger.debug("live state change not reported to piped", error=e.details())

    async def InstallTool(self, request: pb.InstallToolRequest) -> pb.InstallToolResponse:
        return await _call(self._stub.InstallTool, request)

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        return await _call(self._stub.ReportStageLogs, request)

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        return await _call(self._stub.ReportStageLogsFromLastCheckpoint, request)

    async def GetStageMetadata(
        self, request: pb.GetStageMetadataRequest
    ) -> pb.GetStageMetadataResponse:
        return await _call(self._stub.GetStageMetadata, request)

    async def PutStageMetadata(
        self, request: pb.PutStageMetadataRequest
    ) -> pb.PutStageMetadataResponse:
        return await _call(self._stub.PutStageMetadata, request)

    async def PutStageMetadataMulti(
        self, request: pb.PutStageMetadataMultiRequest
    ) -> pb.PutStageMetadataMultiResponse:
        return await _call(self._stub.PutStageMetadataMulti, request)

    async def GetDeploymentPluginMetadata(
        self, request: pb.GetDeploymentPluginMetadataRequest
    ) -> pb.GetDeploymentPluginMetadataResponse:
        return await _call(self._stub.GetDeploymentPluginMetadata, request)

    async def PutDeploymentPluginMetadata(
        self, request: pb.PutDeploymentPluginMetadataRequest
    ) -> pb.PutDeploymentPluginMetadataResponse:
        return await _call(self._stub.PutDeploymentPluginMetadata, request)

    async def PutDeploymentPluginMetadataMulti(
        self, request: pb.PutDeploymentPluginMetadataMultiRequest
    ) -> pb.PutDeploymentPluginMetadataMultiResponse:
        return await _call(self._stub.PutDeploymentPluginMetadataMulti, request)

    async def GetDeploymentSharedMetadata(
        self, request: pb.GetDeploymentSharedMetadataRequest
    ) -> pb.GetDeploymentSharedMetadataResponse:
        return await _call(self._stub.GetDeploymentSharedMetadata, request)

    async def ListStageCommands(
        self, request: pb.ListStageCommandsRequest
    ) -> pb.ListStageCommandsResponse:
        return await _call(self._stub.ListStageCommands, request)

    async def GetApplicationSharedObject(
        self, request: pb.GetApplicationSharedObjectRequest
    ) -> pb.GetApplicationSharedObjectResponse:
        return await _call(self._stub.GetApplicationSharedObject, request)

    async def PutApplicationSharedObject(
        self, request: pb.PutApplicationSharedObjectRequest
    ) -> pb.PutApplicationSharedObjectResponse:
        return await _call(self._stub.PutApplicationSharedObject, request)


async def _call(
    rpc: Callable[[RequestT], grpc.aio.UnaryUnaryCall[RequestT, ResponseT]], request: RequestT
) -> ResponseT:
    try:
        return await rpc(request)
    except grpc.aio.AioRpcError as e:
        raise from_rpc_error(e) from e
    except grpc.aio.UsageError as e:
        # The program of the plugin ends while one of its stages still writes its log.
        raise Unavailable("the connection to piped is closed, the plugin ends") from e
