# SPDX-License-Identifier: Apache-2.0
"""Reports of a piped in any order, any of them repeated: a deployment only moves forward."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.usecases.transitions import (
    apply_completion,
    apply_plan,
    apply_stage_status,
    apply_status,
    is_deploying,
)
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Conflict, UserMistake
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.service import piped_pb2 as rpc

Change = Callable[[Deployment], None]


def stage(id: str, status: StageStatus, at: int) -> Change:
    report = rpc.ReportStageStatusChangedRequest(
        stage_id=id, status=pb.StageStatus.ValueType(status), completed_at=at, visible=True
    )
    return partial(apply_stage_status, report=report)


def plan(summary: str) -> Change:
    stages = [PipelineStage(id="s1", name="A"), PipelineStage(id="s2", name="B")]
    return partial(
        apply_plan, report=rpc.ReportDeploymentPlannedRequest(summary=summary, stages=stages)
    )


def complete(status: pb.DeploymentStatus.ValueType) -> Change:
    report = rpc.ReportDeploymentCompletedRequest(
        status=status,
        completed_at=9,
        stage_statuses={"s1": pb.STAGE_SUCCESS, "s2": pb.STAGE_SUCCESS},
    )
    return partial(apply_completion, report=report)


# What a piped reports about a deployment with two stages, in its order.
REPORTS: Sequence[Change] = (
    plan("as planned"),
    partial(apply_status, status=DeploymentStatus.RUNNING, reason="started"),
    stage("s1", StageStatus.RUNNING, 1),
    stage("s1", StageStatus.SUCCESS, 2),
    stage("s2", StageStatus.RUNNING, 3),
    stage("s2", StageStatus.SUCCESS, 4),
    complete(pb.DEPLOYMENT_SUCCESS),
)


def apply(deployment: Deployment, change: Change) -> None:
    try:
        change(deployment)
    except (Conflict, UserMistake):
        # Refused: a completed deployment, or a stage before the plan.
        return


def rank(deployment: Deployment) -> tuple[int, ...]:
    return deployment.status, *(stage.status for stage in deployment.stages)


@given(st.lists(st.sampled_from(REPORTS), max_size=20))
def test_no_order_of_reports_moves_anything_back(reports: list[Change]) -> None:
    deployment = Deployment(id="d")
    for report in reports:
        before = Deployment()
        before.CopyFrom(deployment)
        apply(deployment, report)
        if DeploymentStatus(before.status).is_completed:
            assert deployment == before
        if before.stages:
            assert all(a >= b for a, b in zip(rank(deployment), rank(before), strict=True))


@given(st.data())
def test_late_repetitions_do_not_change_the_outcome(data: st.DataObject) -> None:
    expected, deployment = Deployment(id="d"), Deployment(id="d")
    for position, report in enumerate(REPORTS):
        apply(expected, report)
        apply(deployment, report)
        for late in data.draw(st.lists(st.sampled_from(REPORTS[: position + 1]), max_size=3)):
            apply(deployment, late)
        assert deployment == expected


@pytest.mark.parametrize("reported", [{}, {"s1": pb.STAGE_RUNNING}], ids=["omitted", "as running"])
@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (pb.DEPLOYMENT_SUCCESS, StageStatus.SUCCESS),
        (pb.DEPLOYMENT_FAILURE, StageStatus.FAILURE),
        (pb.DEPLOYMENT_CANCELLED, StageStatus.CANCELLED),
    ],
)
def test_a_running_stage_ends_with_its_deployment(
    status: pb.DeploymentStatus.ValueType,
    ended: StageStatus,
    reported: Mapping[str, pb.StageStatus.ValueType],
) -> None:
    deployment = Deployment(id="d", status=pb.DEPLOYMENT_RUNNING)
    deployment.stages.add(id="s1", status=pb.STAGE_RUNNING, completed_at=1)
    deployment.stages.add(id="s2", status=pb.STAGE_NOT_STARTED_YET)
    report = rpc.ReportDeploymentCompletedRequest(
        status=status, completed_at=9, stage_statuses=reported
    )
    apply_completion(deployment, report)
    running, not_started = deployment.stages
    assert (StageStatus(running.status), running.completed_at) == (ended, 9)
    assert StageStatus(not_started.status) is StageStatus.NOT_STARTED_YET


@given(
    st.lists(st.sampled_from(list(DeploymentStatus)).filter(lambda s: not s.is_completed)),
    st.booleans(),
)
def test_an_application_deploys_for_as_long_as_a_deployment_is_open(
    statuses: list[DeploymentStatus], reported: bool
) -> None:
    own = [
        Deployment(application_id="a", status=pb.DeploymentStatus.ValueType(s)) for s in statuses
    ]
    others = [Deployment(application_id="b", status=pb.DEPLOYMENT_RUNNING)]
    started = any(status is not DeploymentStatus.PENDING for status in statuses)
    assert is_deploying([*own, *others], "a", reported) == (
        started or (reported and bool(statuses))
    )
