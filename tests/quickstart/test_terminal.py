# SPDX-License-Identifier: Apache-2.0
"""What the quickstart prints of a deployment that failed."""

from pipecd.proto.model import deployment_pb2 as pb
from pipecd.quickstart.terminal import failure_lines


def deployment(status: "pb.DeploymentStatus.ValueType") -> pb.Deployment:
    stages = [
        pb.PipelineStage(name="ROLLOUT", status=pb.STAGE_SUCCESS, status_reason="It runs"),
        pb.PipelineStage(name="ANALYSIS", status=pb.STAGE_FAILURE, status_reason="It fails"),
        pb.PipelineStage(name="CLEAN", status=pb.STAGE_NOT_STARTED_YET),
        pb.PipelineStage(
            name="ROLLBACK",
            rollback=True,
            status=pb.STAGE_SUCCESS,
            status_reason="The version before runs again",
        ),
    ]
    return pb.Deployment(status=status, stages=stages)


def test_a_failure_says_what_failed_and_what_was_done_about_it() -> None:
    assert failure_lines(deployment(pb.DEPLOYMENT_FAILURE)) == [
        "ANALYSIS: It fails",
        "ROLLBACK: The version before runs again",
    ]


def test_a_success_needs_no_explanation() -> None:
    assert failure_lines(deployment(pb.DEPLOYMENT_SUCCESS)) == []
