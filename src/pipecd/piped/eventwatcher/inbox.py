# SPDX-License-Identifier: Apache-2.0
"""The events that a piped has to act on: asked for in one list, told of in a few reports."""

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
from pipecd.piped.eventwatcher.turn import TOO_OLD, Arrival, Outcome, together
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.service import piped_pb2 as pb

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Clocks of several control planes differ, so each look goes back a little behind the last event.
_OVERLAP = timedelta(minutes=1)
# By so much the clocks of control planes may differ from the one here.
_SKEW = timedelta(minutes=10)
# What nobody acted on is looked through now and then, as far back as it may still be acted on.
_THOROUGH_EVERY, _THOROUGH = timedelta(seconds=50), timedelta(hours=2)
# Older events than these are left to whoever cleans up.
_DEEP = timedelta(days=7)
_REMEMBERED = timedelta(hours=3)
_REPORTED_AT_ONCE = 100
_REPORT_PAUSE = 600.0
_RETRY = 2.0

_ENDED = (event_pb2.EVENT_SUCCESS, event_pb2.EVENT_FAILURE)


class Inbox:
    """Events by the keys that repositories want, and what each repository made of them.

    Others may have acted on an event before; all of its definitions have to be followed. One that
    comes later than that does not change Git in hindsight.
    """

    def __init__(self, api: ControlPlaneClient, *, every: float, now: Now = utc_now) -> None:
        self._api, self._now = api, now
        self.schedule = RefreshSchedule(every)
        self.changes = Changes()
        self._began = to_unix(now())
        self._newest = to_unix(now() - _SKEW)
        # Keys by repository, with the moment since when; 0 for those of the beginning.
        self._wanted: dict[str, dict[str, int]] = {}
        self._is_new_wanted = False
        self._thorough_at: datetime | None = None
        self._arrivals: dict[str, Arrival] = {}
        self._newest_by_key: dict[str, Arrival] = {}
        self._count = 0
        self._settled: dict[str, dict[str, Outcome]] = {}
        self._reports: dict[str, Outcome] = {}
        self._to_report = Watch()
        self._trouble = OutageLog("events")

    def want(self, repository_id: str, keys: frozenset[str]) -> None:
        """From now on a repository acts on the events of these keys."""
        if keys - self._all_wanted():
            self._is_new_wanted = True
            self.schedule.refresh_soon()
        before = self._wanted.get(repository_id)
        since = 0 if before is None else to_unix(self._now())
        self._wanted[repository_id] = {key: (before or {}).get(key, since) for key in keys}

    def pending(self, repository_id: str) -> tuple[Arrival, ...]:
        """The events that a repository wants and has not settled."""
        wanted = self._wanted.get(repository_id, {})
        return tuple(
            arrival
            for id_, arrival in self._arrivals.items()
            if (since := wanted.get(arrival.event.event_key)) is not None
            and repository_id not in self._settled.get(id_, {})
            and self._counts(arrival, since)
        )

    def _counts(self, arrival: Arrival, since: int) -> bool:
        """Whether an event is to be acted on by those who want its key since a moment."""
        match arrival.event.status:
            case event_pb2.EVENT_NOT_HANDLED:
                return True
            case event_pb2.EVENT_OUTDATED:
                return False
            case _:
                was_there = arrival.was_open and not since
                return was_there or arrival.event.created_at >= max(since, self._began)

    def newest(self) -> Mapping[str, Arrival]:
        """The newest event of each wanted key, whatever became of it."""
        return self._newest_by_key

    def settle(self, repository_id: str, outcomes: Mapping[str, Outcome]) -> None:
        """Takes over what became of events in a repository; the control plane learns it soon."""
        for id_, outcome in outcomes.items():
            of_event = self._settled.setdefault(id_, {})
            of_event[repository_id] = outcome
            whole, arrival = together(of_event.values()), self._arrivals.get(id_)
            if arrival is not None and _is_told(arrival.event, whole):
                continue
            self._reports[id_] = whole
            self._to_report.mark()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow(), name="events")
            tasks.create_task(self._report(), name="reports of events")

    async def _follow(self) -> None:
        while True:
            await self.schedule.wait()
            if self._all_wanted() and not await self._refresh():
                await asyncio.sleep(_RETRY)
                self.schedule.refresh_soon()

    async def _refresh(self) -> bool:
        deep, self._is_new_wanted = self._is_new_wanted, False
        try:
            found = await self._listed(deep=deep)
        except PipecdError as e:
            self._is_new_wanted |= deep
            self._trouble.failed(e)
            return False
        self._trouble.succeeded()
        wanted, is_new = self._all_wanted(), False
        now = to_unix(self._now())
        for event in found.values():
            # An event from the future must not hide those of the present.
            self._newest = max(self._newest, min(event.created_at, now))
            if event.event_key in wanted:
                is_new |= self._take(event)
        self._forget(found)
        if is_new:
            self.changes.notify()
        return True

    def _take(self, event: Event) -> bool:
        """Keeps an event as it is now; whether it was not known before."""
        known = self._arrivals.get(event.id)
        if known is None:
            self._count += 1
        is_open = event.status == event_pb2.EVENT_NOT_HANDLED
        arrival = Arrival(
            event,
            known.number if known else self._count,
            was_open=known.was_open if known else is_open,
        )
        self._arrivals[event.id] = arrival
        newest = self._newest_by_key.get(event.event_key)
        if newest is None or newest.rank < arrival.rank:
            self._newest_by_key[event.event_key] = arrival
        return known is None

    async def _listed(self, *, deep: bool) -> dict[str, Event]:
        """Events by id, oldest first; only what happened lately unless it is time for more.

        With a key that is new here, everything of it that may still count is asked for.
        """
        now = self._now()
        end = to_unix(now + _SKEW)
        recent = self._newest - int(_OVERLAP.total_seconds())
        if deep:
            recent = min(recent, to_unix(now - TOO_OLD - _SKEW))
        found = await self._list(pb.ListEventsRequest.ALL, recent, end)
        if deep or self._thorough_at is None or now - self._thorough_at > _THOROUGH_EVERY:
            start = to_unix(now - (_DEEP if deep else _THOROUGH))
            found += await self._list(pb.ListEventsRequest.NOT_HANDLED, start, end)
            self._thorough_at = now
        return {event.id: event for event in sorted(found, key=lambda e: (e.created_at, e.id))}

    async def _list(
        self, status: pb.ListEventsRequest.Status.ValueType, start: int, end: int
    ) -> list[Event]:
        """Events that were registered in a span of time, which is cut if they are too many."""
        request = pb.ListEventsRequest(to=end, order=pb.ASC, status=status)
        setattr(request, "from", start)
        try:
            return list((await self._api.list_events(request)).events)
        except Unavailable as e:
            if not _is_too_large(e):
                raise
        if end - start <= 1:
            log.warning("events of one second are too large to be read", created_at=start)
            return []
        # Where there are many, most of them are young.
        cut = end - max(1, (end - start) // 16)
        return [*await self._list(status, start, cut), *await self._list(status, cut, end)]

    def _forget(self, listed: Iterable[str]) -> None:
        """Drops what nobody wants any more and what happened long ago."""
        kept, wanted = frozenset(listed), self._all_wanted()
        since = to_unix(self._now() - _REMEMBERED)
        for id_, arrival in tuple(self._arrivals.items()):
            is_unwanted = arrival.event.event_key not in wanted and id_ not in self._settled
            is_over = arrival.event.created_at < since and not self._is_awaited(id_, arrival)
            if id_ not in kept and (is_unwanted or is_over):
                del self._arrivals[id_]
                self._settled.pop(id_, None)
        self._newest_by_key = {k: a for k, a in self._newest_by_key.items() if k in wanted}

    def _is_awaited(self, id_: str, arrival: Arrival) -> bool:
        """Whether the control plane still counts on this piped."""
        is_open = arrival.event.status == event_pb2.EVENT_NOT_HANDLED
        return is_open and id_ not in self._settled

    def _all_wanted(self) -> frozenset[str]:
        return frozenset[str]().union(*self._wanted.values())

    async def _report(self) -> None:
        while True:
            await self._to_report.wait(_REPORT_PAUSE)
            while self._reports:
                # What people wait for goes before what is only put away.
                order = sorted(
                    self._reports, key=lambda id_: self._reports[id_].status not in _ENDED
                )
                batch = {id_: self._reports.pop(id_) for id_ in order[:_REPORTED_AT_ONCE]}
                await self._send(batch)

    async def _send(self, batch: Mapping[str, Outcome]) -> None:
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
                log.warning("report of an event was refused", event_id=events[0].id, error=str(e))
                return
            # One that is refused must not keep the others from being told.
            for id_, outcome in batch.items():
                await self._send({id_: outcome})


def _is_told(event: Event, outcome: Outcome) -> bool:
    """Whether the control plane need not hear of an outcome, as it knows of one that weighs more.

    Another piped may have told it; a success does not hide its failure.
    """
    known = Outcome(event.status, event.status_description)
    return event.status in _ENDED and together([known, outcome]).status == event.status


def _is_too_large(error: Unavailable) -> bool:
    cause = error.__cause__
    is_answer = isinstance(cause, grpc.aio.AioRpcError)
    return is_answer and cause.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
