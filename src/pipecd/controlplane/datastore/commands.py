# SPDX-License-Identifier: Apache-2.0
"""The table of commands to pipeds."""

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import Documents, Kind
from pipecd.controlplane.datastore.query import OLDEST, below, equal, piped_selection
from pipecd.controlplane.datastore.schema import COMMAND
from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandStatus
from pipecd.proto.model.command_pb2 import Command

UNHANDLED = int(CommandStatus.NOT_HANDLED_YET)


class Commands(Documents[Command]):
    """Commands of all projects: what users and deployment chains requested of pipeds."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(COMMAND, Command), now=now)

    async def list_unhandled(self, piped_id: str) -> tuple[Command, ...]:
        """Returns the commands that this piped has not handled yet, oldest first."""
        return await self.lookup_of(piped_selection(COMMAND.name, piped_id, (UNHANDLED,)))

    async def list_unhandled_before(self, created_before: int) -> tuple[Command, ...]:
        """Returns the commands created before that time and not handled yet, oldest first."""
        if created_before <= 0:
            return ()
        conditions = (equal("Status", UNHANDLED), *below("CreatedAt", created_before))
        return await self.all_of(conditions, OLDEST)
