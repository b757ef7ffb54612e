# SPDX-License-Identifier: Apache-2.0
"""What is counted of notifications, receiver by receiver."""

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge


@dataclass(frozen=True)
class Tally:
    """What became of the notifications to one receiver."""

    sent: Counter
    given_up: Counter
    retried: Counter


class NotificationMetrics:
    """Counts notifications; without a registry nobody reads what was counted."""

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

    def of(self, receiver: str, waiting: Callable[[], int]) -> Tally:
        """Begins to count for a receiver; `waiting` tells how many there are on their way."""
        self._waiting.labels(receiver).set_function(waiting)
        return Tally(
            sent=self._ended.labels(receiver, "sent"),
            given_up=self._ended.labels(receiver, "given up"),
            retried=self._retried.labels(receiver),
        )
