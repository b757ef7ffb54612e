# SPDX-License-Identifier: Apache-2.0
"""Telemetry of the deployments of a piped: the gauge `deployment_status`, and their traces.

Every deployment is one trace with spans for the plan, the deploy and every stage.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.common_pb2 import ApplicationKind
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.deployment_pb2 import DeploymentStatus as Status

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from pipecd.observe.tracing import Tracing

log = structlog.get_logger()

_LABELS = (
    "deployment", "application_id", "application_name", "application_kind", "platform_provider",
    "status",
)  # fmt: skip
# A deployment takes up to 4 kB, and a control plane accepts 4 MB.
_MAX_COLLECTED = 1000
_PLANNER, _SCHEDULER = "controller/planner", "controller/scheduler"
_FNV_OFFSET, _FNV_PRIME = 0x6C62272E07BB014262B821756295C58D, (1 << 88) + 0x13B
_FAILED_DEPLOYMENTS = (DeploymentStatus.FAILURE, DeploymentStatus.CANCELLED)
_FAILED_STAGES = (StageStatus.FAILURE, StageStatus.CANCELLED)


def kind_name(deployment: Deployment) -> str:
    """Returns the kind of the application as the wire spells it; an unknown kind by its number."""
    try:
        return ApplicationKind.Name(deployment.kind)
    except ValueError:
        return str(deployment.kind)


@dataclass(frozen=True, slots=True)
class _Sample:
    """What is collected of a deployment: the values of its labels, and its status."""

    about: tuple[str, ...]
    status: int

    @classmethod
    def of(cls, one: Deployment) -> "_Sample":
        application = (one.application_id, one.application_name)
        return cls((one.id, *application, kind_name(one), one.platform_provider), one.status)

    @property
    def is_open(self) -> bool:
        return not DeploymentStatus(self.status).is_completed


class DeploymentStatuses(Collector):
    """Collects `deployment_status`: 1 for the current status of a deployment, 0 for all others.

    Running deployments are always collected; completed ones until they were reported once. Of more
    than a report has room for, the completed ones come first, and the rest with the next reports.
    A piped without metrics reports none, and so keeps none: `is_reported` is false.
    """

    def __init__(
        self, running: Callable[[], Iterable[Deployment]] = tuple, *, is_reported: bool = True
    ) -> None:
        self._running, self._is_reported = running, is_reported
        self._newest: dict[str, _Sample] = {}
        self._collected: frozenset[str] = frozenset()

    def changed(self, deployment: Deployment) -> None:
        """Notes the newest state of a deployment, which the cached list does not have yet."""
        if self._is_reported:
            self._newest[deployment.id] = _Sample.of(deployment)

    def reported(self) -> None:
        """Drops completed deployments of the last collection, which reached the control plane."""
        for id in self._collected & self._newest.keys():
            if not self._newest[id].is_open:
                del self._newest[id]

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(
            "deployment_status",
            "The current status of deployment. 1 for current status, 0 for others.",
            labels=_LABELS,
        )
        current = {one.id: _Sample.of(one) for one in self._running()} | self._newest
        collected = sorted(current.items(), key=lambda item: item[1].is_open)[:_MAX_COLLECTED]
        self._collected = frozenset(id for id, _ in collected)
        for _, sample in collected:
            for status in Status.values():
                labels = (*sample.about, Status.Name(status))
                family.add_metric(labels, float(status == sample.status))
        yield family


def trace_id(deployment_id: str) -> bytes:
    """Returns the trace id of a deployment: FNV-1a (128 bits) of its id, as in upstream."""
    hashed = _FNV_OFFSET
    for byte in deployment_id.encode():
        hashed = (hashed ^ byte) * _FNV_PRIME % (1 << 128)
    return hashed.to_bytes(16)


def piped_resource(*, project: str, piped: str) -> Mapping[str, str]:
    """Returns the attributes of every span of a piped."""
    return {
        "service.name": "piped",
        "service.namespace": project,
        "service.instance.id": piped,
        "project-id": project,
        "piped-id": piped,
    }


class DeploymentTraces:
    """Records the spans of deployments.

    OpenTelemetry is imported with the first span. Nothing is recorded without an `export`, or when
    the extra `tracing` is not installed.
    """

    def __init__(
        self,
        resource: Mapping[str, str] | None = None,
        export: Callable[[bytes], Awaitable[object]] | None = None,
    ) -> None:
        self._resource, self._export = resource or {}, export
        self._tracing: Tracing | None = None
        # The spans that contain those of the stages, by deployment.
        self._deploys: dict[str, Span] = {}

    @contextmanager
    def plan(self, deployment: Deployment) -> Iterator[None]:
        """Records that a deployment is planned while the block runs."""
        span = self._start("Plan", deployment, _PLANNER)
        try:
            yield
        finally:
            self._end(span, _attributes(deployment), _failure(deployment))

    @contextmanager
    def deploy(self, deployment: Deployment) -> Iterator[None]:
        """Records that the pipeline of a deployment is executed while the block runs."""
        span = self._start("Deploy", deployment, _SCHEDULER)
        if span is not None:
            self._deploys[deployment.id] = span
        try:
            yield
        finally:
            self._deploys.pop(deployment.id, None)
            self._end(span, _attributes(deployment), _failure(deployment))

    @contextmanager
    def stage(self, deployment: Deployment, stage: PipelineStage) -> Iterator[None]:
        """Records that a stage is executed while the block runs."""
        span = self._start(stage.name, deployment, _SCHEDULER, self._deploys.get(deployment.id))
        try:
            yield
        finally:
            status = StageStatus(stage.status)
            failure = (stage.status_reason or status.name) if status in _FAILED_STAGES else ""
            self._end(span, {**_attributes(deployment), "stage-id": stage.id}, failure)

    async def shutdown(self) -> None:
        """Exports the spans that are still queued."""
        if self._tracing is not None:
            await self._tracing.shutdown()

    def _start(
        self, name: str, deployment: Deployment, scope: str, parent: "Span | None" = None
    ) -> "Span | None":
        if self._tracing is None and self._export is not None:
            try:
                from pipecd.observe.tracing import Tracing  # noqa: PLC0415 - an extra.
            except ImportError:
                log.info("deployments are not traced", remedy="install the extra tracing of pipecd")
                self._export = None
            else:
                self._tracing = Tracing(self._resource, self._export)
        if self._tracing is None:
            return None
        id = int.from_bytes(trace_id(deployment.id))
        return self._tracing.start_span(name, scope=scope, parent=parent, trace_id=id)

    def _end(self, span: "Span | None", attributes: Mapping[str, str], failure: str) -> None:
        if self._tracing is not None and span is not None:
            self._tracing.end_span(span, attributes, failure)


@dataclass(frozen=True)
class DeploymentTelemetry:
    """Metrics and traces of the deployments of a piped."""

    statuses: DeploymentStatuses = field(default_factory=DeploymentStatuses)
    traces: DeploymentTraces = field(default_factory=DeploymentTraces)


def _attributes(deployment: Deployment) -> dict[str, str]:
    return {
        "application-id": deployment.application_id,
        "deployment-id": deployment.id,
        "kind": kind_name(deployment),
        "labels": ",".join(f"{key}={value}" for key, value in sorted(deployment.labels.items())),
    }


def _failure(deployment: Deployment) -> str:
    status = DeploymentStatus(deployment.status)
    return deployment.status_reason or status.name if status in _FAILED_DEPLOYMENTS else ""
