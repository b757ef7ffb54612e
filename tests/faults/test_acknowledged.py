# SPDX-License-Identifier: Apache-2.0
"""Log lines count as acknowledged if the control plane answered, also within a batch of calls."""

import grpc

from faults.acknowledged import AcknowledgedLogs, LeaseGrants, ReportedTimes
from faults.network import RecordedCall
from pipecd.model.deployment import StageStatus
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service.batch_pb2 import (
    BatchedCall,
    BatchedResult,
    CallBatchRequest,
    CallBatchResponse,
)
from pipecd.proto.service.lease_pb2 import AcquirePipedLeaseResponse
from pipecd.proto.service.ordering_pb2 import CreateDeploymentInOrderRequest
from pipecd.proto.service.piped_pb2 import (
    CreateDeploymentRequest,
    ReportDeploymentCompletedRequest,
    ReportStageLogsRequest,
    ReportStageStatusChangedRequest,
)


def request(*lines: str) -> bytes:
    blocks = [LogBlock(log=line) for line in lines]
    return ReportStageLogsRequest(
        deployment_id="d", stage_id="s", blocks=blocks
    ).SerializeToString()


def call(name: str, content: bytes) -> RecordedCall:
    return RecordedCall(name, f"/service/{name}", content, ())


def test_lines_of_scripts_are_acknowledged_by_an_answer() -> None:
    logs = AcknowledgedLogs()
    logs.take(call("ReportStageLogs", request("L 7 1 2", "Piped was restarted")), b"")
    logs.take(call("ReportStageStatusChanged", b"L 7 9 9"), b"")
    assert logs.lines == {("d", "s"): {"L 7 1 2"}}


def test_a_call_of_a_batch_that_failed_acknowledges_nothing() -> None:
    batch = CallBatchRequest(
        calls=[
            BatchedCall(rpc="ReportStageLogs", request=request("L 7 1 2")),
            BatchedCall(rpc="ReportStageLogs", request=request("L 7 2 2")),
        ]
    )
    unavailable: int = grpc.StatusCode.UNAVAILABLE.value[0]
    response = CallBatchResponse(results=[BatchedResult(), BatchedResult(code=unavailable)])
    logs = AcknowledgedLogs()
    logs.take(call("CallBatch", batch.SerializeToString()), response.SerializeToString())
    assert logs.lines == {("d", "s"): {"L 7 1 2"}}


def test_a_lease_is_granted_by_an_answer() -> None:
    grants = LeaseGrants()
    asked = RecordedCall("AcquirePipedLease", "", b"", (("authorization", "PIPED-TOKEN p,id,key"),))
    for at, granted in enumerate((False, True)):
        response = AcquirePipedLeaseResponse(granted=granted).SerializeToString()
        grants.take(asked, response, float(at))
        grants.take(call("ReleasePipedLease", b""), response, float(at))
    assert grants.times == {"id": [1]}


def test_the_first_answer_says_when_something_was_reported() -> None:
    times = ReportedTimes()
    created = CreateDeploymentInOrderRequest(
        deployment=CreateDeploymentRequest(deployment=Deployment(id="d"))
    )
    completed = ReportDeploymentCompletedRequest(deployment_id="d")
    for at in (1.0, 2.0):
        times.take(call("CreateDeploymentInOrder", created.SerializeToString()), b"", at)
        times.take(call("ReportDeploymentCompleted", completed.SerializeToString()), b"", at + 9)
        for number, status in enumerate((StageStatus.RUNNING, StageStatus.SUCCESS)):
            stage = ReportStageStatusChangedRequest(
                deployment_id="d",
                stage_id="s",
                status=deployment_pb2.StageStatus.ValueType(status),
            )
            content = stage.SerializeToString()
            times.take(call("ReportStageStatusChanged", content), b"", at + 4 + number)
    assert (times.created, times.stages, times.completed) == ({"d": 1}, {("d", "s"): 6}, {"d": 10})
