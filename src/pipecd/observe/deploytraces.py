# SPDX-License-Identifier: Apache-2.0
"""Traces of deployments: one trace each, with spans for the plan, the deploy and every stage."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.observe.deployments import kind_name
from pipecd.observe.spans import Span, Spans
from pipecd.proto.gateway import otlp_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

_PLANNER, _SCHEDULER = "controller/planner", "controller/scheduler"
_OFFSET, _PRIME = 0x6C62272E07BB014262B821756295C58D, (1 << 88) + 0x13B
_BAD_DEPLOYMENTS = (DeploymentStatus.FAILURE, DeploymentStatus.CANCELLED)
_BAD_STAGES = (StageStatus.FAILURE, StageStatus.CANCELLED)


def trace_id(deployment_id: str) -> bytes:
    """The trace of a deployment: FNV-1a of its id, so that whoever knows the id finds it."""
    hashed = _OFFSET
    for byte in deployment_id.encode():
        hashed = (hashed ^ byte) * _PRIME % (1 << 128)
    return hashed.to_bytes(16)


class DeploymentTraces:
    """Records what is done for deployments; without spans to add to it records nothing."""

    def __init__(self, spans: Spans | None = None) -> None:
        self._spans = spans
        # The spans that stages are within, by deployment.
        self._open: dict[str, Span] = {}

    @contextmanager
    def plan(self, deployment: Deployment) -> Iterator[None]:
        """A deployment is planned while the block runs."""
        span = Span("Plan", trace_id(deployment.id))
        try:
            yield
        finally:
            self._add(span, _about(deployment), _failure(deployment), _PLANNER)

    @contextmanager
    def deploy(self, deployment: Deployment) -> Iterator[None]:
        """A deployment is carried out while the block runs."""
        span = self._open[deployment.id] = Span("Deploy", trace_id(deployment.id))
        try:
            yield
        finally:
            del self._open[deployment.id]
            self._add(span, _about(deployment), _failure(deployment), _SCHEDULER)

    @contextmanager
    def stage(self, deployment: Deployment, stage: PipelineStage) -> Iterator[None]:
        """A stage is run while the block runs."""
        around = self._open.get(deployment.id)
        parent = around.id if around is not None else b""
        span = Span(stage.name, trace_id(deployment.id), parent)
        try:
            yield
        finally:
            is_bad = StageStatus(stage.status) in _BAD_STAGES
            failure = (stage.status_reason or StageStatus(stage.status).name) if is_bad else ""
            self._add(span, {**_about(deployment), "stage-id": stage.id}, failure, _SCHEDULER)

    def _add(self, span: Span, about: Mapping[str, str], failure: str, scope: str) -> None:
        if self._spans is not None:
            self._spans.add(span.ended(pb.Span.INTERNAL, about, failure), scope=scope)


def _about(deployment: Deployment) -> dict[str, str]:
    return {
        "application-id": deployment.application_id,
        "deployment-id": deployment.id,
        "kind": kind_name(deployment),
        "labels": ",".join(f"{key}={value}" for key, value in sorted(deployment.labels.items())),
    }


def _failure(deployment: Deployment) -> str:
    status = DeploymentStatus(deployment.status)
    return deployment.status_reason or status.name if status in _BAD_DEPLOYMENTS else ""
