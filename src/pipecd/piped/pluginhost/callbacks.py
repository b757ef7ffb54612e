# SPDX-License-Identifier: Apache-2.0
"""What plugins ask of piped, in one object with the RPCs of upstream's PluginService.

Built-in plugins call it directly, the others through gRPC on loopback. It holds no state but what
plugins count: logs and shared objects go to the control plane, metadata to the deployment at work,
commands come from their mirror.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pipecd.model.deployment import DISPLAY_KEY
from pipecd.model.document import to_json
from pipecd.model.errors import NotFound, UserMistake
from pipecd.observe.metrics import PluginMetrics
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.pluginhost.logs import LogRelay
from pipecd.piped.pluginhost.tools import Tool, Toolbox
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.proto.plugin.livestatechanges_pb2 import (
    LiveStateChangedRequest,
    LiveStateChangedResponse,
)
from pipecd.proto.service import piped_pb2
from pipecd.sdk.host import CommandWatch, Host, plain_git_variables

# The one object that has a place of its own in the first generation.
_ANALYSIS_RESULT = ("analysis", "latest-analysis-result")


class Metadata(Protocol):
    """The metadata of the deployments that are being planned or carried out.

    For any other deployment every method raises `NotFound`.
    """

    def of_stage(self, deployment_id: str, stage_id: str) -> Mapping[str, str]: ...

    def of_plugin(self, deployment_id: str, plugin: str) -> Mapping[str, str]: ...

    def shared(self, deployment_id: str) -> Mapping[str, str]: ...

    async def put_stage(
        self, deployment_id: str, stage_id: str, values: Mapping[str, str]
    ) -> None: ...

    async def put_plugin(
        self, deployment_id: str, plugin: str, values: Mapping[str, str]
    ) -> None: ...


class Watch(Protocol):
    """Remembers whether something changed since it was last waited for."""

    async def wait(self, at_most: float) -> bool: ...


WatchT = TypeVar("WatchT", bound=Watch)

_LARGEST_METADATA = 64 << 10


class Changes(Protocol[WatchT]):
    """Where one can wait for changes."""

    def watch(self) -> WatchT: ...

    def remove(self, watch: WatchT) -> None: ...


class StageCommands(Protocol):
    """The commands that people gave to running stages."""

    @property
    def changes(self) -> Changes[Any]: ...

    def for_stage(self, deployment_id: str, stage_id: str) -> Sequence[Command]: ...


class _CommandWatch:
    """One plugin's watch over the commands."""

    def __init__(self, changes: Changes[Any]) -> None:
        self._changes, self._watch = changes, changes.watch()

    async def wait(self, at_most: float) -> bool:
        return await self._watch.wait(at_most)

    def close(self) -> None:
        self._changes.remove(self._watch)


class Callbacks(LogRelay):
    """Answers the calls of every plugin."""

    def __init__(
        self,
        api: ControlPlaneClient,
        *,
        commands: StageCommands,
        metadata: Metadata,
        tools: Toolbox,
        logs: Callable[[str], Path] | None = None,
        git: Callable[[str], Mapping[str, str]] = plain_git_variables,
    ) -> None:
        super().__init__(api, logs=logs)
        self._git = git
        self.plugin_metrics = PluginMetrics()
        self._commands, self._metadata, self._tools = commands, metadata, tools
        self.on_live_state: Callable[[Collection[str]], None] = _nobody_looks

    def watch_commands(self) -> CommandWatch:
        """Wakes a plugin in this process as soon as a command arrives."""
        return _CommandWatch(self._commands.changes)

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        """Tells those who look at what runs."""
        self.on_live_state(application_ids)

    def git_variables(self, remote: str) -> Mapping[str, str]:
        """Lets git of a plugin in this process read what piped itself may read."""
        return self._git(remote)

    async def InstallTool(self, request: pb.InstallToolRequest) -> pb.InstallToolResponse:
        tool = Tool(request.name, request.version, request.install_script)
        return pb.InstallToolResponse(installed_path=str(await self._tools.installed(tool)))

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
        kept = _bearable(values)
        if (shown := kept.get(DISPLAY_KEY)) is not None:
            # The rest is for programs, which would stumble over a mask.
            kept[DISPLAY_KEY] = self.masks.hide(deployment_id, shown)
        await self._metadata.put_stage(deployment_id, stage_id, kept)

    async def GetDeploymentPluginMetadata(
        self, request: pb.GetDeploymentPluginMetadataRequest
    ) -> pb.GetDeploymentPluginMetadataResponse:
        known = self._metadata.of_plugin(request.deployment_id, request.plugin_name)
        value = known.get(request.key)
        return pb.GetDeploymentPluginMetadataResponse(value=value or "", found=value is not None)

    async def PutDeploymentPluginMetadata(
        self, request: pb.PutDeploymentPluginMetadataRequest
    ) -> pb.PutDeploymentPluginMetadataResponse:
        values = _bearable({request.key: request.value})
        await self._metadata.put_plugin(request.deployment_id, request.plugin_name, values)
        return pb.PutDeploymentPluginMetadataResponse()

    async def PutDeploymentPluginMetadataMulti(
        self, request: pb.PutDeploymentPluginMetadataMultiRequest
    ) -> pb.PutDeploymentPluginMetadataMultiResponse:
        values = _bearable(request.metadata)
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
        asked = piped_pb2.GetApplicationSharedObjectRequest(
            application_id=request.application_id, plugin_name=request.plugin_name, key=request.key
        )
        try:
            kept = (await self._api.get_application_shared_object(asked)).object
        except NotFound:
            if (request.plugin_name, request.key) != _ANALYSIS_RESULT:
                raise
            kept = await self._analysis_result(request.application_id)
        return pb.GetApplicationSharedObjectResponse(object=kept)

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

    async def _analysis_result(self, application_id: str) -> bytes:
        """What a piped of the first generation has left for the next analysis."""
        answer = await self._api.get_latest_analysis_result(
            piped_pb2.GetLatestAnalysisResultRequest(application_id=application_id)
        )
        return to_json(answer.analysis_result).encode()


class LiveStateChanges:
    """Hears of changes from plugins in processes of their own, as the others tell them directly."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def LiveStateChanged(self, request: LiveStateChangedRequest) -> LiveStateChangedResponse:
        self._host.live_state_changed(request.application_ids)
        return LiveStateChangedResponse()


def _nobody_looks(application_ids: Collection[str]) -> None:
    """Nobody asked to be told about live states."""


def _bearable(values: Mapping[str, str]) -> dict[str, str]:
    """Metadata is part of the deployment that everybody reads, so a plugin may not fill it up."""
    for key, value in values.items():
        if (size := len(key) + len(value)) > _LARGEST_METADATA:
            raise UserMistake(
                f"the metadata {key[:50]} has {size} characters, at most {_LARGEST_METADATA} fit",
                hint="keep large things as an object of the application",
            )
    return dict(values)
