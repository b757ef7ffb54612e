# SPDX-License-Identifier: Apache-2.0
"""Events for the event watchers of pipeds."""

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
    or_not_found,
)
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError
from pipecd.model.eventkey import event_key
from pipecd.model.ids import new_id, new_ordered_id
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.model.trace_pb2 import DeploymentTrace
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.ordering_pb2 import ListEventsInOrderRequest, ListEventsInOrderResponse

log = structlog.get_logger()

_CREATE = Permission(Resource.EVENT, Action.CREATE)
_LIST = Permission(Resource.EVENT, Action.LIST)

_HANDLED = (pb.EVENT_SUCCESS, pb.EVENT_FAILURE)


@dataclass(frozen=True)
class EventReport:
    """The status of an event, as a piped reports it."""

    id: str
    status: pb.EventStatus.ValueType
    description: str


class EventUseCases:
    """Registers and lists events, and stores what pipeds did with them."""

    def __init__(self, stores: Stores, bus: Bus, access: Access, now: Now = utc_now) -> None:
        self._stores, self._bus, self._access, self._now = stores, bus, access, now

    async def register(self, request: RegisterEventRequest, *, by: UserOrApiKey) -> str:
        """Stores an event, wakes the pipeds of the project and returns the id of the event."""
        scope = await self._access.scope(by, _CREATE)
        check_scope(scope, request)
        event = Event(
            # `created_at` has whole seconds; ordered ids tell which of two events is newer.
            id=new_ordered_id(self._now()),
            name=request.name,
            data=request.data,
            project_id=by.project,
            labels=request.labels,
            event_key=event_key(request.name, request.labels),
            status=pb.EVENT_NOT_HANDLED,
            status_description=f"It is going to be replaced by {request.data}",
            contexts=request.contexts,
            trigger_commit_hash=request.commit_hash,
        )
        await self._stores.events.add(event)
        await self._bus.publish(Signal(Topic.EVENT, event.id, by.project))
        if request.commit_hash and request.commit_url:
            trace = DeploymentTrace(
                id=new_id(),
                project_id=by.project,
                title=request.commit_title,
                commit_message=request.commit_message,
                commit_hash=request.commit_hash,
                commit_url=request.commit_url,
                commit_timestamp=request.commit_timestamp or to_unix(self._now()),
                author=request.commit_author,
            )
            try:
                await self._stores.traces.add(trace)
            except PipecdError as e:
                # The event is stored; the trace is additional information.
                log.warning("deployment trace not stored", commit=request.commit_hash, error=str(e))
        return event.id

    async def list(
        self, filter: EventFilter, page: PageRequest = EVERYTHING, *, by: UserOrApiKey
    ) -> Page[Event]:
        """Newest update first."""
        return await self._access.list_page(
            lambda part: self._stores.events.list(filter, part),
            page,
            by=by,
            permission=_LIST,
            project=filter.project,
        )

    async def get(self, id: str, *, by: UserOrApiKey) -> Event:
        """An event that the caller may list."""
        scope = await self._access.scope(by, _LIST)
        event = await or_not_found(self._stores.events.get(id), "Event is not found")
        check_project(by, event.project_id, "event")
        check_scope(scope, event)
        return event

    async def list_by_creation(
        self, filter: EventFilter, *, descending: bool = False, by: PipedCaller
    ) -> tuple[Event, ...]:
        """All matching events in the order of their creation."""
        check_project(by, filter.project, "project")
        return await self._stores.events.list_by_creation(filter, descending=descending)

    async def list_in_order(
        self, request: ListEventsInOrderRequest, *, by: PipedCaller
    ) -> ListEventsInOrderResponse:
        """Events with their sequence numbers, oldest first, as the request describes."""
        events, now = self._stores.events, to_unix(self._now())
        if request.after:
            listed = list((await events.list_after(by.project, request.after)).values())
            last = max((number for _, number in listed), default=request.after)
        else:
            # Read before the events, so that none is missed in between.
            last = await events.last_sequence(by.project)
            recent = EventFilter(
                project=by.project, created_from=_time_before(now, request.max_age_seconds)
            )
            unhandled = EventFilter(
                project=by.project,
                created_from=_time_before(now, request.max_unhandled_age_seconds),
                statuses=(pb.EVENT_NOT_HANDLED,),
            )
            by_id = {
                event.id: event
                for filter in (unhandled, recent)
                for event in await events.list_by_creation(filter)
            }
            numbers = await events.sequences(by_id)
            # Events without a number are older than those with one; they stay in their order.
            listed = sorted(
                ((event, numbers.get(event.id, 0)) for event in by_id.values()),
                key=lambda pair: pair[1],
            )
        keys = frozenset(request.keys)
        matching = [pair for pair in listed if pair[0].event_key in keys]
        return ListEventsInOrderResponse(
            events=[event for event, _ in matching],
            sequences=[number for _, number in matching],
            now=now,
            last=last,
        )

    async def latest(self, name: str, labels: Mapping[str, str], *, by: PipedCaller) -> Event:
        """The newest event of that name with exactly these labels."""
        return await or_not_found(
            self._stores.events.get_latest(by.project, name, event_key(name, labels)),
            "no events found",
        )

    async def report_statuses(self, reports: Sequence[EventReport], *, by: PipedCaller) -> None:
        """Stores the reported statuses, one by one."""
        now = to_unix(self._now())
        for report in reports:

            def change(event: Event, report: EventReport = report) -> None:
                check_project(by, event.project_id, "event")
                event.status = report.status
                event.status_description = report.description
                if report.status in _HANDLED:
                    event.handled_at = now

            await or_not_found(
                # An outdated event keeps its `updated_at`, because clients page by it.
                self._stores.events.update(report.id, change, touch=report.status in _HANDLED),
                f"Entity was not found to update event {report.id}",
            )
            await self._bus.publish(Signal(Topic.EVENT, report.id, by.project, by.piped))


def _time_before(now: int, age: int) -> int:
    """The Unix time that is `age` seconds ago, which no age moves out of the range of a column."""
    return now - min(max(age, 0), now)
