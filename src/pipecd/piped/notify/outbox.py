# SPDX-License-Identifier: Apache-2.0
"""Delivers notifications to one receiver: in order, one at a time, retried for some minutes.

A receiver that hangs or is unavailable delays no other receiver.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipecd.config.piped_notifications import TemplateSpec
from pipecd.model.backoff import Backoff
from pipecd.model.clock import utc_now
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.model.ids import new_id
from pipecd.piped.notify.event import NotificationEvent

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# A deployment of hundreds of applications causes thousands of notifications within a second.
MAX_QUEUED = 10_000
_BACKOFF = Backoff(first=1.0, longest=60.0)


@dataclass(frozen=True)
class Delivery:
    """An event to deliver; the templates of its route precede those of the receiver."""

    event: NotificationEvent
    templates: tuple[TemplateSpec, ...] = ()
    id: str = field(default_factory=new_id)
    created_at: datetime = field(default_factory=utc_now)


class Receiver(Protocol):
    """A receiver of notifications, such as a Slack channel."""

    async def send(self, delivery: Delivery) -> None:
        """Sends a notification; raises Unavailable if a retry may succeed, or another error."""
        ...


class RetryAfter(Unavailable):
    """The receiver requests a number of seconds before the next attempt."""

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True)
class RetryPolicy:
    """How long a notification is retried, in seconds."""

    attempt_timeout: float = 10.0
    give_up_after: float = 300.0
    backoff: Backoff = _BACKOFF
    shutdown_backoff: float = 0.5
    """The longest wait between two attempts while piped shuts down."""


@dataclass(frozen=True)
class ReceiverMetrics:
    """The counters of one receiver."""

    sent: Counter
    given_up: Counter
    retried: Counter


class NotificationMetrics:
    """The metrics of notifications; without a registry they are not exported."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._ended = Counter(
            "pipecd_notifications_total",
            "Notifications that were delivered, or never will be.",
            ("receiver", "result"),
            registry=registry,
        )
        self._retried = Counter(
            "pipecd_notification_retries_total",
            "Deliveries that failed and were tried again.",
            ("receiver",),
            registry=registry,
        )
        self._waiting = Gauge(
            "pipecd_notifications_waiting",
            "Notifications that have not been delivered yet.",
            ("receiver",),
            registry=registry,
        )

    def of(self, receiver: str, pending: Callable[[], int]) -> ReceiverMetrics:
        """The metrics of a receiver; `pending` returns how many deliveries are queued."""
        self._waiting.labels(receiver).set_function(pending)
        return ReceiverMetrics(
            sent=self._ended.labels(receiver, "sent"),
            given_up=self._ended.labels(receiver, "given up"),
            retried=self._retried.labels(receiver),
        )


class Outbox:
    """The queue of deliveries to one receiver."""

    def __init__(
        self,
        name: str,
        receiver: Receiver,
        *,
        on_done: Callable[[str], None],
        max_queued: int = MAX_QUEUED,
        retry: RetryPolicy | None = None,
        metrics: NotificationMetrics | None = None,
    ) -> None:
        """`on_done` is called with the id of each delivery that was sent, or never will be."""
        self.name, self._on_done = name, on_done
        self._receiver, self._max_queued, self._retry = receiver, max_queued, retry or RetryPolicy()
        self._queue: deque[Delivery] = deque()
        self._dropped = 0
        self._metrics = (metrics or NotificationMetrics()).of(name, lambda: self.pending)
        self._arrived = asyncio.Event()
        self._closing = asyncio.Event()

    def put(self, delivery: Delivery) -> None:
        """Queues a delivery; if the queue is full, the oldest one is dropped."""
        if len(self._queue) >= self._max_queued:
            self._on_done(self._queue.popleft().id)
            self._metrics.given_up.inc()
            self._dropped += 1
            if self._dropped == 1:
                log.warning("notification queue is full, dropping the oldest", receiver=self.name)
        self._queue.append(delivery)
        self._arrived.set()

    def close(self) -> None:
        """Lets `run` end when the queue is empty."""
        self._closing.set()
        self._arrived.set()

    @property
    def pending(self) -> int:
        """How many deliveries are queued."""
        return len(self._queue)

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._queue:
                # Stays queued until it is delivered, so that it counts as pending.
                delivery = self._queue[0]
                await self._deliver(delivery)
                # A full queue may have dropped it in the meantime.
                if self._queue and self._queue[0] is delivery:
                    self._on_done(self._queue.popleft().id)
            if self._dropped:
                log.warning("notifications were dropped", receiver=self.name, count=self._dropped)
                self._dropped = 0
            if self._closing.is_set():
                return
            self._arrived.clear()

    async def _deliver(self, delivery: Delivery) -> None:
        clock = asyncio.get_running_loop().time
        deadline, backoff = clock() + self._retry.give_up_after, iter(self._retry.backoff)
        while True:
            try:
                async with asyncio.timeout(self._retry.attempt_timeout):
                    await self._receiver.send(delivery)
            except (Unavailable, TimeoutError) as e:
                delay = next(backoff)
                if isinstance(e, RetryAfter):
                    delay = max(delay, min(e.seconds, self._retry.give_up_after))
                if clock() + delay > deadline:
                    self._give_up(delivery, e)
                    return
                log.info(
                    "notification failed, retrying",
                    retry_in=f"{delay:.1f}s",
                    **self._log_fields(delivery, e),
                )
                self._metrics.retried.inc()
                await self._wait(delay)
            except PipecdError as e:
                self._give_up(delivery, e)
                return
            else:
                self._metrics.sent.inc()
                return

    async def _wait(self, seconds: float) -> None:
        """Waits before the next attempt; while piped shuts down, not for long."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(seconds, self._retry.shutdown_backoff))

    def _give_up(self, delivery: Delivery, error: Exception) -> None:
        log.warning("notification was not delivered", **self._log_fields(delivery, error))
        self._metrics.given_up.inc()

    def _log_fields(self, delivery: Delivery, error: Exception) -> dict[str, str]:
        cause = str(error) or f"no response within {self._retry.attempt_timeout:g} seconds"
        return {"receiver": self.name, "event_type": delivery.event.type.name, "error": cause}
