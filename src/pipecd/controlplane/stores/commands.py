# SPDX-License-Identifier: Apache-2.0
"""Commands to pipeds and events from outside."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pipecd.controlplane.stores.documents import EVERYTHING, Documents, Page, PageRequest
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.event_pb2 import Event


class Commands(Documents[Command], Protocol):
    """What people and pipelines asked pipeds to do."""

    async def unhandled_of(self, piped_id: str) -> tuple[Command, ...]:
        """What this piped has not answered yet, oldest first."""
        ...

    async def unhandled_before(self, created_before: int) -> tuple[Command, ...]:
        """Commands nobody answered since then, oldest first."""
        ...


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


class Events(Documents[Event], Protocol):
    """What was told to the event watcher."""

    async def latest(self, project: str, name: str, event_key: str) -> Event:
        """The newest event of that key, or NotFound."""
        ...

    async def by_creation(
        self, wanted: EventFilter, *, descending: bool = False
    ) -> tuple[Event, ...]:
        """All that match, in order of creation, then by id."""
        ...

    async def listed(self, wanted: EventFilter, page: PageRequest = EVERYTHING) -> Page[Event]:
        """Newest update first, then by id."""
        ...
