# SPDX-License-Identifier: Apache-2.0
"""The context of a running stage, and its result."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pipecd.model.command import API_KEY_NAME, REJECTION_KEY, CommandKind
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import Unavailable
from pipecd.program.run import Finished
from pipecd.program.run import run as run_program
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.sdk.deployment import Deployment, DeployTarget, PluginEntry, Source
from pipecd.sdk.host import Host, WithTools
from pipecd.sdk.log import StageLog
from pipecd.sdk.metadata import ApplicationObjects, DeploymentMetadata, StageMetadata
from pipecd.sdk.options import OptionsT, decode

# The watch usually wakes up earlier.
_POLL_INTERVAL = 5.0


@dataclass(frozen=True)
class StageResult:
    """The result of a stage; the console shows the message."""

    status: StageStatus
    message: str = ""

    @classmethod
    def succeeded(cls, message: str = "") -> "StageResult":
        """Returns a success; the pipeline continues."""
        return cls(StageStatus.SUCCESS, message)

    @classmethod
    def failed(cls, message: str) -> "StageResult":
        """Returns a failure; the deployment stops and is rolled back."""
        return cls(StageStatus.FAILURE, message)

    @classmethod
    def skipped(cls, message: str = "") -> "StageResult":
        """Returns that there was nothing to do; the pipeline continues."""
        return cls(StageStatus.SKIPPED, message)

    @classmethod
    def exited(cls, message: str = "") -> "StageResult":
        """Returns a success that ends the deployment without its remaining stages."""
        return cls(StageStatus.EXITED, message)


class StageCommandKind(Enum):
    """The commands that a user may send to a running stage."""

    APPROVE = "approve"
    SKIP = "skip"
    REJECT = "reject"


@dataclass(frozen=True)
class StageCommand:
    """A command of a user to this stage.

    `reason` says why an approval is rejected, `api_key` is the name of the API key that the user
    sent it with.
    """

    kind: StageCommandKind
    commander: str
    reason: str = ""
    api_key: str = ""


_KINDS: Mapping[int, StageCommandKind] = {
    CommandKind.APPROVE_STAGE: StageCommandKind.APPROVE,
    CommandKind.SKIP_STAGE: StageCommandKind.SKIP,
}


@dataclass(frozen=True, kw_only=True)
class StageContext(WithTools):
    """The context of a stage; stopping the stage cancels `execute`."""

    id: str
    name: str
    index: int
    is_rollback: bool
    deployment: Deployment
    target: Source
    running: Source | None
    targets: tuple[DeployTarget, ...]
    plugin: PluginEntry
    log: StageLog
    config: bytes
    host: Host

    def options(self, options: type[OptionsT]) -> OptionsT:
        """Reads `with` of the stage."""
        return decode(options, self.config, what=f"stage {self.name}")

    @property
    def metadata(self) -> StageMetadata:
        """The metadata of this stage."""
        return StageMetadata(self.host, self.deployment.id, self.id)

    @property
    def shared(self) -> DeploymentMetadata:
        """The metadata that the stages of this plugin share in this deployment."""
        return DeploymentMetadata(self.host, self.deployment.id, self.plugin.name)

    @property
    def objects(self) -> ApplicationObjects:
        """The objects that this plugin stores with the application."""
        return ApplicationObjects(self.host, self.deployment.application_id, self.plugin.name)

    async def commands(self) -> AsyncIterator[StageCommand]:
        """Yields the commands of users to this stage, each once, the oldest first."""
        request = pb.ListStageCommandsRequest(deployment_id=self.deployment.id, stage_id=self.id)
        watch = self.host.watch_commands()
        seen: set[str] = set()
        try:
            while True:
                try:
                    commands = (await self.host.ListStageCommands(request)).commands
                except Unavailable:
                    commands = ()
                for command in sorted(commands, key=lambda command: command.created_at):
                    kind, reason = _KINDS.get(command.type), command.metadata.get(REJECTION_KEY, "")
                    if reason and kind is StageCommandKind.SKIP:
                        kind = StageCommandKind.REJECT
                    if kind is not None and command.id not in seen:
                        seen.add(command.id)
                        api_key = command.metadata.get(API_KEY_NAME, "")
                        yield StageCommand(kind, command.commander, reason, api_key)
                await watch.wait(_POLL_INTERVAL)
        finally:
            watch.close()

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        grace: float = 10,
    ) -> Finished:
        """Runs a program with its output in the log, and stops it with the stage.

        `env` is the whole environment; without it the program inherits that of piped.
        """
        where = cwd or self.target.application_directory
        return await run_program(argv, cwd=where, env=env, on_line=self.log.info, grace=grace)
