# SPDX-License-Identifier: Apache-2.0
"""The table of events for the event watcher."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.documents import (
    EVERYTHING,
    Documents,
    Kind,
    Page,
    PageRequest,
)
from pipecd.controlplane.datastore.query import (
    NEWEST,
    OLDEST,
    Condition,
    at_least,
    below,
    equal,
    labelled,
    when_given,
)
from pipecd.controlplane.datastore.schema import EVENT
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import NotFound
from pipecd.proto.model.event_pb2 import Event


@dataclass(frozen=True)
class EventFilter:
    """Empty fields and 0 do not filter. Times are unix seconds, `created_to` is exclusive."""

    project: str
    name: str = ""
    event_key: str = ""
    statuses: tuple[int, ...] = ()
    created_from: int = 0
    created_to: int = 0
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Events(Documents[Event]):
    """Events of all projects."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        super().__init__(database, Kind(EVENT, Event, extra="name", labelled=True), now=now)

    async def latest(self, project: str, name: str, event_key: str) -> Event:
        """Returns the newest event with that name and key, or raises NotFound."""
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
        """Returns all events that match, in the order of creation, then by id."""
        return await self.all_of(_conditions(wanted), NEWEST if descending else OLDEST)

    async def listed(self, wanted: EventFilter, page: PageRequest = EVERYTHING) -> Page[Event]:
        """Returns a page of the events that match, newest update first, then by id."""
        return await self.page_of(_conditions(wanted), page)


def _conditions(wanted: EventFilter) -> Iterator[Condition]:
    yield equal("ProjectId", wanted.project)
    yield from when_given("Name", wanted.name)
    yield from when_given("EventKey", wanted.event_key)
    yield from when_given("Status", *wanted.statuses)
    yield from at_least("CreatedAt", wanted.created_from)
    yield from below("CreatedAt", wanted.created_to)
    yield from labelled(wanted.labels)
