# SPDX-License-Identifier: Apache-2.0
"""What a program counts, in a registry of its own, at the names that dashboards know."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import grpc
from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pipecd.model.errors import Conflict
from pipecd.observe.watch import Headers

_RPC_LABELS = ("grpc_type", "grpc_service", "grpc_method")
_HTTP_LABELS = ("code", "method", "path")
_MILLISECONDS = (1, 5, 25, 125, 625, 3125, 15625)
# A label must not take whatever a visitor sends.
_METHODS = frozenset({"get", "head", "post", "put", "patch", "delete", "options"})


class Labelled(Collector):
    """Everything that somebody collects, with labels that tell this program from others."""

    def __init__(self, inner: CollectorRegistry | Collector, labels: Mapping[str, str]) -> None:
        self._inner, self._labels = inner, dict(labels)

    def collect(self) -> Iterable[Metric]:
        for family in self._inner.collect():
            family.samples = [
                sample._replace(labels={**sample.labels, **self._labels})
                for sample in family.samples
                # When a counter began doubles the page and is of use to nobody.
                if not sample.name.endswith("_created")
            ]
            yield family


class Tally:
    """Something that is counted by labels."""

    def __init__(self, counter: Counter, labels: tuple[str, ...]) -> None:
        self._counter, self.labels = counter, labels

    def add(self, **labels: str) -> None:
        """Counts one more; every label has a value."""
        (self._counter.labels(**labels) if self.labels else self._counter).inc()


class Tallies(Collector):
    """What the plugins of a program count; those that name the same figure count together."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._known: dict[str, Tally] = {}

    def tally(self, name: str, text: str, labels: Sequence[str] = ()) -> Tally:
        """The figure of a name; `text` tells people what is counted."""
        known = self._known.get(name)
        if known is None:
            counter = Counter(name, text, labels, registry=self._registry)
            known = self._known[name] = Tally(counter, tuple(labels))
        if known.labels != tuple(labels):
            raise Conflict(
                f"{name} is counted by {', '.join(known.labels) or 'no labels'} already",
                hint="count it by the same labels, or under another name",
            )
        return known

    def value(self, name: str, labels: Mapping[str, str]) -> float:
        """How often something was counted."""
        return self._registry.get_sample_value(name, dict(labels)) or 0

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()


class Count:
    """How often something happened; the event loop alone writes it.

    Counters of the library take a lock for every change, and a call changes ten of them.
    """

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def add(self) -> None:
        self.value += 1


class Counts(Collector):
    """A counter by labels."""

    def __init__(
        self, name: str, text: str, labels: Sequence[str], *, registry: CollectorRegistry
    ) -> None:
        self._family = partial(CounterMetricFamily, name, text, labels=labels)
        self._of: defaultdict[tuple[str, ...], Count] = defaultdict(Count)
        registry.register(self)

    def of(self, *values: str) -> Count:
        """The count of these labels, which stays the same."""
        return self._of[values]

    def describe(self) -> Iterable[Metric]:
        yield self._family()

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for values, count in self._of.items():
            family.add_metric(values, count.value)
        yield family


class Spread:
    """How often something was how large; the event loop alone writes it."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Spreads(Collector):
    """A histogram by labels."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        bounds: Sequence[float],
        *,
        registry: CollectorRegistry,
    ) -> None:
        self._family = partial(HistogramMetricFamily, name, text, labels=labels)
        self._names = [*(repr(float(bound)) for bound in bounds), "+Inf"]
        self._of: defaultdict[tuple[str, ...], Spread] = defaultdict(partial(Spread, bounds))
        registry.register(self)

    def of(self, *values: str) -> Spread:
        """The spread of these labels, which stays the same."""
        return self._of[values]

    def describe(self) -> Iterable[Metric]:
        yield self._family()

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for values, spread in self._of.items():
            buckets = list(zip(self._names, accumulate(spread.counts), strict=True))
            family.add_metric(values, buckets=buckets, sum_value=spread.total)
        yield family


class _Counters(NamedTuple):
    """What is counted of one RPC."""

    labels: tuple[str, str, str]
    started: Count
    received: Count
    sent: Count
    succeeded: Count


class RpcMetrics:
    """Counts the calls of gRPC services; an `RpcObserver`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._started = _counts(registry, "started", "RPCs started on the server.")
        self._received = _counts(registry, "msg_received", "Messages received on the server.")
        self._sent = _counts(registry, "msg_sent", "Messages sent by the server.")
        self._handled = _counts(registry, "handled", "RPCs completed on the server.", "grpc_code")
        self._of: dict[tuple[str, str], _Counters] = {}

    def offered(self, service: str, rpc: str, *, streaming: bool) -> None:
        """Begins every count at zero, so that the first call is seen as a change."""
        labels = ("server_stream" if streaming else "unary", service, rpc)
        self._of[service, rpc] = _Counters(
            labels,
            self._started.of(*labels),
            self._received.of(*labels),
            self._sent.of(*labels),
            self._handled.of(*labels, code_name(grpc.StatusCode.OK)),
        )

    def started(self, service: str, rpc: str, metadata: Headers) -> None:
        del metadata
        counters = self._of[service, rpc]
        counters.started.add()
        counters.received.add()

    def sent(self, service: str, rpc: str) -> None:
        self._of[service, rpc].sent.add()

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None:
        del seconds
        counters = self._of[service, rpc]
        if code is grpc.StatusCode.OK:
            counters.succeeded.add()
        else:
            self._handled.of(*counters.labels, code_name(code)).add()


class HttpMetrics:
    """Counts the answers of a web server and how long they took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "http_requests_total", "HTTP requests answered.", _HTTP_LABELS, registry=registry
        )
        self._durations = Histogram(
            "http_request_duration_milliseconds",
            "How long HTTP requests took.",
            _HTTP_LABELS,
            buckets=_MILLISECONDS,
            registry=registry,
        )

    def answered(self, method: str, path: str, code: int, seconds: float) -> None:
        verb = method.lower()
        labels = (str(code), verb if verb in _METHODS else "other", path)
        self._requests.labels(*labels).inc()
        self._durations.labels(*labels).observe(seconds * 1000)


@dataclass(frozen=True)
class ServerMetrics:
    """Everything that a control plane counts; `registry` is what its admin port shows."""

    registry: CollectorRegistry
    rpc: RpcMetrics
    http: HttpMetrics
    deployments: Counter
    cache: Counter

    @classmethod
    def new(cls) -> "ServerMetrics":
        inner, shown = CollectorRegistry(), CollectorRegistry()
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=inner)
        shown.register(Labelled(inner, {"pipecd_component": "server"}))
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
            cache=Counter(
                "cache_get_operation_total",
                "Questions to the cache.",
                ("status", "source"),
                registry=inner,
            ),
        )

    def deployment_created(self, project: str) -> None:
        self.deployments.labels(project).inc()

    def cache_asked(self, source: str, *, hit: bool) -> None:
        """Counts a question to the cache; `source` is redis or inmemory."""
        self.cache.labels("hit" if hit else "miss", source).inc()


def code_name(code: grpc.StatusCode) -> str:
    """A status code as dashboards spell it: NOT_FOUND is NotFound."""
    if code is grpc.StatusCode.OK:
        return "OK"
    # Go spells this one with a single l.
    name = "CANCELED" if code is grpc.StatusCode.CANCELLED else code.name
    return "".join(word.capitalize() for word in name.split("_"))


def _counts(registry: CollectorRegistry, what: str, text: str, *more: str) -> Counts:
    return Counts(f"grpc_server_{what}", text, (*_RPC_LABELS, *more), registry=registry)
