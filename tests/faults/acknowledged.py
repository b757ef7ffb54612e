# SPDX-License-Identifier: Apache-2.0
"""What the control plane acknowledged to pipeds, read on the way between them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from faults.network import RecordedCall, piped_of
from faults.report_rules import LINE
from pipecd.model.deployment import StageStatus
from pipecd.proto.service.batch_pb2 import CallBatchRequest, CallBatchResponse
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseResponse
from pipecd.proto.service.ordering_pb2 import CreateDeploymentInOrderRequest
from pipecd.proto.service.piped_pb2 import (
    ReportDeploymentCompletedRequest,
    ReportStageLogsFromLastCheckpointRequest,
    ReportStageLogsRequest,
    ReportStageStatusChangedRequest,
)

_LOGS = {
    "ReportStageLogs": ReportStageLogsRequest,
    "ReportStageLogsFromLastCheckpoint": ReportStageLogsFromLastCheckpointRequest,
}


@dataclass
class AcknowledgedLogs:
    """The lines of scripts that pipeds sent and that the control plane answered without an error."""

    lines: dict[tuple[str, str], set[str]] = field(default_factory=dict[tuple[str, str], set[str]])
    """By the ids of deployment and stage."""

    def take(self, call: RecordedCall, response: bytes) -> None:
        """Takes one call, which may carry others, and its answer."""
        for rpc, request in answered(call, response):
            if message := _LOGS.get(rpc):
                report = message.FromString(request)
                logged = (line for block in report.blocks for line in block.log.splitlines())
                lines = {line for line in logged if LINE.search(line)}
                key = (report.deployment_id, report.stage_id)
                self.lines.setdefault(key, set()).update(lines)


@dataclass
class ReportedTimes:
    """When the control plane first acknowledged what became of a deployment.

    Clients may see it much later, if the control plane cannot answer them for a while.
    """

    created: dict[str, float] = field(default_factory=dict[str, float])
    completed: dict[str, float] = field(default_factory=dict[str, float])
    stages: dict[tuple[str, str], float] = field(default_factory=dict[tuple[str, str], float])
    """Those that are completed, by the ids of deployment and stage."""

    def take(self, call: RecordedCall, response: bytes, at: float) -> None:
        """Takes one call, which may carry others, and its answer."""
        for rpc, request in answered(call, response):
            match rpc:
                case "CreateDeploymentInOrder":
                    created = CreateDeploymentInOrderRequest.FromString(request).deployment
                    self.created.setdefault(created.deployment.id, at)
                case "ReportDeploymentCompleted":
                    completed = ReportDeploymentCompletedRequest.FromString(request)
                    self.completed.setdefault(completed.deployment_id, at)
                case "ReportStageStatusChanged":
                    stage = ReportStageStatusChangedRequest.FromString(request)
                    if StageStatus(stage.status).is_completed:
                        self.stages.setdefault((stage.deployment_id, stage.stage_id), at)
                case _:
                    pass


@dataclass
class LeaseGrants:
    """When the control plane gave a process the lease of a piped."""

    times: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """By the id of the piped; the time is that of the answer."""

    def take(self, call: RecordedCall, response: bytes, at: float) -> None:
        """Takes one call and its answer."""
        if call.name == "AcquirePipedLease" and AcquirePipedLeaseResponse.FromString(response).granted:  # fmt: skip
            self.times.setdefault(piped_of(call.metadata), []).append(at)


def answered(call: RecordedCall, response: bytes) -> Iterable[tuple[str, bytes]]:
    """The RPCs with their requests that were answered without an error."""
    if call.name != "CallBatch":
        yield call.name, call.request
        return
    calls = CallBatchRequest.FromString(call.request).calls
    results = CallBatchResponse.FromString(response).results
    for each, result in zip(calls, results, strict=True):
        if not result.code:
            yield each.rpc, each.request
