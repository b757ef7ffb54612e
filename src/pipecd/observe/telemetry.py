# SPDX-License-Identifier: Apache-2.0
"""The telemetry of a program: metrics, traces, both or neither."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from pipecd.observe.deployments import DeploymentStatuses
from pipecd.observe.deploytraces import DeploymentTraces
from pipecd.observe.metrics import RpcMetrics, ServerMetrics
from pipecd.observe.store_metrics import StoreMetrics
from pipecd.observe.traces import Tracer
from pipecd.observe.watch import Headers, Watcher


@dataclass(frozen=True)
class Telemetry:
    """Metrics and traces of a control plane; what is None is switched off."""

    metrics: ServerMetrics | None = None
    store_metrics: StoreMetrics | None = None
    tracer: Tracer | None = None

    @property
    def watchers(self) -> tuple[Watcher, ...]:
        """The observers of store operations."""
        return tuple(one for one in (self.store_metrics, self.tracer) if one is not None)

    @property
    def rpc(self) -> "RpcMetrics | Tracer | RpcObservers | None":
        """The observer of RPCs."""
        observers = [one for one in (self._rpc_metrics, self.tracer) if one is not None]
        if len(observers) > 1:
            return RpcObservers(observers)
        return observers[0] if observers else None

    @property
    def _rpc_metrics(self) -> RpcMetrics | None:
        return self.metrics.rpc if self.metrics else None


@dataclass(frozen=True)
class DeploymentTelemetry:
    """Metrics and traces of the deployments of a piped."""

    statuses: DeploymentStatuses = field(default_factory=DeploymentStatuses)
    traces: DeploymentTraces = field(default_factory=DeploymentTraces)


class RpcObservers:
    """Forwards RPC events to several observers."""

    def __init__(self, observers: Sequence[RpcMetrics | Tracer]) -> None:
        self._observers = tuple(observers)

    def offered(self, service: str, rpc: str, *, streaming: bool) -> None:
        for one in self._observers:
            one.offered(service, rpc, streaming=streaming)

    def started(self, service: str, rpc: str, metadata: Headers) -> None:
        for one in self._observers:
            one.started(service, rpc, metadata)

    def sent(self, service: str, rpc: str) -> None:
        for one in self._observers:
            one.sent(service, rpc)

    def observed(self, service: str, rpc: str, code: grpc.StatusCode, seconds: float) -> None:
        for one in self._observers:
            one.observed(service, rpc, code, seconds)
