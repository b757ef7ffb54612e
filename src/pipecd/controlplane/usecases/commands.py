# SPDX-License-Identifier: Apache-2.0
"""Commands: what people and programs ask pipeds to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pipecd.controlplane.auth.subject import PipedCaller, Subject
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_project, found
from pipecd.model.command import CommandStatus
from pipecd.model.errors import Denied
from pipecd.model.ids import new_id
from pipecd.proto.model import command_pb2 as pb
from pipecd.proto.model.command_pb2 import Command


@dataclass(frozen=True)
class Handled:
    """How a piped dealt with a command."""

    command_id: str
    status: CommandStatus
    handled_at: int
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    output: bytes = field(default=b"", repr=False)


class Commands:
    """Commands from the moment they are given to the moment a piped answers them."""

    def __init__(self, stores: Stores, bus: Bus, access: Access) -> None:
        self._stores, self._bus, self._access = stores, bus, access

    async def add(self, command: Command) -> str:
        """Gives a command to its piped and wakes it; it gets an id unless it has one.

        Other use cases call this once they know that the caller may give the command.
        """
        command.id = command.id or new_id()
        command.status = pb.COMMAND_NOT_HANDLED_YET
        await self._stores.commands.add(command)
        await self._bus.publish(
            Signal(Topic.COMMAND, command.id, command.project_id, command.piped_id)
        )
        return command.id

    async def get(self, id: str, *, by: Subject) -> Command:
        if isinstance(by, PipedCaller):
            return await self._own(id, by)
        await self._access.require_any_role(by)
        command = await found(self._stores.commands.get(id), "Command is not found")
        check_project(by, command.project_id, "command")
        return command

    async def unhandled_of(self, *, by: PipedCaller) -> tuple[Command, ...]:
        """What this piped has not answered yet, oldest first."""
        return await self._stores.commands.list_unhandled(by.piped)

    async def handled(self, report: Handled, *, by: PipedCaller) -> None:
        await self._own(report.command_id, by)
        if report.output:
            await self._stores.files.put(output_path(report.command_id), report.output)

        def change(command: Command) -> None:
            command.status = pb.CommandStatus.ValueType(report.status)
            command.metadata.clear()
            command.metadata.update(report.metadata)
            command.handled_at = report.handled_at

        command = await self._stores.commands.update(report.command_id, change)
        for signal in signals_of(command):
            await self._bus.publish(signal)

    async def _own(self, id: str, by: PipedCaller) -> Command:
        command = await found(self._stores.commands.get(id), "Command is not found")
        if command.piped_id != by.piped:
            raise Denied("The current piped does not have requested command")
        return command


def signals_of(command: Command) -> tuple[Signal, ...]:
    """What is told about a command that has been answered or given up."""
    changed = Signal(Topic.COMMAND, command.id, command.project_id)
    if not command.HasField("chain_sync_application"):
        return (changed,)
    # Whether the application follows decides about its chain.
    chain = command.chain_sync_application.deployment_chain_id
    return changed, Signal(Topic.CHAIN, chain, command.project_id)


def output_path(command_id: str) -> str:
    """Where the output of a command is kept."""
    return f"command-output/{command_id}.json"
