# SPDX-License-Identifier: Apache-2.0
"""The table of commands to pipeds."""

from functools import lru_cache

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import Documents, Kind
from pipecd.controlplane.datastore.query import CACHED_PIPEDS, OLDEST, Selection, below, equal
from pipecd.controlplane.datastore.schema import COMMAND
from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandStatus
from pipecd.proto.model.command_pb2 import Command

UNHANDLED = equal("Status", int(CommandStatus.NOT_HANDLED_YET))


class Commands(Documents[Command]):
    """Commands of all projects: what users and deployment chains requested of pipeds."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(COMMAND, Command), now=now)

    async def list_unhandled(self, piped_id: str) -> tuple[Command, ...]:
        """Returns the commands that this piped has not handled yet, oldest first."""
        return await self.lookup_of(_unhandled(piped_id))

    async def list_unhandled_before(self, created_before: int) -> tuple[Command, ...]:
        """Returns the commands created before that time and not handled yet, oldest first."""
        if created_before <= 0:
            return ()
        return await self.all_of((UNHANDLED, *below("CreatedAt", created_before)), OLDEST)


@lru_cache(CACHED_PIPEDS)
def _unhandled(piped_id: str) -> Selection:
    return Selection(COMMAND.name, (equal("PipedId", piped_id), UNHANDLED), OLDEST)
