# SPDX-License-Identifier: Apache-2.0
"""The calls of plugins to piped: upstream's PluginService.

Built-in plugins call it directly, the others through gRPC on loopback. Logs and shared objects go
to the control plane, metadata to the deployment in progress; commands come from the command cache.
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pipecd.config.rendering import RenderingSpec
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.deployment import APPROVED_USERS_KEY, DISPLAY_KEY
from pipecd.model.document import to_json
from pipecd.model.errors import NotFound, UserMistake
from pipecd.observe.metrics import PluginMetrics
from pipecd.piped.cache.changes import Changes
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.stage_logs import LogRelay
from pipecd.piped.pluginhost.tool_registry import Tool, ToolRegistry
from pipecd.program.workers import WorkerPool
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.plugin.livestatechanges_pb2 import (
    LiveStateChangedRequest,
    LiveStateChangedResponse,
)
from pipecd.proto.service import piped_pb2
from pipecd.sdk.host import (
    CommandWatch,
    Host,
    create_private_directory,
    default_state_directory,
    plain_git_variables,
)
from pipecd.sdk.workers import worker_limits

# The shared object that v0 stores with an RPC of its own.
_ANALYSIS_RESULT = ("analysis", "latest-analysis-result")


_MAX_METADATA_LENGTH = 64 << 10


class _CommandWatch:
    """Wakes one plugin when commands arrive."""

    def __init__(self, changes: Changes) -> None:
        self._changes, self._watch = changes, changes.watch()

    async def wait(self, at_most: float) -> bool:
        return await self._watch.wait(at_most)

    def close(self) -> None:
        self._changes.remove(self._watch)


class Callbacks(LogRelay):
    """Handles the calls of all plugins."""

    def __init__(
        self,
        api: ControlPlaneClient,
        *,
        commands: CommandCache,
        metadata: MetadataStore,
        tools: ToolRegistry,
        logs: Callable[[str], Path] | None = None,
        git: Callable[[str], Mapping[str, str]] = plain_git_variables,
        rendering: RenderingSpec | None = None,
        workers: WorkerPool | None = None,
    ) -> None:
        super().__init__(api, logs=logs)
        self._git = git
        self.rendering = rendering or RenderingSpec()
        self.workers = workers or WorkerPool(worker_limits(self.rendering))
        self.plugin_metrics = PluginMetrics()
        self._commands, self._metadata, self._tools = commands, metadata, tools
        self.plugin_directories = default_state_directory()
        self.on_live_state_changed: Callable[[Collection[str]], None] = lambda _: None

    def watch_commands(self) -> CommandWatch:
        """Returns a watch that wakes a plugin in this process when a command arrives."""
        return _CommandWatch(self._commands.changes)

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        """Passes a change of the live state on to the live state watchers."""
        self.on_live_state_changed(application_ids)

    def private_directory(self, plugin: str) -> Path:
        """Returns the directory of a plugin in the workspace."""
        return create_private_directory(self.plugin_directories, plugin)

    def git_variables(self, remote: str) -> Mapping[str, str]:
        """Returns the environment with which git of a plugin has the access of piped."""
        return self._git(remote)

    async def InstallTool(self, request: pb.InstallToolRequest) -> pb.InstallToolResponse:
        tool = Tool(request.name, request.version, request.install_script)
        return pb.InstallToolResponse(installed_path=str(await self._tools.install(tool)))

    async def GetStageMetadata(
        self, request: pb.GetStageMetadataRequest
    ) -> pb.GetStageMetadataResponse:
        value = self._metadata.of_stage(request.deployment_id, request.stage_id).get(request.key)
        return pb.GetStageMetadataResponse(value=value or "", found=value is not None)

    async def PutStageMetadata(
        self, request: pb.PutStageMetadataRequest
    ) -> pb.PutStageMetadataResponse:
        await self._put_stage(request.deployment_id, request.stage_id, {request.key: request.value})
        return pb.PutStageMetadataResponse()

    async def PutStageMetadataMulti(
        self, request: pb.PutStageMetadataMultiRequest
    ) -> pb.PutStageMetadataMultiResponse:
        await self._put_stage(request.deployment_id, request.stage_id, request.metadata)
        return pb.PutStageMetadataMultiResponse()

    async def _put_stage(
        self, deployment_id: str, stage_id: str, values: Mapping[str, str]
    ) -> None:
        values = _validated(values)
        if (displayed := values.get(DISPLAY_KEY)) is not None:
            # The other values are read by programs, which need them unmasked.
            values[DISPLAY_KEY] = self.masks.hide(deployment_id, displayed)
        await self._metadata.put_stage(deployment_id, stage_id, values)
        if (approved := values.get(APPROVED_USERS_KEY)) is not None:
            await self._report_approvals(deployment_id, stage_id, approved)

    async def _report_approvals(self, deployment_id: str, stage_id: str, approved: str) -> None:
        """Reports the approvals that the stage has counted, although it may wait for others."""
        # Names may contain commas.
        listed = f", {approved}, "
        for command in self._commands.for_stage(deployment_id, stage_id):
            is_approval = command.type == CommandKind.APPROVE_STAGE
            if is_approval and f", {command.commander}, " in listed:
                await self._commands.report(command, CommandStatus.SUCCEEDED)

    async def GetDeploymentPluginMetadata(
        self, request: pb.GetDeploymentPluginMetadataRequest
    ) -> pb.GetDeploymentPluginMetadataResponse:
        metadata = self._metadata.of_plugin(request.deployment_id, request.plugin_name)
        value = metadata.get(request.key)
        return pb.GetDeploymentPluginMetadataResponse(value=value or "", found=value is not None)

    async def PutDeploymentPluginMetadata(
        self, request: pb.PutDeploymentPluginMetadataRequest
    ) -> pb.PutDeploymentPluginMetadataResponse:
        values = _validated({request.key: request.value})
        await self._metadata.put_plugin(request.deployment_id, request.plugin_name, values)
        return pb.PutDeploymentPluginMetadataResponse()

    async def PutDeploymentPluginMetadataMulti(
        self, request: pb.PutDeploymentPluginMetadataMultiRequest
    ) -> pb.PutDeploymentPluginMetadataMultiResponse:
        values = _validated(request.metadata)
        await self._metadata.put_plugin(request.deployment_id, request.plugin_name, values)
        return pb.PutDeploymentPluginMetadataMultiResponse()

    async def GetDeploymentSharedMetadata(
        self, request: pb.GetDeploymentSharedMetadataRequest
    ) -> pb.GetDeploymentSharedMetadataResponse:
        value = self._metadata.shared(request.deployment_id).get(request.key)
        return pb.GetDeploymentSharedMetadataResponse(value=value or "", found=value is not None)

    async def ListStageCommands(
        self, request: pb.ListStageCommandsRequest
    ) -> pb.ListStageCommandsResponse:
        commands = self._commands.for_stage(request.deployment_id, request.stage_id)
        return pb.ListStageCommandsResponse(commands=commands)

    async def GetApplicationSharedObject(
        self, request: pb.GetApplicationSharedObjectRequest
    ) -> pb.GetApplicationSharedObjectResponse:
        forwarded = piped_pb2.GetApplicationSharedObjectRequest(
            application_id=request.application_id, plugin_name=request.plugin_name, key=request.key
        )
        try:
            stored = (await self._api.get_application_shared_object(forwarded)).object
        except NotFound:
            if (request.plugin_name, request.key) != _ANALYSIS_RESULT:
                raise
            # A v0 piped may have left its result for the next analysis.
            response = await self._api.get_latest_analysis_result(
                piped_pb2.GetLatestAnalysisResultRequest(application_id=request.application_id)
            )
            stored = to_json(response.analysis_result).encode()
        return pb.GetApplicationSharedObjectResponse(object=stored)

    async def PutApplicationSharedObject(
        self, request: pb.PutApplicationSharedObjectRequest
    ) -> pb.PutApplicationSharedObjectResponse:
        await self._api.put_application_shared_object(
            piped_pb2.PutApplicationSharedObjectRequest(
                application_id=request.application_id,
                plugin_name=request.plugin_name,
                key=request.key,
                object=request.object,
            )
        )
        return pb.PutApplicationSharedObjectResponse()


class LiveStateChanges:
    """Receives changes of the live state from plugins in processes of their own."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def LiveStateChanged(self, request: LiveStateChangedRequest) -> LiveStateChangedResponse:
        self._host.live_state_changed(request.application_ids)
        return LiveStateChangedResponse()


def _validated(values: Mapping[str, str]) -> dict[str, str]:
    """Refuses large values: metadata is part of the deployment, which is read all the time."""
    for key, value in values.items():
        if (size := len(key) + len(value)) > _MAX_METADATA_LENGTH:
            raise UserMistake(
                f"the metadata {key[:50]} has {size} characters, at most {_MAX_METADATA_LENGTH} "
                "are allowed",
                hint="store large values as a shared object of the application",
            )
    return dict(values)
