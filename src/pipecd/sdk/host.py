# SPDX-License-Identifier: Apache-2.0
"""The calls that a plugin makes to the piped that runs it.

The methods are the RPCs of upstream's PluginService. A built-in plugin calls the object of its
piped directly, a plugin in its own process goes through `pipecd.sdk.host_client`.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from pipecd.config.rendering import RenderingSpec
from pipecd.observe.metrics import PluginMetrics
from pipecd.program.workers import WorkerPool
from pipecd.proto.plugin import host_pb2 as pb

_SSH = "GIT_SSH_COMMAND"
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")
BASIC_VARIABLES = (
    "PATH",
    "HOME",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    *_PROXIES,
    *map(str.upper, _PROXIES),
)
"""What a program needs to run and to reach the network; none of them is a credential of piped."""
# No transport that starts a program, and no other repository on the disk of piped.
_RENDERING_TRANSPORTS = "git:http:https:ssh"


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
    """The piped as its plugins see it; it exposes `plugin_metrics`.

    `rendering` is the section of the piped file that limits what a repository's content may use,
    and `workers` evaluate such content.
    """

    plugin_metrics: PluginMetrics
    rendering: RenderingSpec
    workers: WorkerPool

    def watch_commands(self) -> CommandWatch: ...

    def live_state_changed(self, application_ids: Collection[str]) -> None:
        """Reports a change of the live state of applications, which piped then requests soon.

        It does not wait. A lost report only delays the change until the next poll.
        """
        ...

    def private_directory(self, plugin: str) -> Path:
        """Returns the directory of a plugin, which outlives piped and which only its user enters.

        It is for caches and for what a stage leaves to the next one. Piped may run on another
        machine tomorrow, so nothing may depend on it.
        """
        ...

    def git_variables(self, remote: str) -> Mapping[str, str]:
        """Returns the environment of a git command for a remote, with the credentials of piped.

        A plugin in its own process gets the SSH configuration of piped, but no password.
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


def create_private_directory(parent: Path, plugin: str) -> Path:
    """Creates the directory of a plugin below `parent`, closed to other users."""
    directory = parent / plugin
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory.chmod(0o700)
    return directory


def default_state_directory() -> Path:
    """Returns the directory of plugins that no workspace of a piped is known for."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "pipecd-plugins"


def plain_git_variables(_remote: str) -> Mapping[str, str]:
    """Returns the environment of this process for git, without prompts."""
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0"}


def program_variables(git: Callable[[str], Mapping[str, str]]) -> dict[str, str]:
    """Returns the environment of a program that may run git itself, such as terraform.

    `git` is `Host.git_variables`. The program gets the SSH command of piped, but no password.
    """
    variables = git("")
    ssh = {_SSH: variables[_SSH]} if _SSH in variables else {}
    return {**os.environ, **ssh}


def named_variables(rendering: RenderingSpec) -> dict[str, str]:
    """Returns the variables of this process that the content of a repository may read."""
    return {name: os.environ[name] for name in rendering.variables if name in os.environ}


def rendering_variables(
    git: Callable[[str], Mapping[str, str]], rendering: RenderingSpec
) -> dict[str, str]:
    """Returns the environment of a program that renders the content of a repository.

    `git` is `Host.git_variables`. A branch that nobody has reviewed decides what such a program
    prints, so it gets none of the other variables of piped.
    """
    inherited = {name: os.environ[name] for name in BASIC_VARIABLES if name in os.environ}
    variables = git("")
    ssh = {_SSH: variables[_SSH]} if _SSH in variables else {}
    return {
        **inherited,
        **ssh,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": _RENDERING_TRANSPORTS,
        **named_variables(rendering),
    }


class WithTools:
    """A context in which a plugin may use tools that piped installs."""

    host: Host

    async def tool(self, name: str, version: str, script: str) -> Path:
        """Returns the path of a tool, installed by the script if it is missing."""
        response = await self.host.InstallTool(
            pb.InstallToolRequest(name=name, version=version, install_script=script)
        )
        return Path(response.installed_path)
