# SPDX-License-Identifier: Apache-2.0
"""Answers what people told a stage that no longer listens.

A stage that runs hears its commands itself and answers them when it ends. One that ended in an
earlier life of piped, or in the moment the command was given, cannot.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Denied, NotFound, PipecdError, UserMistake
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.mirror.commands import REASON_KEY, CommandMirror
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import GetDeploymentRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WAIT = 60.0
LOOK_EVERY = 10.0


@dataclass(frozen=True)
class Verdict:
    """What became of a command, and why it failed if it did."""

    status: CommandStatus
    reason: str = ""


def verdict(command: Command, deployment: Deployment | None) -> Verdict | None:
    """The answer to a command to a stage; None while the stage may still hear it."""
    if deployment is None:
        return Verdict(CommandStatus.FAILED, "the deployment does not exist")
    stage = next((one for one in deployment.stages if one.id == command.stage_id), None)
    if stage is None:
        is_planned = DeploymentStatus(deployment.status) is not DeploymentStatus.PENDING
        failed = Verdict(CommandStatus.FAILED, "the deployment has no such stage")
        return failed if is_planned else None
    status = StageStatus(stage.status)
    if status in (StageStatus.SUCCESS, StageStatus.SKIPPED):
        return Verdict(CommandStatus.SUCCEEDED)
    if status.is_completed or DeploymentStatus(deployment.status).is_completed:
        return Verdict(CommandStatus.FAILED, f"the stage was over before: {status.name}")
    return None


@dataclass(kw_only=True)
class StageCommands:
    """Looks after commands to stages that nobody else answers."""

    api: ControlPlaneClient
    commands: CommandMirror
    _doubted: set[str] = field(init=False, default_factory=set[str])
    """The commands that were found to be pointless once; whoever runs the stage is faster."""

    async def run(self) -> None:
        watch = self.commands.changes.watch()
        while True:
            waiting = (
                *self.commands.of_kind(CommandKind.APPROVE_STAGE),
                *self.commands.of_kind(CommandKind.SKIP_STAGE),
            )
            try:
                await self._look(waiting)
            except PipecdError as e:
                log.warning("commands to stages are looked at again later", error=str(e))
            if waiting:
                await asyncio.sleep(LOOK_EVERY)
            else:
                await watch.wait(_WAIT)

    async def _look(self, waiting: tuple[Command, ...]) -> None:
        verdicts = {command.id: verdict(command, await self._of(command)) for command in waiting}
        for command in waiting:
            found = verdicts[command.id]
            if found is not None and command.id in self._doubted and self.commands.has(command):
                log.info("command answered for its stage", command=command.id, reason=found.reason)
                metadata: Mapping[str, str] = {REASON_KEY: found.reason} if found.reason else {}
                await self.commands.report(command, found.status, metadata=metadata)
        self._doubted = {id for id, found in verdicts.items() if found is not None}

    async def _of(self, command: Command) -> Deployment | None:
        request = GetDeploymentRequest(id=command.deployment_id)
        try:
            return (await self.api.get_deployment(request)).deployment
        except (NotFound, Denied, UserMistake):
            return None
