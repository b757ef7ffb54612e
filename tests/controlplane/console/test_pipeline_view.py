# SPDX-License-Identifier: Apache-2.0
"""View models of the pipeline: columns, durations, details and approvals of stages."""

from collections.abc import Callable
from datetime import datetime

import pytest

from pipecd.controlplane.console import pipeline_view as view
from pipecd.model.deployment import ManualOperation, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

MakeStage = Callable[..., PipelineStage]
MakeDeployment = Callable[..., Deployment]


def names(pipeline: view.PipelineView) -> list[list[str]]:
    return [[stage.name for stage in column] for column in pipeline.columns]


def test_sequential_stages_have_a_column_each(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    deployment = make_deployment(
        make_stage("1", "CANARY"),
        make_stage("2", "WAIT", requires=["1"]),
        make_stage("3", "SYNC", requires=["2"]),
    )
    assert names(view.pipeline_view(deployment, noon)) == [["CANARY"], ["WAIT"], ["SYNC"]]


def test_parallel_stages_share_a_column(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    deployment = make_deployment(
        make_stage("1", "A"),
        make_stage("2", "B", requires=["1"]),
        make_stage("3", "C", requires=["1"]),
        make_stage("4", "D", requires=["1", "2", "3"]),
    )
    assert names(view.pipeline_view(deployment, noon)) == [["A"], ["B", "C"], ["D"]]


def test_a_cycle_is_reported_and_every_stage_is_shown_once(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    deployment = make_deployment(
        make_stage("1", "A"),
        make_stage("2", "B", requires=["3"]),
        make_stage("3", "C", requires=["2"]),
    )
    shown = view.pipeline_view(deployment, noon)
    assert shown.has_cycle
    assert names(shown) == [["A"], ["B", "C"]]


def test_requiring_itself_or_an_unknown_stage_is_no_cycle(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    deployment = make_deployment(make_stage("1", "A", requires=["1", "gone"]))
    shown = view.pipeline_view(deployment, noon)
    assert not shown.has_cycle
    assert names(shown) == [["A"]]


@pytest.mark.parametrize(
    ("fields", "columns", "rollback"),
    [
        pytest.param({"rollback": True}, [["A"]], [], id="a rollback hides until it is needed"),
        pytest.param(
            {"rollback": True, "status": StageStatus.RUNNING},
            [["A"]],
            ["LAST"],
            id="a rollback that runs has its own row",
        ),
        pytest.param(
            {"predefined": True}, [["A"]], [], id="an invisible predefined stage hides as well"
        ),
        pytest.param(
            {"predefined": True, "visible": True}, [["A", "LAST"]], [], id="a visible one is shown"
        ),
    ],
)
def test_which_stages_are_shown(
    fields: dict[str, int],
    columns: list[list[str]],
    rollback: list[str],
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    noon: datetime,
) -> None:
    shown = view.pipeline_view(
        make_deployment(make_stage("1", "A"), make_stage("2", "LAST", **fields)), noon
    )
    assert names(shown) == columns
    assert [stage.name for stage in shown.rollback] == rollback


def test_the_rollback_stage_of_v0_is_recognised_by_its_name(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    deployment = make_deployment(
        make_stage("Rollback", "ROLLBACK", predefined=True, status=StageStatus.RUNNING)
    )
    assert [stage.name for stage in view.pipeline_view(deployment, noon).rollback] == ["ROLLBACK"]


def test_a_stage_starts_when_the_stages_it_requires_have_ended(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime, start: int
) -> None:
    deployment = make_deployment(
        make_stage("1", "A", status=StageStatus.SUCCESS, completed_at=start + 48),
        make_stage("2", "B", status=StageStatus.RUNNING, requires=["1"]),
    )
    first, second = view.pipeline_view(deployment, noon).stages
    assert first.elapsed == view.Elapsed("48s")
    assert second.elapsed == view.Elapsed("9m 12s", since="2026-08-22T16:50:48Z")


@pytest.mark.parametrize(
    ("status", "metadata", "detail"),
    [
        pytest.param(0, {}, "not started", id="not started"),
        pytest.param(
            2,
            {"pipecd/stage-display-metadata": "3 passed"},
            "3 passed",
            id="display metadata first",
        ),
        pytest.param(2, {"ApprovedBy": "ann"}, "Approved by: ann", id="the approver"),
        pytest.param(
            5, {"SkippedBy": "bob"}, "Skipped by: bob · skipped", id="the user who skipped it"
        ),
        pytest.param(
            2,
            {"primary-percentage": "80", "canary-percentage": "20"},
            "Primary 80 %, Canary 20 %",
            id="how traffic is split",
        ),
        pytest.param(
            2, {"promote-percentage": "30"}, "30 % promoted", id="the promoted percentage"
        ),
        pytest.param(2, {}, "", id="no metadata"),
    ],
)
def test_the_detail_of_a_stage(
    status: int,
    metadata: dict[str, str],
    detail: str,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    noon: datetime,
) -> None:
    one = make_stage("1", "A", status=status, metadata=metadata)
    assert view.stage_view(one, make_deployment(one), noon).detail == detail


@pytest.mark.parametrize(
    ("fields", "waits"),
    [
        pytest.param({"name": "WAIT_APPROVAL", "status": 1}, True, id="the first generation"),
        pytest.param(
            {"name": "X", "status": 1, "available_operation": ManualOperation.APPROVE},
            True,
            id="any stage that offers it",
        ),
        pytest.param({"name": "WAIT_APPROVAL", "status": 0}, False, id="not before it runs"),
        pytest.param({"name": "WAIT_APPROVAL", "status": 2}, False, id="not after it ended"),
        pytest.param({"name": "SYNC", "status": 1}, False, id="no other stage"),
    ],
)
def test_which_stages_wait_for_approval(fields: dict[str, int], waits: bool) -> None:
    assert view.is_waiting_for_approval(PipelineStage(id="1", **fields)) is waits  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("user", "disabled_reason"),
    [
        pytest.param("ann", "", id="an approver may"),
        pytest.param("eve", "You are signed in as eve", id="only approvers may"),
        pytest.param("bob", "", id="one who has approved may still reject"),
    ],
)
def test_who_may_approve(
    user: str,
    disabled_reason: str,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    noon: datetime,
) -> None:
    deployment = make_deployment(
        make_stage(
            "1",
            "WAIT_APPROVAL",
            status=StageStatus.RUNNING,
            authorized_operators=["ann", "bob"],
            metadata={
                "pipecd/stage-approved-users": "bob",
                "pipecd/stage-required-approvals": "2",
                "pipecd/stage-timeout": "3600",
            },
        ),
        make_stage("2", "SYNC", requires=["1"]),
    )
    (approval,) = view.approval_views(deployment, user, noon)
    assert approval.disabled_reason.startswith(disabled_reason)
    assert bool(approval.disabled_reason) == bool(disabled_reason)
    assert approval.approvers == ("ann", "bob")
    assert approval.can_approve == ("ann",)
    assert approval.approved_by == ("bob",)
    assert approval.next_step == "continue with SYNC"
    assert (approval.progress, approval.has_approved) == ("1 of 2", user == "bob")
    assert approval.expires
    assert approval.expires.iso == "2026-08-22T17:50:00Z"
