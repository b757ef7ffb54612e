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
    any_of,
    at_least,
    below,
    equal,
    labelled,
)
from pipecd.controlplane.datastore.schema import EVENT
from pipecd.controlplane.datastore.sequences import documents_after, last_of
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
        kind = Kind(
            EVENT,
            Event,
            extra="name",
            labelled=True,
            scope=lambda event: _scope_of(event.project_id),
        )
        super().__init__(database, kind, now=now)

    async def get_latest(self, project: str, name: str, event_key: str) -> Event:
        """Returns the newest event with that name and key, or raises NotFound."""
        conditions = (
            equal("ProjectId", project),
            equal("Name", name),
            equal("EventKey", event_key),
        )
        event = await self.first_of(conditions, NEWEST)
        if event is None:
            raise NotFound("no events found")
        return event

    async def list_by_creation(
        self, filter: EventFilter, *, descending: bool = False
    ) -> tuple[Event, ...]:
        """Returns all events that match, in the order of creation, then by id."""
        return await self.all_of(_conditions(filter), NEWEST if descending else OLDEST)

    async def last_sequence(self, project: str) -> int:
        """Returns the sequence number of the last event of a project."""
        return (await last_of(self._database, _scope_of(project)))[0]

    async def list_after(self, project: str, sequence: int) -> dict[str, tuple[Event, int]]:
        """Returns the events with a greater sequence number and that, by id; at most a thousand."""
        numbers = await documents_after(self._database, _scope_of(project), sequence)
        events = await self.get_many(tuple(numbers))
        return {id: (events[id], number) for id, number in numbers.items() if id in events}

    async def list(self, filter: EventFilter, page: PageRequest = EVERYTHING) -> Page[Event]:
        """Returns a page of the events that match, newest update first, then by id."""
        return await self.page_of(_conditions(filter), page)


def _scope_of(project: str) -> str:
    return f"events/{project}"


def _conditions(filter: EventFilter) -> Iterator[Condition]:
    yield equal("ProjectId", filter.project)
    yield from any_of("Name", filter.name)
    yield from any_of("EventKey", filter.event_key)
    yield from any_of("Status", *filter.statuses)
    yield from at_least("CreatedAt", filter.created_from)
    yield from below("CreatedAt", filter.created_to)
    yield from labelled(filter.labels)
