# SPDX-License-Identifier: Apache-2.0
"""The telemetry of a control plane: metrics, traces, both or neither."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from pipecd.observe.metrics import RpcMetrics, ServerMetrics, StoreMetrics
from pipecd.observe.operations import Headers, OperationObserver

if TYPE_CHECKING:
    from pipecd.observe.tracing import RpcTracer

# The method of collectors, and of control planes in front of them, that receives spans.
OTLP_EXPORT_METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@dataclass(frozen=True)
class Telemetry:
    """Metrics and traces of a control plane; what is None is switched off."""

    metrics: ServerMetrics | None = None
    store_metrics: StoreMetrics | None = None
    tracer: "RpcTracer | None" = None

    @property
    def store_observers(self) -> tuple[OperationObserver, ...]:
        """The observers of store operations."""
        return tuple(one for one in (self.store_metrics, self.tracer) if one is not None)

    @property
    def rpc_observer(self) -> "RpcMetrics | RpcTracer | RpcObservers | None":
        """The observer of RPCs."""
        metrics = self.metrics.rpc if self.metrics else None
        observers = [one for one in (metrics, self.tracer) if one is not None]
        if len(observers) > 1:
            return RpcObservers(observers)
        return observers[0] if observers else None


class RpcObservers:
    """Forwards RPC events to several observers."""

    def __init__(self, observers: "Sequence[RpcMetrics | RpcTracer]") -> None:
        self._observers = tuple(observers)

    def registered(self, service: str, rpc: str, *, streaming: bool) -> None:
        for one in self._observers:
            one.registered(service, rpc, streaming=streaming)

    def started(self, service: str, rpc: str, metadata: Headers) -> None:
        for one in self._observers:
            one.started(service, rpc, metadata)

    def sent(self, service: str, rpc: str) -> None:
        for one in self._observers:
            one.sent(service, rpc)

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None:
        for one in self._observers:
            one.observed(service, rpc, code, seconds)
