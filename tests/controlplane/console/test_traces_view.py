# SPDX-License-Identifier: Apache-2.0
"""Where the deployments of a commit are."""

from datetime import datetime

import pytest

from pipecd.controlplane.console.traces_view import trace_row
from pipecd.controlplane.usecases.deployments import TracedDeployments
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.common_pb2 import ArtifactVersion
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.model.trace_pb2 import DeploymentTrace


def deployment(
    status: pb.DeploymentStatus.ValueType, stage: int, *, reason: str = "", summary: str = ""
) -> Deployment:
    stages = [
        PipelineStage(id="s1", name="K8S_CANARY_ROLLOUT", status=pb.STAGE_SUCCESS, visible=True),
        PipelineStage(
            id="s2",
            name="WAIT_APPROVAL",
            status=pb.StageStatus.ValueType(stage),
            visible=True,
            requires=["s1"],
        ),
    ]
    return Deployment(
        id="d1",
        application_name="cart",
        status=status,
        stages=stages,
        status_reason=reason,
        summary=summary,
    )


@pytest.mark.parametrize(
    ("traced", "where"),
    [
        pytest.param(
            deployment(pb.DEPLOYMENT_RUNNING, pb.STAGE_RUNNING),
            "At stage WAIT_APPROVAL.",
            id="one that runs is at a stage",
        ),
        pytest.param(
            deployment(pb.DEPLOYMENT_PENDING, pb.STAGE_NOT_STARTED_YET),
            "",
            id="one that has not begun is at none",
        ),
        pytest.param(
            deployment(pb.DEPLOYMENT_FAILURE, pb.STAGE_FAILURE, reason="the approval timed out"),
            "The approval timed out.",
            id="one that failed says why",
        ),
        pytest.param(
            deployment(pb.DEPLOYMENT_SUCCESS, pb.STAGE_SUCCESS, summary="Sync to v1.5.0"),
            "Sync to v1.5.0.",
            id="one that succeeded says what it did",
        ),
    ],
)
def test_a_trace_says_where_each_deployment_is(
    traced: Deployment, where: str, noon: datetime
) -> None:
    trace = DeploymentTrace(id="t1", commit_hash="c0ffee")
    assert trace_row(TracedDeployments(trace, (traced,)), noon).where == {"d1": where}


@pytest.mark.parametrize(
    ("versions", "where"),
    [
        pytest.param(["v1"], "Deployed v1.", id="the version of the only artifact"),
        pytest.param(["v1", "v2"], "Deployed a0:v1 and a1:v2.", id="versions with their names"),
        pytest.param(["v1"] * 4, "Deployed a0:v1, a1:v1 and 2 more.", id="the first of many"),
    ],
)
def test_a_trace_says_which_versions_were_deployed(
    versions: list[str], where: str, noon: datetime
) -> None:
    traced = deployment(pb.DEPLOYMENT_SUCCESS, pb.STAGE_SUCCESS, summary="Sync")
    traced.versions.extend(
        ArtifactVersion(name=f"a{number}", version=version)
        for number, version in enumerate(versions)
    )
    trace = DeploymentTrace(id="t1", commit_hash="c0ffee")
    assert trace_row(TracedDeployments(trace, (traced,)), noon).where == {"d1": where}


def test_a_trace_counts_its_deployments_and_begins_with_what_needs_somebody(
    noon: datetime,
) -> None:
    statuses = (
        pb.DEPLOYMENT_SUCCESS,
        pb.DEPLOYMENT_RUNNING,
        pb.DEPLOYMENT_FAILURE,
        pb.DEPLOYMENT_SUCCESS,
        pb.DEPLOYMENT_CANCELLED,
    )
    traced = tuple(deployment(status, pb.STAGE_SUCCESS) for status in statuses)
    trace = DeploymentTrace(id="t1", commit_hash="c0ffee")
    badge = trace_row(TracedDeployments(trace, traced), noon).badge
    assert badge.text == "1 failed, 1 running, 1 cancelled, 2 succeeded"
    assert badge.tone == "bad"
