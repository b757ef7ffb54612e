# SPDX-License-Identifier: Apache-2.0
"""What a control plane counts of its own store_metrics: stores, bus and streams."""

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from pipecd.model.errors import NotFound, PipecdError, Unavailable
from pipecd.observe.metrics import Counts, Spreads
from pipecd.observe.watch import Ended

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)


class StoreMetrics:
    """Figures about what nobody sees from outside; a `Watcher` of the stores."""

    def __init__(self, registry: CollectorRegistry, component: str) -> None:
        self._component, self._registry = component, registry
        about = ("pipecd_component", "store", "operation")
        self._operations = Counts(
            "pipecd_store_operations",
            "Questions to the stores by how they ended.",
            (*about, "result"),
            registry=registry,
        )
        self._seconds = Spreads(
            "pipecd_store_operation_seconds",
            "How long the stores took to answer.",
            about,
            _SECONDS,
            registry=registry,
        )
        self._signals = Counts(
            "pipecd_bus_signals",
            "Changes that this process told of, by what changed.",
            ("pipecd_component", "topic"),
            registry=registry,
        )
        self._streams = Gauge(
            "pipecd_streams",
            "Listeners that are connected now, by kind.",
            ("pipecd_component", "kind"),
            registry=registry,
        )
        self._subscribers = Gauge(
            "pipecd_bus_subscribers",
            "Parts of this process that listen to the bus.",
            ("pipecd_component",),
            registry=registry,
        ).labels(component)

    def begun(self, part: str, operation: str) -> Ended:
        started = time.perf_counter()

        def ended(error: BaseException | None) -> None:
            seconds = time.perf_counter() - started
            self._seconds.of(self._component, part, operation).add(seconds)
            self._operations.of(self._component, part, operation, _result(error)).add()

        return ended

    def signalled(self, topic: str) -> None:
        self._signals.of(self._component, topic).add()

    def subscribed(self, change: int) -> None:
        """One more listener of the bus, or one less."""
        self._subscribers.inc(change)

    def streams(self, kind: str, count: Callable[[], int]) -> None:
        """Shows how many streams of a kind are open whenever somebody asks."""
        self._streams.labels(self._component, kind).set_function(count)


def _result(error: BaseException | None) -> str:
    match error:
        case None | NotFound():
            return "ok"
        case Unavailable():
            return "unavailable"
        case PipecdError():
            return "refused"
        case _:
            return "failed"
