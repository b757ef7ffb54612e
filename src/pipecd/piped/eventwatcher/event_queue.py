# SPDX-License-Identifier: Apache-2.0
"""The events that a piped has to handle: polled in one list, reported in a few batches."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import grpc
import grpc.aio
import structlog

from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.piped.cache.changes import Changes, Watch
from pipecd.piped.cache.refresh import OutageLog, RefreshSchedule
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.eventwatcher.selection import (
    MAX_EVENT_AGE,
    EventOutcome,
    ReceivedEvent,
    combine_outcomes,
)
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.service import piped_pb2 as pb

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The clocks of several control planes differ, so each poll overlaps the newest event a little.
_POLL_OVERLAP = timedelta(minutes=1)
# The largest difference between the clocks of the control planes and the local one.
_CLOCK_SKEW = timedelta(minutes=10)
# Unhandled events are listed now and then, as far back as they may still be handled.
_UNHANDLED_INTERVAL, _UNHANDLED_AGE = timedelta(seconds=50), timedelta(hours=2)
# The same after a new key was subscribed; older events are left to the control plane's clean-up.
_NEW_KEY_UNHANDLED_AGE = timedelta(days=7)
_CACHED_AGE = timedelta(hours=3)
_REPORT_BATCH_SIZE = 100
_REPORT_INTERVAL = 600.0
_RETRY_SECONDS = 2.0

_COMPLETED = (event_pb2.EVENT_SUCCESS, event_pb2.EVENT_FAILURE)


class EventQueue:
    """Events by the keys that repositories subscribe to, and their outcome in each repository.

    Other pipeds may have handled an event before; all of its definitions have to be applied. A
    definition that is added later than an event was handled does not change Git in hindsight.
    """

    def __init__(self, api: ControlPlaneClient, *, interval: float, now: Now = utc_now) -> None:
        self._api, self._now = api, now
        self.schedule = RefreshSchedule(interval)
        self.changes = Changes()
        self._started_at = to_unix(now())
        self._newest_created_at = to_unix(now() - _CLOCK_SKEW)
        # By repository the keys, with the time since when; 0 for the first subscription.
        self._subscriptions: dict[str, dict[str, int]] = {}
        self._has_new_key = False
        self._unhandled_listed_at: datetime | None = None
        self._received: dict[str, ReceivedEvent] = {}
        self._newest_by_key: dict[str, ReceivedEvent] = {}
        self._received_count = 0
        self._outcomes: dict[str, dict[str, EventOutcome]] = {}
        self._unreported: dict[str, EventOutcome] = {}
        self._to_report = Watch()
        self._outage = OutageLog("events")

    def subscribe(self, repository_id: str, keys: frozenset[str]) -> None:
        """From now on a repository handles the events of these keys."""
        if keys - self._subscribed_keys():
            self._has_new_key = True
            self.schedule.refresh_soon()
        before = self._subscriptions.get(repository_id)
        since = 0 if before is None else to_unix(self._now())
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

    def _is_relevant(self, received: ReceivedEvent, since: int) -> bool:
        """Whether an event is to be handled by a subscription that exists since a time."""
        match received.event.status:
            case event_pb2.EVENT_NOT_HANDLED:
                return True
            case event_pb2.EVENT_OUTDATED:
                return False
            case _:
                was_subscribed = received.was_unhandled and not since
                is_new = received.event.created_at >= max(since, self._started_at)
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
            keys, is_new = self._subscribed_keys(), False
            now = to_unix(self._now())
            for event in listed.values():
                # An event from the future must not hide those of the present.
                self._newest_created_at = max(self._newest_created_at, min(event.created_at, now))
                if event.event_key in keys:
                    is_new |= self._receive(event)
            self._evict(listed)
            if is_new:
                self.changes.notify()

    def _receive(self, event: Event) -> bool:
        """Caches an event as it is now; returns whether it is new."""
        cached = self._received.get(event.id)
        if cached is None:
            self._received_count += 1
        is_unhandled = event.status == event_pb2.EVENT_NOT_HANDLED
        received = ReceivedEvent(
            event,
            cached.number if cached else self._received_count,
            was_unhandled=cached.was_unhandled if cached else is_unhandled,
        )
        self._received[event.id] = received
        newest = self._newest_by_key.get(event.event_key)
        if newest is None or newest.rank < received.rank:
            self._newest_by_key[event.event_key] = received
        return cached is None

    async def _list_events(self, *, has_new_key: bool) -> dict[str, Event]:
        """Events by id, oldest first: the recent ones, and now and then all unhandled ones.

        For a new key all events that may still be handled are listed.
        """
        now = self._now()
        end = to_unix(now + _CLOCK_SKEW)
        start = self._newest_created_at - int(_POLL_OVERLAP.total_seconds())
        if has_new_key:
            start = min(start, to_unix(now - MAX_EVENT_AGE - _CLOCK_SKEW))
        listed = await self._list(pb.ListEventsRequest.ALL, start, end)
        last = self._unhandled_listed_at
        if has_new_key or last is None or now - last > _UNHANDLED_INTERVAL:
            start = to_unix(now - (_NEW_KEY_UNHANDLED_AGE if has_new_key else _UNHANDLED_AGE))
            listed += await self._list(pb.ListEventsRequest.NOT_HANDLED, start, end)
            self._unhandled_listed_at = now
        return {event.id: event for event in sorted(listed, key=lambda e: (e.created_at, e.id))}

    async def _list(
        self, status: pb.ListEventsRequest.Status.ValueType, start: int, end: int
    ) -> list[Event]:
        """The events created in a period, which is split if the response is too large."""
        request = pb.ListEventsRequest(to=end, order=pb.ASC, status=status)
        setattr(request, "from", start)
        try:
            return list((await self._api.list_events(request)).events)
        except Unavailable as e:
            cause = e.__cause__
            if not isinstance(cause, grpc.aio.AioRpcError):
                raise
            if cause.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        if end - start <= 1:
            log.warning("events of one second are too large for one response", created_at=start)
            return []
        # Where there are many, most of them are recent.
        middle = end - max(1, (end - start) // 16)
        return [*await self._list(status, start, middle), *await self._list(status, middle, end)]

    def _evict(self, listed: Iterable[str]) -> None:
        """Drops events that no repository subscribes to any more, and old ones."""
        current, keys = frozenset(listed), self._subscribed_keys()
        oldest = to_unix(self._now() - _CACHED_AGE)
        for id_, received in tuple(self._received.items()):
            event = received.event
            is_unhandled = event.status == event_pb2.EVENT_NOT_HANDLED and id_ not in self._outcomes
            is_unsubscribed = event.event_key not in keys and id_ not in self._outcomes
            is_old = event.created_at < oldest and not is_unhandled
            if id_ not in current and (is_unsubscribed or is_old):
                del self._received[id_]
                self._outcomes.pop(id_, None)
        self._newest_by_key = {k: e for k, e in self._newest_by_key.items() if k in keys}

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
