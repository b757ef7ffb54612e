# SPDX-License-Identifier: Apache-2.0
"""Ends piped when a person asks for a restart; whoever supervises it starts it again."""

import structlog

from pipecd.model.command import CommandKind, CommandStatus
from pipecd.piped.mirror.commands import CommandMirror

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_WAIT = 60.0


class RestartRequested(Exception):
    """A person asked for a restart, and the control plane knows that it is under way."""


class RestartWatch:
    """Waits for commands to restart."""

    def __init__(self, commands: CommandMirror) -> None:
        self._commands = commands

    async def run(self) -> None:
        """Raises `RestartRequested` once such a command was answered."""
        watch = self._commands.changes.watch()
        while not await self._answered():
            await watch.wait(_WAIT)
        raise RestartRequested

    async def _answered(self) -> bool:
        """Answers all commands; one whose answer is refused would restart every piped after us."""
        answered = False
        for command in self._commands.of_kind(CommandKind.RESTART_PIPED):
            log.info("restart requested", command=command.id, commander=command.commander)
            output = command.id.encode()
            if await self._commands.report(command, CommandStatus.SUCCEEDED, output=output):
                answered = True
        return answered
