# SPDX-License-Identifier: Apache-2.0
"""Commands to pipeds: sync, cancel, approve, restart, plan preview and others."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, Subject, User
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.controlplane.usecases.preview_counts import count_applications
from pipecd.model.command import KEPT_KEYS, PREVIEW_COUNTS_KEY, CommandStatus
from pipecd.model.errors import Denied, NotFound
from pipecd.model.ids import new_id
from pipecd.proto.model import command_pb2 as pb
from pipecd.proto.model.command_pb2 import Command


@dataclass(frozen=True)
class CommandResult:
    """The result of a command, as its piped reports it."""

    command_id: str
    status: CommandStatus
    handled_at: int
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    output: bytes = field(default=b"", repr=False)


_GET_APPLICATION = Permission(Resource.APPLICATION, Action.GET)
_GET_DEPLOYMENT = Permission(Resource.DEPLOYMENT, Action.GET)


class CommandUseCases:
    """Sends commands to pipeds and stores their results."""

    def __init__(self, stores: Stores, bus: Bus, access: Access) -> None:
        self._stores, self._bus, self._access = stores, bus, access

    async def add(self, command: Command) -> str:
        """Stores a command, wakes its piped and returns the id; a command without one gets it here.

        Other use cases call this after they have checked the caller's permission.
        """
        command.id = command.id or new_id()
        command.status = pb.COMMAND_NOT_HANDLED_YET
        await self._stores.commands.add(command)
        await self.wake(command)
        return command.id

    async def wake(self, command: Command) -> None:
        """Wakes the piped of a stored command."""
        await self._bus.publish(
            Signal(Topic.COMMAND, command.id, command.project_id, command.piped_id)
        )

    async def get(self, id: str, *, by: Subject) -> Command:
        if isinstance(by, PipedCaller):
            return await self._own(id, by)
        await self._access.require_any_role(by)
        command = await or_not_found(self._stores.commands.get(id), "Command is not found")
        check_project(by, command.project_id, "command")
        # They count applications that the labels of a role may not cover.
        command.metadata.pop(PREVIEW_COUNTS_KEY, None)
        if command.application_id and isinstance(by, User):
            await self._check_labels(command, by)
        return command

    async def _check_labels(self, command: Command, by: User) -> None:
        """Denied unless a role covers the application or the deployment that the command is for."""
        objects = (
            (_GET_APPLICATION, self._stores.applications, command.application_id),
            (_GET_DEPLOYMENT, self._stores.deployments, command.deployment_id),
        )
        for permission, store, id in objects:
            with suppress(Denied, NotFound):
                scope = await self._access.scope(by, permission)
                if scope.is_everything or (id and scope.covers((await store.get(id)).labels)):
                    return
        raise Denied("Permission Denied")

    async def list_unhandled(self, *, by: PipedCaller) -> tuple[Command, ...]:
        """The piped's commands that are not handled yet, oldest first."""
        return await self._stores.commands.list_unhandled(by.piped)

    async def list_all_unhandled(self) -> tuple[Command, ...]:
        """The commands of all projects that are not handled yet, for the control plane itself."""
        return await self._stores.commands.list_all_unhandled()

    async def report_handled(self, result: CommandResult, *, by: PipedCaller) -> None:
        """Stores the result of a command; a repeated or late report changes nothing."""
        requested = await self._own(result.command_id, by)
        if _has_result(requested):
            return
        counts: dict[str, str] = {}
        if result.output:
            await self._stores.files.put(output_path(result.command_id), result.output)
            if requested.type == Command.BUILD_PLAN_PREVIEW:
                found = await asyncio.to_thread(count_applications, result.output)
                counts = {PREVIEW_COUNTS_KEY: str(found)} if found else {}

        def change(command: Command) -> None:
            if _has_result(command):
                return
            command.status = pb.CommandStatus.ValueType(result.status)
            kept = {key: command.metadata[key] for key in KEPT_KEYS if key in command.metadata}
            command.metadata.clear()
            command.metadata.update({**result.metadata, **counts, **kept})
            command.handled_at = result.handled_at

        command = await self._stores.commands.update(result.command_id, change)
        for signal in signals_of(command):
            await self._bus.publish(signal)

    async def _own(self, id: str, by: PipedCaller) -> Command:
        command = await or_not_found(self._stores.commands.get(id), "Command is not found")
        if command.piped_id != by.piped:
            raise Denied("The current piped does not have requested command")
        return command


def _has_result(command: Command) -> bool:
    """Whether a piped has reported a result; one that timed out may still be reported."""
    return CommandStatus(command.status) in (CommandStatus.SUCCEEDED, CommandStatus.FAILED)


def signals_of(command: Command) -> tuple[Signal, ...]:
    """The signals of a command that was handled or that timed out."""
    changed = Signal(Topic.COMMAND, command.id, command.project_id)
    if not command.HasField("chain_sync_application"):
        return (changed,)
    # The chain goes on or fails with the command.
    chain = command.chain_sync_application.deployment_chain_id
    return changed, Signal(Topic.CHAIN, chain, command.project_id)


def output_path(command_id: str) -> str:
    """The path of a command's output in the filestore."""
    return f"command-output/{command_id}.json"
