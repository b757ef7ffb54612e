# SPDX-License-Identifier: Apache-2.0
"""Events: what was told from outside, for the event watchers of pipeds to act on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, UserOrApiKey
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.documents import EVERYTHING, Page, PageRequest
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import (
    Access,
    check_project,
    check_scope,
    found,
    sight,
    visible,
)
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError
from pipecd.model.eventkey import event_key
from pipecd.model.ids import new_id, new_ordered_id
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.model.trace_pb2 import DeploymentTrace
from pipecd.proto.service.api_pb2 import RegisterEventRequest

log = structlog.get_logger()

_CREATE = Permission(Resource.EVENT, Action.CREATE)
_LIST = Permission(Resource.EVENT, Action.LIST)

_ENDED = (pb.EVENT_SUCCESS, pb.EVENT_FAILURE)


@dataclass(frozen=True)
class EventReport:
    """How a piped dealt with an event."""

    id: str
    status: pb.EventStatus.ValueType
    description: str


class Events:
    """The events of a project."""

    def __init__(self, stores: Stores, bus: Bus, access: Access, now: Now = utc_now) -> None:
        self._stores, self._bus, self._access, self._now = stores, bus, access, now

    async def register(self, told: RegisterEventRequest, *, by: UserOrApiKey) -> str:
        """Stores an event, wakes the pipeds of the project and returns the id of the event."""
        scope = await self._access.scope(by, _CREATE)
        check_scope(scope, told)
        event = Event(
            # Moments of creation are whole seconds; the ids tell which of two events came later.
            id=new_ordered_id(self._now()),
            name=told.name,
            data=told.data,
            project_id=by.project,
            labels=told.labels,
            event_key=event_key(told.name, told.labels),
            status=pb.EVENT_NOT_HANDLED,
            status_description=f"It is going to be replaced by {told.data}",
            contexts=told.contexts,
            trigger_commit_hash=told.commit_hash,
        )
        await self._stores.events.add(event)
        await self._bus.publish(Signal(Topic.EVENT, event.id, by.project))
        if told.commit_hash and told.commit_url:
            await self._trace(told, by)
        return event.id

    async def listed(
        self, wanted: EventFilter, page: PageRequest = EVERYTHING, *, by: UserOrApiKey
    ) -> Page[Event]:
        """Newest update first."""
        scope = await self._access.scope(by, _LIST)
        check_project(by, wanted.project, "project")
        return await visible(
            lambda part: self._stores.events.list(wanted, part), page, sight(scope)
        )

    async def by_creation(
        self, wanted: EventFilter, *, descending: bool = False, by: PipedCaller
    ) -> tuple[Event, ...]:
        """All that match, in the order of their creation."""
        check_project(by, wanted.project, "project")
        return await self._stores.events.list_by_creation(wanted, descending=descending)

    async def latest(self, name: str, labels: Mapping[str, str], *, by: PipedCaller) -> Event:
        """The newest event of that name with exactly these labels."""
        return await found(
            self._stores.events.get_latest(by.project, name, event_key(name, labels)),
            "no events found",
        )

    async def report_statuses(self, reports: Sequence[EventReport], *, by: PipedCaller) -> None:
        """Takes over what became of events, one by one."""
        now = to_unix(self._now())
        for report in reports:

            def change(event: Event, report: EventReport = report) -> None:
                check_project(by, event.project_id, "event")
                event.status = report.status
                event.status_description = report.description
                if report.status in _ENDED:
                    event.handled_at = now

            await found(
                # An event that another one outdated keeps its time, as clients page by it.
                self._stores.events.update(report.id, change, touch=report.status in _ENDED),
                f"Entity was not found to update event {report.id}",
            )
            await self._bus.publish(Signal(Topic.EVENT, report.id, by.project, by.piped))

    async def _trace(self, told: RegisterEventRequest, by: UserOrApiKey) -> None:
        trace = DeploymentTrace(
            id=new_id(),
            project_id=by.project,
            title=told.commit_title,
            commit_message=told.commit_message,
            commit_hash=told.commit_hash,
            commit_url=told.commit_url,
            commit_timestamp=told.commit_timestamp or to_unix(self._now()),
            author=told.commit_author,
        )
        try:
            await self._stores.traces.add(trace)
        except PipecdError as e:
            # The event counts; the trace only shows where it came from.
            log.warning("deployment trace not stored", commit=told.commit_hash, error=str(e))
