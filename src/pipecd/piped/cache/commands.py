# SPDX-License-Identifier: Apache-2.0
"""The commands this piped has not handled yet, as of the last poll."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import structlog

from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.command import REASON_KEY, CommandKind, CommandStatus
from pipecd.model.errors import PipecdError
from pipecd.piped.cache.refresh import PolledCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model import command_pb2
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.service.piped_pb2 import ListUnhandledCommandsRequest, ReportCommandHandledRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

POLL_INTERVAL = 5.0
_HIDDEN_FOR = timedelta(minutes=10)


class CommandCache(PolledCache):
    """The commands that users and deployment chains sent to this piped, oldest first.

    A handled command is hidden at once and stays hidden, also while the control plane still lists
    it because it has not received the report yet.
    """

    def __init__(
        self, api: ControlPlaneClient, *, interval: float = POLL_INTERVAL, now: Now = utc_now
    ) -> None:
        super().__init__("commands", interval=interval)
        self._api, self._now = api, now
        self._listed: tuple[Command, ...] = ()
        self._handled: dict[str, datetime] = {}

    @property
    def all(self) -> tuple[Command, ...]:
        return tuple(c for c in self._listed if self.is_unhandled(c))

    def is_unhandled(self, command: Command) -> bool:
        return command.id not in self._handled

    def of_kind(self, *kinds: CommandKind) -> tuple[Command, ...]:
        return tuple(c for c in self.all if c.type in kinds)

    def for_deployment(self, deployment_id: str) -> tuple[Command, ...]:
        return tuple(c for c in self.all if c.deployment_id == deployment_id)

    def for_stage(self, deployment_id: str, stage_id: str) -> tuple[Command, ...]:
        return tuple(c for c in self.for_deployment(deployment_id) if c.stage_id == stage_id)

    async def report(
        self,
        command: Command,
        status: CommandStatus,
        *,
        metadata: Mapping[str, str] | None = None,
        output: bytes = b"",
    ) -> bool:
        """Hides the command and reports its result; returns whether the report was accepted."""
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
            # The command stays hidden: handling it again would not make the report succeed.
            log.warning(
                "control plane refused the result of a command", command=command.id, error=str(e)
            )
            return False
        return True

    async def reject(self, command: Command, reason: str) -> None:
        """Reports that the command failed, with the reason that its sender sees."""
        log.warning("command rejected", command=command.id, reason=reason)
        await self.report(command, CommandStatus.FAILED, metadata={REASON_KEY: reason})

    async def poll(self) -> bool:
        response = await self._api.list_unhandled_commands(ListUnhandledCommandsRequest())
        before = self._listed
        self._listed = tuple(sorted(response.commands, key=lambda c: (c.created_at, c.id)))
        listed, since = {command.id for command in self._listed}, self._now() - _HIDDEN_FOR
        self._handled = {
            id_: at for id_, at in self._handled.items() if id_ in listed or at > since
        }
        return self._listed != before
