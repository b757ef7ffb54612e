# SPDX-License-Identifier: Apache-2.0
"""Commands and events on SQL."""

from collections.abc import Iterator
from functools import lru_cache

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import Kind, SqlDocuments
from pipecd.controlplane.datastore.query import (
    MOST_PIPEDS,
    NEWEST,
    OLDEST,
    Condition,
    Selection,
    at_least,
    below,
    equal,
    labelled,
    when_given,
)
from pipecd.controlplane.datastore.schema import COMMAND, EVENT
from pipecd.controlplane.stores.commands import EventFilter
from pipecd.controlplane.stores.documents import EVERYTHING, Page, PageRequest
from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.errors import NotFound
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.event_pb2 import Event

UNHANDLED = equal("Status", int(CommandStatus.NOT_HANDLED_YET))


class SqlCommands(SqlDocuments[Command]):
    """What people and pipelines asked pipeds to do."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(COMMAND, Command), now=now)

    async def unhandled_of(self, piped_id: str) -> tuple[Command, ...]:
        return await self.few_of(_unhandled_of(piped_id))

    async def unhandled_before(self, created_before: int) -> tuple[Command, ...]:
        if created_before <= 0:
            return ()
        return await self.all_of((UNHANDLED, *below("CreatedAt", created_before)), OLDEST)


class SqlEvents(SqlDocuments[Event]):
    """What was told to the event watcher."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(EVENT, Event, extra="name", labelled=True), now=now)

    async def latest(self, project: str, name: str, event_key: str) -> Event:
        conditions = (
            equal("ProjectId", project),
            equal("Name", name),
            equal("EventKey", event_key),
        )
        found = await self.first_of(conditions, NEWEST)
        if found is None:
            raise NotFound("no events found")
        return found

    async def by_creation(
        self, wanted: EventFilter, *, descending: bool = False
    ) -> tuple[Event, ...]:
        return await self.all_of(_conditions(wanted), NEWEST if descending else OLDEST)

    async def listed(self, wanted: EventFilter, page: PageRequest = EVERYTHING) -> Page[Event]:
        return await self.page_of(_conditions(wanted), page)


@lru_cache(MOST_PIPEDS)
def _unhandled_of(piped_id: str) -> Selection:
    return Selection(COMMAND.name, (equal("PipedId", piped_id), UNHANDLED), OLDEST)


def _conditions(wanted: EventFilter) -> Iterator[Condition]:
    yield equal("ProjectId", wanted.project)
    yield from when_given("Name", wanted.name)
    yield from when_given("EventKey", wanted.event_key)
    yield from when_given("Status", *wanted.statuses)
    yield from at_least("CreatedAt", wanted.created_from)
    yield from below("CreatedAt", wanted.created_to)
    yield from labelled(wanted.labels)
