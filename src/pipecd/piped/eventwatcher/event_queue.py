# SPDX-License-Identifier: Apache-2.0
"""The events that a piped has to handle: polled in one list, reported in a few batches."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

import grpc
import grpc.aio
import structlog

from pipecd.model.clock import Now, seconds_clock, to_unix, utc_now
from pipecd.model.errors import PipecdError, Unavailable, Unsupported
from pipecd.piped.cache.changes import Changes, Watch
from pipecd.piped.cache.refresh import OutageLog, RefreshSchedule
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.eventwatcher.selection import (
    MAX_EVENT_AGE_SECONDS,
    EventOutcome,
    ReceivedEvent,
    combine_outcomes,
)
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.service import piped_pb2 as pb
from pipecd.proto.service.ordering_pb2 import ListEventsInOrderRequest

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Seconds. The clocks of several control planes differ, so each poll of upstream's control plane
# overlaps the newest event a little.
_POLL_OVERLAP = 60
# The largest difference between the clocks of the control planes and the local one.
_CLOCK_SKEW = 600
# Unhandled events are listed now and then, as far back as they may still be handled.
_UNHANDLED_INTERVAL, _UNHANDLED_AGE = 50, 2 * 3600
# The same after a new key was subscribed; older events are left to the control plane's clean-up.
_NEW_KEY_UNHANDLED_AGE = 7 * 24 * 3600
_CACHED_AGE = 3 * 3600
# After a response that covers as many numbers, there may be more.
_FULL_RESPONSE = 1000
_REPORT_BATCH_SIZE = 100
_REPORT_INTERVAL = 600.0
_RETRY_SECONDS = 2.0

_COMPLETED = (event_pb2.EVENT_SUCCESS, event_pb2.EVENT_FAILURE)


@dataclass(frozen=True)
class _ListedEvent:
    """An event as a poll returned it: its age in seconds and its sequence number, 0 if none."""

    event: Event
    age: int
    sequence: int


class EventQueue:
    """Events by the keys that repositories subscribe to, and their outcome in each repository.

    Other pipeds may have handled an event before; all of its definitions have to be applied. A
    definition that is added later than an event was handled does not change Git in hindsight.
    """

    def __init__(self, api: ControlPlaneClient, *, interval: float, now: Now = utc_now) -> None:
        self._api, self._now = api, now
        self.schedule = RefreshSchedule(interval)
        self.changes = Changes()
        # Ages and orders of events do not depend on the time of day, which may be stepped.
        self._clock = seconds_clock(now)
        self._started = self._clock()
        self._newest_created_at = to_unix(now()) - _CLOCK_SKEW
        self._last_sequence = 0
        # By repository the keys, with the time since when; 0 for the first subscription.
        self._subscriptions: dict[str, dict[str, float]] = {}
        self._has_new_key = False
        self._unhandled_listed: float | None = None
        self._received: dict[str, ReceivedEvent] = {}
        self._newest_by_key: dict[str, ReceivedEvent] = {}
        self._received_count = 0
        self._outcomes: dict[str, dict[str, EventOutcome]] = {}
        self._unreported: dict[str, EventOutcome] = {}
        self._reported: set[str] = set()
        self._to_report = Watch()
        self._outage = OutageLog("events")

    def subscribe(self, repository_id: str, keys: frozenset[str]) -> None:
        """From now on a repository handles the events of these keys."""
        if keys - self._subscribed_keys():
            self._has_new_key = True
            self.schedule.refresh_soon()
        before = self._subscriptions.get(repository_id)
        since = 0.0 if before is None else self._clock()
        self._subscriptions[repository_id] = {key: (before or {}).get(key, since) for key in keys}

    def pending(self, repository_id: str) -> tuple[ReceivedEvent, ...]:
        """The events that a repository has subscribed to and not handled."""
        keys = self._subscriptions.get(repository_id, {})
        return tuple(
            received
            for id_, received in self._received.items()
            if (since := keys.get(received.event.event_key)) is not None
            and repository_id not in self._outcomes.get(id_, {})
            and self._is_relevant(received, since)
        )

    def _is_relevant(self, received: ReceivedEvent, since: float) -> bool:
        """Whether an event is to be handled by a subscription that exists since a time."""
        match received.event.status:
            case event_pb2.EVENT_NOT_HANDLED:
                return True
            case event_pb2.EVENT_OUTDATED:
                return False
            case _:
                was_subscribed = received.was_unhandled and not since
                # `created_at` has whole seconds.
                is_new = received.created + 1 > max(since, self._started)
                return was_subscribed or is_new

    def newest(self) -> Mapping[str, ReceivedEvent]:
        """The newest event of each subscribed key, whatever its status."""
        return self._newest_by_key

    def complete(self, repository_id: str, outcomes: Mapping[str, EventOutcome]) -> None:
        """Records the outcome of events in a repository and reports it soon."""
        for id_, outcome in outcomes.items():
            of_event = self._outcomes.setdefault(id_, {})
            of_event[repository_id] = outcome
            combined, received = combine_outcomes(of_event.values()), self._received.get(id_)
            if received is not None and received.event.status in _COMPLETED:
                # Another piped may have reported it; a success does not hide its failure.
                event = received.event
                reported = EventOutcome(event.status, event.status_description)
                if combine_outcomes([reported, combined]).status == event.status:
                    continue
            self._unreported[id_] = combined
            self._to_report.mark()

    def is_reported(self, repository_id: str, event_id: str) -> bool:
        """Whether the outcome of an event in a repository has been reported."""
        return event_id in self._reported and repository_id in self._outcomes.get(event_id, {})

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll(), name="poll events")
            tasks.create_task(self._report(), name="report events")

    async def _poll(self) -> None:
        while True:
            await self.schedule.wait()
            if not self._subscribed_keys():
                continue
            has_new_key, self._has_new_key = self._has_new_key, False
            try:
                listed = await self._list_events(has_new_key=has_new_key)
            except PipecdError as e:
                self._has_new_key |= has_new_key
                self._outage.failed(e)
                await asyncio.sleep(_RETRY_SECONDS)
                self.schedule.refresh_soon()
                continue
            self._outage.succeeded()
            keys = self._subscribed_keys()
            has_new = [self._receive(each) for each in listed if each.event.event_key in keys]
            self._evict(frozenset(each.event.id for each in listed))
            if any(has_new):
                self.changes.notify()

    def _receive(self, listed: "_ListedEvent") -> bool:
        """Caches an event as it is now; returns whether it is new."""
        event, cached = listed.event, self._received.get(listed.event.id)
        if cached is None:
            self._received_count += 1
            is_unhandled = event.status == event_pb2.EVENT_NOT_HANDLED
            created = self._clock() - max(0, listed.age)
            received = ReceivedEvent(
                event, self._received_count, is_unhandled, listed.sequence, created
            )
        else:
            received = replace(cached, event=event)
        self._received[event.id] = received
        newest = self._newest_by_key.get(event.event_key)
        if newest is None or newest.rank < received.rank:
            self._newest_by_key[event.event_key] = received
        return cached is None

    async def _list_events(self, *, has_new_key: bool) -> list["_ListedEvent"]:
        """Returns the events since the last poll, and now and then all that may be handled.

        For a new key all events that may still be handled are listed.
        """
        last = self._unhandled_listed
        lists_all = has_new_key or last is None or self._clock() - last > _UNHANDLED_INTERVAL
        max_unhandled_age = _NEW_KEY_UNHANDLED_AGE if has_new_key else _UNHANDLED_AGE
        request = ListEventsInOrderRequest(
            after=0 if lists_all else self._last_sequence,
            max_age_seconds=int(MAX_EVENT_AGE_SECONDS) + _CLOCK_SKEW,
            max_unhandled_age_seconds=max_unhandled_age,
            keys=sorted(self._subscribed_keys()),
        )
        try:
            response = await self._api.list_events_in_order(request)
        except (Unsupported, Unavailable) as e:
            # Upstream's control plane has no sequence numbers. A list by time can be split where
            # the response is too large.
            if not isinstance(e, Unsupported) and not _is_too_large(e):
                raise
            listed = await self._list_by_time(has_new_key, lists_all, max_unhandled_age)
        else:
            self._last_sequence = response.last
            if request.after and response.last >= request.after + _FULL_RESPONSE:
                self.schedule.refresh_soon()
            listed = [
                _ListedEvent(event, response.now - event.created_at, sequence)
                for event, sequence in zip(response.events, response.sequences, strict=True)
            ]
        if lists_all:
            self._unhandled_listed = self._clock()
        return listed

    async def _list_by_time(
        self, has_new_key: bool, lists_unhandled: bool, max_unhandled_age: int
    ) -> list["_ListedEvent"]:
        """Lists events by their time of creation."""
        now = to_unix(self._now())
        end, start = now + _CLOCK_SKEW, self._newest_created_at - _POLL_OVERLAP
        if has_new_key:
            start = min(start, now - int(MAX_EVENT_AGE_SECONDS) - _CLOCK_SKEW)
        listed = await self._list(pb.ListEventsRequest.ALL, start, end)
        if lists_unhandled:
            start = now - max_unhandled_age
            listed += await self._list(pb.ListEventsRequest.NOT_HANDLED, start, end)
        by_id = {event.id: event for event in listed}
        for event in by_id.values():
            # An event from the future must not hide those of the present.
            self._newest_created_at = max(self._newest_created_at, min(event.created_at, now))
        return [
            _ListedEvent(event, now - event.created_at, 0)
            for event in sorted(by_id.values(), key=lambda event: (event.created_at, event.id))
        ]

    async def _list(
        self, status: pb.ListEventsRequest.Status.ValueType, start: int, end: int
    ) -> list[Event]:
        """The events created in a period, which is split if the response is too large."""
        request = pb.ListEventsRequest(to=end, order=pb.ASC, status=status)
        setattr(request, "from", start)
        try:
            return list((await self._api.list_events(request)).events)
        except Unavailable as e:
            if not _is_too_large(e):
                raise
        if end - start <= 1:
            log.warning("events of one second are too large for one response", created_at=start)
            return []
        # Where there are many, most of them are recent.
        middle = end - max(1, (end - start) // 16)
        return [*await self._list(status, start, middle), *await self._list(status, middle, end)]

    def _evict(self, current: frozenset[str]) -> None:
        """Drops events that no repository subscribes to any more, and old ones."""
        keys, oldest = self._subscribed_keys(), self._clock() - _CACHED_AGE
        for id_, received in tuple(self._received.items()):
            event = received.event
            is_unhandled = event.status == event_pb2.EVENT_NOT_HANDLED and id_ not in self._outcomes
            is_unsubscribed = event.event_key not in keys and id_ not in self._outcomes
            is_old = received.created < oldest and not is_unhandled
            if id_ not in current and (is_unsubscribed or is_old):
                del self._received[id_]
                self._outcomes.pop(id_, None)
        self._newest_by_key = {k: e for k, e in self._newest_by_key.items() if k in keys}
        self._reported.intersection_update(self._outcomes)

    def _subscribed_keys(self) -> frozenset[str]:
        return frozenset[str]().union(*self._subscriptions.values())

    async def _report(self) -> None:
        while True:
            await self._to_report.wait(_REPORT_INTERVAL)
            while self._unreported:
                # Successes and failures go before outdated events.
                order = sorted(
                    self._unreported,
                    key=lambda id_: self._unreported[id_].status not in _COMPLETED,
                )
                batch = {id_: self._unreported.pop(id_) for id_ in order[:_REPORT_BATCH_SIZE]}
                await self._send_report(batch)

    async def _send_report(self, batch: Mapping[str, EventOutcome]) -> None:
        events = [
            pb.ReportEventStatusesRequest.Event(
                id=id_, status=outcome.status, status_description=outcome.description
            )
            for id_, outcome in batch.items()
        ]
        try:
            await self._api.report_event_statuses(pb.ReportEventStatusesRequest(events=events))
        except PipecdError as e:
            if len(batch) == 1:
                log.warning("event status was not accepted", event_id=events[0].id, error=str(e))
                return
            # One invalid status must not prevent the others from being reported.
            for id_, outcome in batch.items():
                await self._send_report({id_: outcome})
        else:
            self._reported.update(batch)


def _is_too_large(error: Unavailable) -> bool:
    cause = error.__cause__
    is_rpc_error = isinstance(cause, grpc.aio.AioRpcError)
    return is_rpc_error and cause.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
