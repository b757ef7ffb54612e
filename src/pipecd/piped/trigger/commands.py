# SPDX-License-Identifier: Apache-2.0
"""Commands that ask for a deployment: whom they concern, what they want, how they ended."""

import structlog

from pipecd.model.command import TRIGGERED_KEY, CommandKind, CommandStatus
from pipecd.model.deployment import IN_CHAIN, SyncStrategy
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.planning.deployment import SUMMARIES, Cause
from pipecd.proto.model.command_pb2 import Command

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def cause_of(command: Command) -> Cause:
    """The deployment that a command asks for."""
    if command.type == CommandKind.CHAIN_SYNC_APPLICATION:
        chain = command.chain_sync_application
        return Cause(
            key=f"command\0{command.id}",
            commander=chain.deployment_chain_id,
            strategy=_strategy(chain.sync_strategy),
            summary=IN_CHAIN,
            chain_id=chain.deployment_chain_id,
            chain_block_index=chain.block_index,
        )
    strategy = _strategy(command.sync_application.sync_strategy)
    return Cause(
        key=f"command\0{command.id}",
        commander=command.commander,
        strategy=strategy,
        summary=SUMMARIES[strategy],
    )


def _strategy(number: int) -> SyncStrategy:
    """The strategy of a number; one that only a newer control plane knows leaves it to us."""
    try:
        return SyncStrategy(number)
    except ValueError:
        return SyncStrategy.AUTO


class SyncCommands:
    """The waiting commands that ask for a deployment."""

    def __init__(self, commands: CommandCache) -> None:
        self._commands = commands
        self.changes = commands.changes

    @property
    def all(self) -> tuple[Command, ...]:
        return (
            *self._commands.of_kind(CommandKind.SYNC_APPLICATION),
            *self._commands.of_kind(CommandKind.CHAIN_SYNC_APPLICATION),
        )

    def of(self, application_id: str) -> tuple[Command, ...]:
        return tuple(c for c in self.all if c.application_id == application_id)

    async def succeeded(self, command: Command, deployment_id: str) -> None:
        """The command led to a deployment."""
        await self._commands.report(
            command, CommandStatus.SUCCEEDED, metadata={TRIGGERED_KEY: deployment_id}
        )

    async def refused(self, command: Command, reason: str) -> None:
        """The command cannot be followed; whoever waits for it learns why."""
        await self._commands.reject(command, reason)
