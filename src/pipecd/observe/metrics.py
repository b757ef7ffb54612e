# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of a program, in a registry of its own, under the names dashboards use.

Every metric is declared with prometheus-client's classes and `registry=`; the global registry is
never used. Where calls are counted the children are resolved once with `.labels(...)`, because a
lookup costs several times as much as an increment.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from pipecd.model.errors import Conflict, NotFound, PipecdError, Unavailable
from pipecd.observe.operations import Ended, Headers

_RPC_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_HTTP_LABELS = ("code", "method", "path")
_STORE_LABELS = ("store", "operation")
_MILLISECONDS = (1, 5, 25, 125, 625, 3125, 15625)
_STORE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
# Clients may send any method; only known ones become values of a label.
_METHODS = frozenset({"get", "head", "post", "put", "patch", "delete", "options"})


class ConstantLabels(Collector):
    """Adds constant labels to the samples of a registry or collector, and drops `_created`."""

    def __init__(self, inner: CollectorRegistry | Collector, labels: Mapping[str, str]) -> None:
        self._inner, self._labels = inner, dict(labels)

    def collect(self) -> Iterable[Metric]:
        for family in self._inner.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, **self._labels})
                for sample in family.samples
                # The creation time of every counter would double the page.
                if not sample.name.endswith("_created")
            ]
            yield family


class PluginCounter:
    """A counter that a plugin increments; the SDK calls it `Tally`."""

    def __init__(self, counter: Counter, labels: tuple[str, ...]) -> None:
        self._counter, self.labels = counter, labels

    def add(self, **labels: str) -> None:
        """Counts one more; every label has a value."""
        (self._counter.labels(**labels) if self.labels else self._counter).inc()


