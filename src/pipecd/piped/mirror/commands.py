# SPDX-License-Identifier: Apache-2.0
"""The commands this piped has not handled yet, as of the last refresh."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.errors import PipecdError
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.mirror.changes import Changes
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.trouble import Trouble
from pipecd.proto.model import command_pb2
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.service.piped_pb2 import ListUnhandledCommandsRequest, ReportCommandHandledRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

EVERY = 5.0
# Where whoever waits for a command learns why it failed.
REASON_KEY = "Reason"
_HIDDEN_FOR = timedelta(minutes=10)


class CommandMirror:
    """What people and chains ask of this piped, oldest first.

    A handled command is hidden at once and stays hidden, also while a copy made before the control
    plane heard of it still lists it.
    """

    def __init__(
        self, api: ControlPlaneClient, *, every: float = EVERY, now: Now = utc_now
    ) -> None:
        self._api, self._now = api, now
        self._listed: tuple[Command, ...] = ()
        self._handled: dict[str, datetime] = {}
        self._trouble = Trouble("commands")
        self.pace = Pace(every)
        self.changes = Changes()

    @property
    def all(self) -> tuple[Command, ...]:
        return tuple(c for c in self._listed if self.has(c))

    def has(self, command: Command) -> bool:
        """Whether nobody has handled the command yet."""
        return command.id not in self._handled

    def of_kind(self, kind: CommandKind) -> tuple[Command, ...]:
        return tuple(c for c in self.all if c.type == kind)

    def for_deployment(self, deployment_id: str) -> tuple[Command, ...]:
        return tuple(c for c in self.all if c.deployment_id == deployment_id)

    def for_stage(self, deployment_id: str, stage_id: str) -> tuple[Command, ...]:
        return tuple(c for c in self.for_deployment(deployment_id) if c.stage_id == stage_id)

    def refresh_soon(self) -> None:
        """Asks for a new copy without waiting for it."""
        self.pace.soon()

    async def report(
        self,
        command: Command,
        status: CommandStatus,
        *,
        metadata: Mapping[str, str] | None = None,
        output: bytes = b"",
    ) -> bool:
        """Hides the command and tells the control plane how it went, however long that takes.

        False means that the control plane would not hear it.
        """
        now = self._now()
        self._handled[command.id] = now
        request = ReportCommandHandledRequest(
            command_id=command.id,
            status=command_pb2.CommandStatus.ValueType(status),
            metadata=metadata or {},
            handled_at=to_unix(now),
            output=output,
        )
        try:
            await self._api.report_command_handled(request)
        except PipecdError as e:
            # The command stays hidden here: doing it again would not make the report succeed.
            log.warning("report of a command was refused", command=command.id, error=str(e))
            return False
        return True

    async def run(self) -> None:
        while True:
            await self._refresh()
            await self.pace.wait()

    async def _refresh(self) -> None:
        try:
            answer = await self._api.list_unhandled_commands(ListUnhandledCommandsRequest())
        except PipecdError as e:
            self._trouble.met(e)
            return
        self._trouble.over()
        found = tuple(sorted(answer.commands, key=lambda c: (c.created_at, c.id)))
        self._forget_handled({command.id for command in found})
        if found != self._listed:
            self._listed = found
            self.changes.notify()

    def _forget_handled(self, listed: set[str]) -> None:
        since = self._now() - _HIDDEN_FOR
        self._handled = {
            id_: at for id_, at in self._handled.items() if id_ in listed or at > since
        }
