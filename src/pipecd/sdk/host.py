# SPDX-License-Identifier: Apache-2.0
"""The calls that a plugin makes to the piped that runs it.

The methods are the RPCs of upstream's PluginService. A built-in plugin calls the object of its
piped directly, a plugin in a process of its own goes through `pipecd.sdk.host_client`.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from pipecd.observe.metrics import PluginMetrics
from pipecd.proto.plugin import host_pb2 as pb

_SSH = "GIT_SSH_COMMAND"


class CommandWatch(Protocol):
    """Waits for new commands of users."""

    async def wait(self, at_most: float) -> object:
        """Returns at a change since the last call, or after `at_most` seconds."""
        ...

    def close(self) -> None:
        """Ends the watch."""
        ...


class LogSink(Protocol):
    """Receives the lines of a stage log."""

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse: ...

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse: ...


class Host(LogSink, Protocol):
    """The piped as its plugins see it; it exposes `plugin_metrics`."""

    plugin_metrics: PluginMetrics

    def watch_commands(self) -> CommandWatch: ...

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        """What runs for these applications changed, so that their live state is asked for soon.

        It never waits; one that is lost only costs the time until the next look.
        """
        ...

    def git_variables(self, remote: str) -> Mapping[str, str]:
        """The environment of a git program that reads a remote, with what piped proves itself by.

        A plugin in a process of its own gets the way of piped over ssh, and no password.
        """
        ...

    async def InstallTool(self, request: pb.InstallToolRequest) -> pb.InstallToolResponse: ...

    async def GetStageMetadata(
        self, request: pb.GetStageMetadataRequest
    ) -> pb.GetStageMetadataResponse: ...

    async def PutStageMetadata(
        self, request: pb.PutStageMetadataRequest
    ) -> pb.PutStageMetadataResponse: ...

    async def PutStageMetadataMulti(
        self, request: pb.PutStageMetadataMultiRequest
    ) -> pb.PutStageMetadataMultiResponse: ...

    async def GetDeploymentPluginMetadata(
        self, request: pb.GetDeploymentPluginMetadataRequest
    ) -> pb.GetDeploymentPluginMetadataResponse: ...

    async def PutDeploymentPluginMetadata(
        self, request: pb.PutDeploymentPluginMetadataRequest
    ) -> pb.PutDeploymentPluginMetadataResponse: ...

    async def PutDeploymentPluginMetadataMulti(
        self, request: pb.PutDeploymentPluginMetadataMultiRequest
    ) -> pb.PutDeploymentPluginMetadataMultiResponse: ...

    async def GetDeploymentSharedMetadata(
        self, request: pb.GetDeploymentSharedMetadataRequest
    ) -> pb.GetDeploymentSharedMetadataResponse: ...

    async def ListStageCommands(
        self, request: pb.ListStageCommandsRequest
    ) -> pb.ListStageCommandsResponse: ...

    async def GetApplicationSharedObject(
        self, request: pb.GetApplicationSharedObjectRequest
    ) -> pb.GetApplicationSharedObjectResponse: ...

    async def PutApplicationSharedObject(
        self, request: pb.PutApplicationSharedObjectRequest
    ) -> pb.PutApplicationSharedObjectResponse: ...


def plain_git_variables(_remote: str) -> Mapping[str, str]:
    """Returns the environment of this process for git, without prompts."""
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0"}


def program_variables(git: Callable[[str], Mapping[str, str]]) -> dict[str, str]:
    """The environment of a program that may fetch something with git by itself.

    `git` is `Host.git_variables`. The program has the way of piped over ssh, which upstream leaves
    in the files of its user, and no password.
    """
    variables = git("")
    ssh = {_SSH: variables[_SSH]} if _SSH in variables else {}
    return {**os.environ, **ssh}


class WithTools:
    """A context in which a plugin may use tools that piped installs."""

    host: Host

    async def tool(self, name: str, version: str, script: str) -> Path:
        """Returns the path of a tool, installed by the script if it is missing."""
        answer = await self.host.InstallTool(
            pb.InstallToolRequest(name=name, version=version, install_script=script)
        )
        return Path(answer.installed_path)
