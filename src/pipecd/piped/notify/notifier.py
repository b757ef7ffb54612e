# SPDX-License-Identifier: Apache-2.0
"""Takes notification events from every part of piped and routes them to the receivers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import httpx2
import structlog

from pipecd.config.piped import (
    hook_url,
    mail_password,
    signing_secret,
    slack_token,
    webhook_signature,
)
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
from pipecd.piped.notify.receivers.email import EmailReceiver, tls_context
from pipecd.piped.notify.receivers.slack import SlackReceiver
from pipecd.piped.notify.receivers.teams import TeamsReceiver
from pipecd.piped.notify.receivers.webhook import WebhookReceiver
from pipecd.piped.notify.spool import Spool, SpoolEntry
from pipecd.piped.notify.template import MessageRenderer, validate_templates
from pipecd.proto.model import notification_pb2 as pb

log: structlog.stdlib.BoundLogger = structlog.get_logger()

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
        """Queues the event for every receiver whose routes match; never waits and never fails."""
        if not self._is_open:
            log.warning("notifier is closed, event was not sent", event_type=event.type.name)
            return
        if self._spool.is_duplicate(event.key):
            return
        receivers = [s for s in self._subscribers if s.matching_route(event) is not None]
        if receivers:
            entry = SpoolEntry(event, frozenset(s.outbox.name for s in receivers))
            self._spool.add(entry)
            self._enqueue(entry)

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
        async with asyncio.TaskGroup() as group:
            syncing = group.create_task(self._spool.run())
            tasks = [group.create_task(s.outbox.run()) for s in self._subscribers]
            try:
                await asyncio.Event().wait()
            finally:
                self.notify(
                    self._piped_event(EventType.PIPED_STOPPED, pb.NotificationEventPipedStopped)
                )
                await self._flush(tasks)
                syncing.cancel()

    async def _flush(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        outboxes = [subscriber.outbox for subscriber in self._subscribers]
        for outbox in outboxes:
            outbox.close()
        if tasks:
            await asyncio.wait(tasks, timeout=self._flush_seconds)
        self._is_open = False
        pending = {outbox.name: outbox.pending for outbox in outboxes if outbox.pending}
        if pending:
            log.warning("undelivered notifications are sent at the next start", receivers=pending)
        for task in tasks:
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
            on_done = partial(_done, spool, name)
            outbox = Outbox(name, receiver, on_done=on_done, metrics=metrics)
            subscribers.append(Subscriber(outbox, routes))
    return subscribers


def _done(spool: Spool, receiver: str, delivery: Delivery) -> None:
    spool.done(delivery.id, receiver)


def create_receiver(
    spec: ReceiverSpec, console: ConsoleLinks, client: httpx2.AsyncClient
) -> Receiver | None:
    """The configured receiver, or None if there is none; a missing secret is an error now."""
    validate_templates(spec.templates, of=f"receiver {spec.name}")
    renderer = MessageRenderer(console, spec.templates)
    if spec.slack is not None:
        slack_token(spec.slack)
        return SlackReceiver(spec.slack, renderer, client)
    if spec.webhook is not None:
        webhook_signature(spec.webhook)
        signing_secret(spec.webhook)
        return WebhookReceiver(spec.webhook, client)
    if spec.teams is not None:
        hook_url(spec.teams)
        return TeamsReceiver(spec.teams, renderer, client)
    if spec.discord is not None:
        hook_url(spec.discord)
        return DiscordReceiver(spec.discord, renderer, client)
    if spec.email is not None:
        mail_password(spec.email)
        return EmailReceiver(spec.email, renderer, tls_context(spec.email))
    return None