class PluginMetrics(Collector):
    """The counters of all plugins in a process; plugins that name the same counter share it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, PluginCounter] = {}

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> PluginCounter:
        """Returns the counter of a name, which is created with the first request."""
        existing = self._counters.get(name)
        if existing is None:
            counter = Counter(name, text, labels, registry=self._registry)
            existing = self._counters[name] = PluginCounter(counter, tuple(labels))
        if existing.labels != tuple(labels):
            raise Conflict(
                f"metric {name} already has the labels {', '.join(existing.labels) or '(none)'}",
                hint="use the same labels or another name",
            )
        return existing

    def value(self, name: str, labels: Mapping[str, str]) -> float:
        """Returns the value of a counter; 0 when it does not exist."""
        return self._registry.get_sample_value(name, dict(labels)) or 0

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()


class _RpcCounters(NamedTuple):
    """The counters of one RPC, resolved once."""

    labels: tuple[str, str, str]
    started: Counter
    received: Counter
    sent: Counter
    succeeded: Counter


class RpcMetrics:
    """Counts the calls of gRPC services; an `RpcObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *more_labels: str) -> Counter:
            labels = (*_RPC_LABELS, *more_labels)
            return Counter(f"grpc_server_{name}", text, labels, registry=registry)

        self._started = counter("started", "RPCs started on the server.")
        self._received = counter("msg_received", "Messages received on the server.")
        self._sent = counter("msg_sent", "Messages sent by the server.")
        self._handled = counter("handled", "RPCs completed on the server.", "grpc_code")
        self._counters: dict[tuple[str, str], _RpcCounters] = {}

    def registered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Creates every counter at zero, so that the first call shows up as an increase."""
        labels = ("server_stream" if streaming else "unary", service, rpc)
        self._counters[service, rpc] = _RpcCounters(
            labels,
            self._started.labels(*labels),
            self._received.labels(*labels),
            self._sent.labels(*labels),
            self._handled.labels(*labels, code_name(grpc.StatusCode.OK)),
        )

    def started(self, service: str, rpc: str, metadata: Headers) -> None:
        del metadata
        counters = self._counters[service, rpc]
        counters.started.inc()
        counters.received.inc()

    def sent(self, service: str, rpc: str) -> None:
        self._counters[service, rpc].sent.inc()

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None:
        del seconds
        counters = self._counters[service, rpc]
        if code is grpc.StatusCode.OK:
            counters.succeeded.inc()
        else:
            self._handled.labels(*counters.labels, code_name(code)).inc()


class HttpMetrics:
    """Counts HTTP responses and their duration."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests_total", "HTTP requests.", _HTTP_LABELS, registry=registry
        )
        self._durations = Histogram(
            "http_request_duration_milliseconds",
            "Duration of HTTP requests.",
            _HTTP_LABELS,
            buckets=_MILLISECONDS,
            registry=registry,
        )

    def responded(self, method: str, path: str, code: int, seconds: float) -> None:
        verb = method.lower()
        labels = (str(code), verb if verb in _METHODS else "other", path)
        self._requests.labels(*labels).inc()
        self._durations.labels(*labels).observe(seconds * 1000)


@dataclass(frozen=True)
class ServerMetrics:
    """The metrics of a control plane; `registry` is what its admin port exposes."""

    registry: CollectorRegistry
    rpc: RpcMetrics
    http: HttpMetrics
    deployments: Counter
    takeovers: Counter
    cache: Counter

    @classmethod
    def new(cls) -> "ServerMetrics":
        inner, shown = CollectorRegistry(), CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=inner)
        shown.register(ConstantLabels(inner, {"pipecd_component": "server"}))
        return cls(
            registry=shown,
            rpc=RpcMetrics(inner),
            http=HttpMetrics(inner),
            deployments=Counter(
                "grpcapi_create_deployment_total",
                "Deployments created by pipeds.",
                ("project",),
                registry=inner,
            ),
            takeovers=Counter(
                "pipecd_piped_takeovers_total",
                "Pipeds that a newer process with the same id replaced while they were running.",
                ("project",),
                registry=inner,
            ),
            cache=Counter(
                "cache_get_operation_total",
                "Reads of the cache.",
                ("status", "source"),
                registry=inner,
            ),
        )

    def deployment_created(self, project: str) -> None:
        self.deployments.labels(project).inc()

    def piped_taken_over(self, project: str) -> None:
        self.takeovers.labels(project).inc()

    def cache_reads(self, source: str) -> Callable[[bool], None]:
        """Returns what counts a read of the shared cache, called with whether it was a hit.

        `source` is redis or inmemory.
        """
        hits, misses = self.cache.labels("hit", source), self.cache.labels("miss", source)
        return lambda hit: (hits if hit else misses).inc()


class _OperationMetrics(NamedTuple):
    """The metrics of one operation of a store, resolved once."""

    seconds: Histogram
    succeeded: Counter


class StoreMetrics:
    """Counts store operations, bus signals and open streams; an `OperationObserver`."""

    def __init__(self, registry: CollectorRegistry, component: str) -> None:
        inner = CollectorRegistry()
        registry.register(ConstantLabels(inner, {"pipecd_component": component}))
        self._operations = Counter(
            "pipecd_store_operations",
            "Operations of the datastore and the filestore by result.",
            (*_STORE_LABELS, "result"),
            registry=inner,
        )
        self._seconds = Histogram(
            "pipecd_store_operation_seconds",
            "Duration of operations of the datastore and the filestore.",
            _STORE_LABELS,
            buckets=_STORE_SECONDS,
            registry=inner,
        )
        self._signals = Counter(
            "pipecd_bus_signals",
            "Signals published on the bus by this process.",
            ("topic",),
            registry=inner,
        )
        self._streams = Gauge("pipecd_streams", "Open streams by kind.", ("kind",), registry=inner)
        self._subscribers = Gauge(
            "pipecd_bus_subscribers", "Subscribers of the bus in this process.", registry=inner
        )
        self._resolved: dict[tuple[str, str], _OperationMetrics] = {}
        self._resolved_signals: dict[str, Counter] = {}

    def begun(self, store: str, operation: str) -> Ended:
        metrics = self._resolved.get((store, operation))
        if metrics is None:
            metrics = self._resolved[store, operation] = _OperationMetrics(
                self._seconds.labels(store, operation),
                self._operations.labels(store, operation, "ok"),
            )
        started = time.perf_counter()

        def ended(error: BaseException | None) -> None:
            metrics.seconds.observe(time.perf_counter() - started)
            match error:
                case None | NotFound():
                    metrics.succeeded.inc()
                    return
                case Unavailable():
                    result = "unavailable"
                case PipecdError():
                    result = "refused"
                case _:
                    result = "failed"
            self._operations.labels(store, operation, result).inc()

        return ended

    def signalled(self, topic: str) -> None:
        counter = self._resolved_signals.get(topic)
        if counter is None:
            counter = self._resolved_signals[topic] = self._signals.labels(topic)
        counter.inc()

    def subscribed(self, change: int) -> None:
        """Adds a subscriber of the bus (1) or removes one (-1)."""
        self._subscribers.inc(change)

    def streams(self, kind: str, count: Callable[[], int]) -> None:
        """Exposes the number of open streams of a kind, counted when the page is read."""
        self._streams.labels(kind).set_function(count)


def code_name(code: grpc.StatusCode) -> str:
    """Returns a status code as grpc-go spells it: NOT_FOUND is NotFound."""
    if code is grpc.StatusCode.OK:
        return "OK"
    # Go spells this one with a single l.
    name = "CANCELED" if code is grpc.StatusCode.CANCELLED else code.name
    return "".join(word.capitalize() for word in name.split("_"))
