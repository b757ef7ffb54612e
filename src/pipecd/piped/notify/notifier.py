# SPDX-License-Identifier: Apache-2.0
"""Routes the notification events of every part of piped to the receivers."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx2
import structlog

from pipecd.config.piped_notifications import NotificationsSpec, ReceiverSpec, RouteSpec
from pipecd.observe.version import build_version
from pipecd.piped.notify.event import (
    EventSubject,
    EventType,
    NotificationEvent,
    subject_of,
)
from pipecd.piped.notify.message import ConsoleLinks
from pipecd.piped.notify.outbox import Delivery, NotificationMetrics, Outbox, Receiver
from pipecd.piped.notify.receivers.discord import DiscordReceiver
from pipecd.piped.notify.receivers.email import EmailReceiver
from pipecd.piped.notify.receivers.slack import SlackReceiver
from pipecd.piped.notify.receivers.teams import TeamsReceiver
from pipecd.piped.notify.receivers.webhook import WebhookReceiver
from pipecd.piped.notify.spool import Spool, SpoolEntry
from pipecd.piped.notify.template import MessageRenderer, validate_templates
from pipecd.proto.model import notification_pb2 as pb

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The receiver of each section that a receiver may have in the configuration of piped.
RECEIVERS: Mapping[str, Callable[[Any, MessageRenderer, httpx2.AsyncClient], Receiver]] = {
    "slack": SlackReceiver.create,
    "webhook": WebhookReceiver.create,
    "teams": TeamsReceiver.create,
    "discord": DiscordReceiver.create,
    "email": EmailReceiver.create,
}
# How long the last notifications may take when piped shuts down.
_FLUSH_SECONDS = 5.0


@dataclass(frozen=True)
class PipedIdentity:
    """The piped that notifications about piped itself name."""

    project: str
    id: str
    name: str


@dataclass(frozen=True)
class Subscriber:
    """A receiver and the routes that lead to it."""

    outbox: Outbox
    routes: tuple[RouteSpec, ...]

    def matching_route(self, event: NotificationEvent) -> RouteSpec | None:
        """The first route that matches the event."""
        subject = subject_of(event.metadata)
        routes = (route for route in self.routes if route_matches(route, event.type, subject))
        return next(routes, None)


def route_matches(route: RouteSpec, type_: EventType, subject: EventSubject) -> bool:
    """Whether a route selects such an event; `ignore…` settings take precedence."""
    labels = dict(subject.labels or {})
    if (
        type_.name in route.ignore_events
        or type_.group in route.ignore_groups
        or (subject.application and subject.application in route.ignore_apps)
        or route.ignore_labels.items() & labels.items()
    ):
        return False
    if route.events and type_.name not in route.events:
        return False
    if route.groups and type_.group not in route.groups:
        return False
    if subject.labels is None:
        # Events of piped itself have no application to select by.
        return True
    if route.apps and subject.application not in route.apps:
        return False
    return route.labels.items() <= labels.items()


class Notifier:
    """Queues each event once for every receiver that one of its routes leads to."""

    def __init__(
        self,
        piped: PipedIdentity,
        subscribers: Sequence[Subscriber] = (),
        spool: Spool | None = None,
        *,
        flush_seconds: float = _FLUSH_SECONDS,
    ) -> None:
        self._piped, self._subscribers = piped, tuple(subscribers)
        self._spool, self._flush_seconds = spool or Spool(), flush_seconds
        self._is_open = True

    def notify(self, event: NotificationEvent) -> None:
        """Queues the event for every receiver whose routes match; never waits and never fails.

        While piped shuts down it is only persisted, for the next start.
        """
        if self._spool.is_duplicate(event.key):
            return
        receivers = [s for s in self._subscribers if s.matching_route(event) is not None]
        if receivers:
            entry = SpoolEntry(event, frozenset(s.outbox.name for s in receivers))
            self._spool.add(entry)
            if self._is_open:
                self._enqueue(entry)
            elif not self._spool.is_persistent:
                log.warning("notifier is closed, event was not sent", event_type=event.type.name)

    def _enqueue(self, entry: SpoolEntry) -> None:
        unrouted = set(entry.receivers)
        for subscriber in self._subscribers:
            route = subscriber.matching_route(entry.event)
            if route is not None and subscriber.outbox.name in entry.receivers:
                delivery = Delivery(entry.event, route.templates, entry.id, entry.created_at)
                subscriber.outbox.put(delivery)
                unrouted.remove(subscriber.outbox.name)
        for name in unrouted:
            # An earlier piped left it, and its receiver or route was removed.
            self._spool.done(entry.id, name)

    async def run(self) -> None:
        """Delivers until it is cancelled, and then for some seconds what is left."""
        for entry in self._spool.pending:
            self._enqueue(entry)
        self.notify(self._piped_event(EventType.PIPED_STARTED, pb.NotificationEventPipedStarted))
        outboxes = [subscriber.outbox for subscriber in self._subscribers]
        async with asyncio.TaskGroup() as group:
            syncing = group.create_task(self._spool.run())
            tasks = [group.create_task(outbox.run()) for outbox in outboxes]
            try:
                await asyncio.Event().wait()
            finally:
                self.notify(
                    self._piped_event(EventType.PIPED_STOPPED, pb.NotificationEventPipedStopped)
                )
                for outbox in outboxes:
                    outbox.close()
                if tasks:
                    await asyncio.wait(tasks, timeout=self._flush_seconds)
                self._is_open = False
                if pending := {
                    outbox.name: outbox.pending for outbox in outboxes if outbox.pending
                }:
                    log.warning(
                        "undelivered notifications are sent at the next start", receivers=pending
                    )
                for task in (*tasks, syncing):
                    task.cancel()

    def _piped_event(
        self,
        type_: EventType,
        message: type[pb.NotificationEventPipedStarted | pb.NotificationEventPipedStopped],
    ) -> NotificationEvent:
        piped = self._piped
        return NotificationEvent(
            type_,
            message(
                id=piped.id, name=piped.name, version=build_version(), project_id=piped.project
            ),
        )


@asynccontextmanager
async def open_subscribers(
    spec: NotificationsSpec, console: ConsoleLinks, spool: Spool, metrics: NotificationMetrics
) -> AsyncGenerator[list[Subscriber]]:
    """Opens the receivers that routes lead to.

    Without any there is no client, which would load the certificates of every authority.
    """
    if not spec.receivers:
        yield []
        return
    headers = {"User-Agent": f"pipecd/{build_version()}"}
    async with httpx2.AsyncClient(headers=headers) as client:
        yield create_subscribers(spec, console, client, spool, metrics)


def create_subscribers(
    spec: NotificationsSpec,
    console: ConsoleLinks,
    client: httpx2.AsyncClient,
    spool: Spool,
    metrics: NotificationMetrics | None = None,
) -> list[Subscriber]:
    """The receivers that routes lead to; of two with the same name the last one counts."""
    subscribers: list[Subscriber] = []
    for name, receiver_spec in {receiver.name: receiver for receiver in spec.receivers}.items():
        routes = tuple(route for route in spec.routes if route.receiver == name)
        for route in routes:
            validate_templates(route.templates, of=f"route {route.name}")
        receiver = create_receiver(receiver_spec, console, client)
        if receiver is not None and routes:
            on_done = partial(spool.done, receiver=name)
            outbox = Outbox(name, receiver, on_done=on_done, metrics=metrics)
            subscribers.append(Subscriber(outbox, routes))
    return subscribers


def create_receiver(
    spec: ReceiverSpec, console: ConsoleLinks, client: httpx2.AsyncClient
) -> Receiver | None:
    """The configured receiver, or None if there is none; raises if a secret cannot be read."""
    validate_templates(spec.templates, of=f"receiver {spec.name}")
    if spec.kind is None:
        return None
    renderer = MessageRenderer(console, spec.templates)
    return RECEIVERS[spec.kind](getattr(spec, spec.kind), renderer, client)
