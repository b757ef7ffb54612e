# SPDX-License-Identifier: Apache-2.0
"""Takes notices from every part of piped and sees that those who want them get them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import httpx2
import structlog

from pipecd.config.piped.notification import NotificationsSpec, RouteSpec
from pipecd.observe.version import build_version
from pipecd.piped.notify.message import Console
from pipecd.piped.notify.metrics import NotificationMetrics
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.piped.notify.outbox import Letter, Outbox
from pipecd.piped.notify.receivers.choice import choose
from pipecd.piped.notify.route import passes
from pipecd.piped.notify.spool import Entry, Spool
from pipecd.piped.notify.subject import subject_of
from pipecd.piped.notify.template import check
from pipecd.proto.model import notification_pb2 as pb

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# How long the last notices may take when piped ends.
_FLUSH_SECONDS = 5.0


@dataclass(frozen=True)
class Identity:
    """Who a piped is, for those who read its notices."""

    project: str
    id: str
    name: str


@dataclass(frozen=True)
class Subscriber:
    """A receiver and the routes that lead to it."""

    outbox: Outbox
    routes: tuple[RouteSpec, ...]

    def route_of(self, notice: Notice) -> RouteSpec | None:
        """The first route that wants the notice."""
        about = subject_of(notice.facts)
        return next((route for route in self.routes if passes(route, notice.kind, about)), None)


class Notifier:
    """Queues each notice once for every receiver that one of its routes leads to."""

    def __init__(
        self,
        identity: Identity,
        subscribers: Sequence[Subscriber] = (),
        spool: Spool | None = None,
        *,
        flush_seconds: float = _FLUSH_SECONDS,
    ) -> None:
        self._identity, self._subscribers = identity, tuple(subscribers)
        self._spool, self._flush_seconds = spool or Spool(), flush_seconds
        self._is_open = True

    def tell(self, notice: Notice) -> None:
        """Queues the notice for everybody who wants it; never waits and never fails."""
        if not self._is_open:
            log.warning("notification came too late", notice=notice.kind.name)
            return
        if self._spool.knows(notice.key):
            return
        wanted = [s for s in self._subscribers if s.route_of(notice) is not None]
        if wanted:
            entry = Entry(notice, frozenset(s.outbox.name for s in wanted))
            self._spool.add(entry)
            self._send(entry)

    def _send(self, entry: Entry) -> None:
        unknown = set(entry.receivers)
        for subscriber in self._subscribers:
            route = subscriber.route_of(entry.notice)
            if route is not None and subscriber.outbox.name in entry.receivers:
                letter = Letter(entry.notice, route.templates, entry.id, entry.told_at)
                subscriber.outbox.put(letter)
                unknown.remove(subscriber.outbox.name)
        for name in unknown:
            # Nobody wants any more what an earlier piped left.
            self._spool.gone(entry.id, name)

    async def run(self) -> None:
        """Delivers until it is cancelled, and then for some seconds what is left."""
        for entry in self._spool.waiting:
            self._send(entry)
        self.tell(self._itself(NoticeKind.PIPED_STARTED, pb.NotificationEventPipedStarted))
        async with asyncio.TaskGroup() as group:
            keeping = group.create_task(self._spool.run())
            tasks = [group.create_task(s.outbox.run()) for s in self._subscribers]
            try:
                await asyncio.Event().wait()
            finally:
                self.tell(self._itself(NoticeKind.PIPED_STOPPED, pb.NotificationEventPipedStopped))
                await self._flush(tasks)
                keeping.cancel()

    async def _flush(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        outboxes = [subscriber.outbox for subscriber in self._subscribers]
        for outbox in outboxes:
            outbox.close()
        if tasks:
            await asyncio.wait(tasks, timeout=self._flush_seconds)
        self._is_open = False
        lost = {outbox.name: outbox.left for outbox in outboxes if outbox.left}
        if lost:
            log.warning("notifications are left for the next start", receivers=lost)
        for task in tasks:
            task.cancel()

    def _itself(
        self,
        kind: NoticeKind,
        message: type[pb.NotificationEventPipedStarted | pb.NotificationEventPipedStopped],
    ) -> Notice:
        own = self._identity
        return Notice(
            kind,
            message(id=own.id, name=own.name, version=build_version(), project_id=own.project),
        )


def subscribers(
    spec: NotificationsSpec,
    console: Console,
    client: httpx2.AsyncClient,
    spool: Spool,
    metrics: NotificationMetrics | None = None,
) -> list[Subscriber]:
    """The receivers that routes lead to; of two of the same name the last one counts."""
    found: list[Subscriber] = []
    for name, receiver in {receiver.name: receiver for receiver in spec.receivers}.items():
        routes = tuple(route for route in spec.routes if route.receiver == name)
        for route in routes:
            check(route.templates, of=f"route {route.name}")
        chosen = choose(receiver, console, client)
        if chosen is not None and routes:
            outbox = Outbox(name, chosen, gone=partial(_gone, spool, name), metrics=metrics)
            found.append(Subscriber(outbox, routes))
    return found


def _gone(spool: Spool, receiver: str, letter: Letter) -> None:
    spool.gone(letter.id, receiver)
