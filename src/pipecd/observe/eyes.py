# SPDX-License-Identifier: Apache-2.0
"""Everything that watches a program: its figures, its traces, both or neither."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from pipecd.observe.deployments import DeploymentStatuses
from pipecd.observe.deploytraces import DeploymentTraces
from pipecd.observe.insides import Insides
from pipecd.observe.metrics import RpcMetrics, ServerMetrics
from pipecd.observe.traces import Tracer
from pipecd.observe.watch import Headers, Watcher


@dataclass(frozen=True)
class Eyes:
    """What watches a control plane; whatever is None does not."""

    metrics: ServerMetrics | None = None
    insides: Insides | None = None
    tracer: Tracer | None = None

    @property
    def watchers(self) -> tuple[Watcher, ...]:
        """Who hears of work in the stores."""
        return tuple(one for one in (self.insides, self.tracer) if one is not None)

    @property
    def rpc(self) -> "RpcMetrics | Tracer | Several | None":
        """Who hears of calls."""
        all_of_them = [one for one in (self._rpc_metrics, self.tracer) if one is not None]
        if len(all_of_them) > 1:
            return Several(all_of_them)
        return all_of_them[0] if all_of_them else None

    @property
    def _rpc_metrics(self) -> RpcMetrics | None:
        return self.metrics.rpc if self.metrics else None


@dataclass(frozen=True)
class DeploymentEyes:
    """What watches the deployments of a piped."""

    statuses: DeploymentStatuses = field(default_factory=DeploymentStatuses)
    traces: DeploymentTraces = field(default_factory=DeploymentTraces)


class Several:
    """Tells several observers of calls."""

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
