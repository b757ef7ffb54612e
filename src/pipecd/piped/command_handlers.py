# SPDX-License-Identifier: Apache-2.0
"""Handles the commands that no deployment, trigger or plan preview handles.

These are: restart piped, approve or skip a stage that no longer runs, and commands for applications
that this piped does not deploy. Upstream's piped leaves the latter two unhandled.
"""

import asyncio
from dataclasses import dataclass, field

import structlog

from pipecd.model.command import REASON_KEY, CommandKind, CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Denied, NotFound, PipecdError, UserMistake
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.plan.stage_commands import failure_reason
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import GetDeploymentRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_RESYNC = 60.0
STAGE_CHECK_INTERVAL = 10.0
_UNKNOWN_CHECK_INTERVAL = 0.2


class RestartRequested(Exception):
    """A user requested a restart, and the control plane has the result of the command."""


class RestartHandler:
    """Ends piped when a user requests a restart; its supervisor starts it again."""

    def __init__(self, commands: CommandCache) -> None:
        self._commands = commands

    async def run(self) -> None:
        """Raises `RestartRequested` as soon as the result of such a command was accepted.

        A command whose result is refused would restart piped again and again.
        """
        watch, is_accepted = self._commands.changes.watch(), False
        while True:
            for command in self._commands.of_kind(CommandKind.RESTART_PIPED):
                log.info("restart requested", command=command.id, commander=command.commander)
                output = command.id.encode()
                if await self._commands.report(command, CommandStatus.SUCCEEDED, output=output):
                    is_accepted = True
            if is_accepted:
                raise RestartRequested
            await watch.wait(_RESYNC)


@dataclass(frozen=True)
class CommandResult:
    """The result of a command, with the reason if it failed."""

    status: CommandStatus
    reason: str = ""


def stage_command_result(command: Command, deployment: Deployment | None) -> CommandResult | None:
    """Returns the result of a command for a stage; None while the stage may still handle it."""
    if deployment is None:
        return CommandResult(CommandStatus.FAILED, "the deployment does not exist")
    stage = next((one for one in deployment.stages if one.id == command.stage_id), None)
    if stage is None:
        if DeploymentStatus(deployment.status) is DeploymentStatus.PENDING:
            return None
        return CommandResult(CommandStatus.FAILED, "the deployment has no such stage")
    status = StageStatus(stage.status)
    if not status.is_completed and not DeploymentStatus(deployment.status).is_completed:
        return None
    if reason := failure_reason(command, stage, status):
        return CommandResult(CommandStatus.FAILED, reason)
    return CommandResult(CommandStatus.SUCCEEDED)


@dataclass(kw_only=True)
class StageCommandHandler:
    """Reports commands for stages that have ended.

    A running stage handles its commands itself. It cannot if it ended before piped was restarted,
    or in the moment the command arrived.
    """

    api: ControlPlaneClient
    commands: CommandCache
    _suspects: set[str] = field(init=False, default_factory=set[str])
    """Commands whose stage had ended at the last check, which its run may be about to report."""

    async def run(self) -> None:
        watch = self.commands.changes.watch()
        while True:
            waiting = self.commands.of_kind(CommandKind.APPROVE_STAGE, CommandKind.SKIP_STAGE)
            try:
                await self._check(waiting)
            except PipecdError as e:
                log.warning("commands for stages not checked, retrying later", error=str(e))
            if waiting:
                await asyncio.sleep(STAGE_CHECK_INTERVAL)
            else:
                await watch.wait(_RESYNC)

    async def _check(self, waiting: tuple[Command, ...]) -> None:
        results: dict[str, CommandResult] = {}
        for command in waiting:
            try:
                request = GetDeploymentRequest(id=command.deployment_id)
                deployment = (await self.api.get_deployment(request)).deployment
            except (NotFound, Denied, UserMistake):
                deployment = None
            if (result := stage_command_result(command, deployment)) is not None:
                results[command.id] = result
        for command in waiting:
            result = results.get(command.id)
            if (
                result is not None
                and command.id in self._suspects
                and self.commands.is_unhandled(command)
            ):
                log.info(
                    "command handled for a stage that has ended",
                    command=command.id,
                    deployment=command.deployment_id,
                    reason=result.reason,
                )
                metadata = {REASON_KEY: result.reason} if result.reason else {}
                await self.commands.report(command, result.status, metadata=metadata)
        self._suspects = set(results)


class UnknownApplicationHandler:
    """Rejects commands for applications that this piped does not deploy."""

    def __init__(self, commands: CommandCache, applications: ApplicationCache) -> None:
        self._commands, self._applications = commands, applications
        # How many polls of the applications had succeeded when a command was first seen.
        self._first_seen: dict[str, int] = {}

    async def run(self) -> None:
        watch = watch_any(self._commands.changes, self._applications.changes)
        await self._applications.wait_until_loaded()
        while True:
            unknown = [
                command
                for command in self._commands.of_kind(
                    CommandKind.SYNC_APPLICATION, CommandKind.CHAIN_SYNC_APPLICATION
                )
                if self._applications.get(command.application_id) is None
            ]
            if any(command.id not in self._first_seen for command in unknown):
                # The application may be newer than the cached list.
                self._applications.refresh_soon()
            polls = self._applications.poll_count
            self._first_seen = {c.id: self._first_seen.get(c.id, polls) for c in unknown}
            for command in unknown:
                if polls > self._first_seen[command.id]:
                    await self._commands.reject(
                        command, "the application is unknown to this piped, or disabled"
                    )
            # A poll that changes nothing does not notify.
            await watch.wait(_UNKNOWN_CHECK_INTERVAL if unknown else _RESYNC)
