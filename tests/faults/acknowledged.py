# SPDX-License-Identifier: Apache-2.0
"""What the control plane acknowledged to pipeds, read on the way between them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from faults.network import RecordedCall
from faults.report_rules import LINE
from pipecd.proto.service.batch_pb2 import CallBatchRequest, CallBatchResponse
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest,
    ReportStageLogsRequest,
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
