# SPDX-License-Identifier: Apache-2.0
"""Commands that request a deployment, of users and of deployment chains."""

import structlog

from pipecd.model.command import TRIGGERED_KEY, CommandKind, CommandStatus
from pipecd.model.deployment import IN_CHAIN, SyncStrategy
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.planning.deployment import COMMAND_SUMMARIES, Cause
from pipecd.proto.model.command_pb2 import Command

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def command_cause(command: Command) -> Cause:
    """Returns the cause of the deployment that a command requests."""
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
        summary=COMMAND_SUMMARIES[strategy],
    )


def _strategy(number: int) -> SyncStrategy:
    """Returns a strategy; AUTO for one that only a newer control plane has."""
    try:
        return SyncStrategy(number)
    except ValueError:
        return SyncStrategy.AUTO


class SyncCommands:
    """The unhandled commands that request a deployment."""

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
        """Returns the commands of an application in the order of their deployments.

        Several blocks of a chain may have the application. The first of them must be deployed
        first, since the deployments of an application wait for each other.
        """
        own = (c for c in self.all if c.application_id == application_id)
        return tuple(
            sorted(own, key=lambda c: (c.created_at, c.chain_sync_application.block_index))
        )

    async def succeed(self, command: Command, deployment_id: str) -> None:
        """Reports the deployment that a command triggered."""
        await self._commands.report(
            command, CommandStatus.SUCCEEDED, metadata={TRIGGERED_KEY: deployment_id}
        )

    async def reject(self, command: Command, reason: str) -> None:
        """Reports a command as failed, with the reason."""
        await self._commands.reject(command, reason)
