# SPDX-License-Identifier: Apache-2.0
"""Where stages stand in the pipeline, how long they took and what they say."""

from collections.abc import Callable
from datetime import datetime

import pytest

from pipecd.controlplane.console import pipeline_view as view
from pipecd.model.deployment import ManualOperation, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

MakeStage = Callable[..., PipelineStage]
MakeDeployment = Callable[..., Deployment]


def names(pipeline: view.Pipeline) -> list[list[str]]:
    return [[stage.name for stage in column] for column in pipeline.columns]


def test_stages_stand_one_after_the_other(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    made = make_deployment(
        make_stage("1", "CANARY"),
        make_stage("2", "WAIT", requires=["1"]),
        make_stage("3", "SYNC", requires=["2"]),
    )
    assert names(view.pipeline(made, noon)) == [["CANARY"], ["WAIT"], ["SYNC"]]


def test_stages_that_wait_for_the_same_one_share_a_column(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    made = make_deployment(
        make_stage("1", "A"),
        make_stage("2", "B", requires=["1"]),
        make_stage("3", "C", requires=["1"]),
        make_stage("4", "D", requires=["1", "2", "3"]),
    )
    assert names(view.pipeline(made, noon)) == [["A"], ["B", "C"], ["D"]]


def test_a_cycle_is_told_and_every_stage_is_drawn_once(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    made = make_deployment(
        make_stage("1", "A"),
        make_stage("2", "B", requires=["3"]),
        make_stage("3", "C", requires=["2"]),
    )
    drawn = view.pipeline(made, noon)
    assert drawn.has_cycle
    assert names(drawn) == [["A"], ["B", "C"]]


def test_a_stage_that_names_itself_or_a_stranger_is_no_cycle(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    made = make_deployment(make_stage("1", "A", requires=["1", "gone"]))
    drawn = view.pipeline(made, noon)
    assert not drawn.has_cycle
    assert names(drawn) == [["A"]]


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
    drawn = view.pipeline(
        make_deployment(make_stage("1", "A"), make_stage("2", "LAST", **fields)), noon
    )
    assert names(drawn) == columns
    assert [one.name for one in drawn.rollback] == rollback


def test_the_rollback_stage_of_the_first_generation_is_known_by_its_name(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime
) -> None:
    made = make_deployment(
        make_stage("Rollback", "ROLLBACK", predefined=True, status=StageStatus.RUNNING)
    )
    assert [one.name for one in view.pipeline(made, noon).rollback] == ["ROLLBACK"]


def test_a_stage_begins_when_what_it_waited_for_has_ended(
    make_stage: MakeStage, make_deployment: MakeDeployment, noon: datetime, start: int
) -> None:
    made = make_deployment(
        make_stage("1", "A", status=StageStatus.SUCCESS, completed_at=start + 48),
        make_stage("2", "B", status=StageStatus.RUNNING, requires=["1"]),
    )
    first, second = view.pipeline(made, noon).stages
    assert first.elapsed == view.Elapsed("48s")
    assert second.elapsed == view.Elapsed("9m 12s", since="2026-08-22T16:50:48Z")


@pytest.mark.parametrize(
    ("status", "metadata", "line"),
    [
        pytest.param(0, {}, "not started", id="a stage that waits says so"),
        pytest.param(
            2, {"pipecd/stage-display-metadata": "3 passed"}, "3 passed", id="its own words first"
        ),
        pytest.param(2, {"ApprovedBy": "ann"}, "Approved by: ann", id="who approved"),
        pytest.param(
            5, {"SkippedBy": "bob"}, "Skipped by: bob · skipped", id="who skipped, and that it was"
        ),
        pytest.param(
            2,
            {"primary-percentage": "80", "canary-percentage": "20"},
            "Primary 80 %, Canary 20 %",
            id="how traffic is split",
        ),
        pytest.param(2, {"promote-percentage": "30"}, "30 % promoted", id="what is promoted"),
        pytest.param(2, {}, "", id="nothing to tell"),
    ],
)
def test_the_line_of_a_stage(
    status: int,
    metadata: dict[str, str],
    line: str,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    noon: datetime,
) -> None:
    one = make_stage("1", "A", status=status, metadata=metadata)
    assert view.stage_view(one, make_deployment(one), noon).line == line


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
def test_which_stages_wait_for_a_person(fields: dict[str, int], waits: bool) -> None:
    assert view.is_waiting(PipelineStage(id="1", **fields)) is waits  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("reader", "why_not"),
    [
        pytest.param("ann", "", id="an approver may"),
        pytest.param("eve", "You are signed in as eve", id="nobody else may"),
        pytest.param("bob", "You have approved already", id="nobody approves twice"),
    ],
)
def test_who_may_approve(
    reader: str,
    why_not: str,
    make_stage: MakeStage,
    make_deployment: MakeDeployment,
    noon: datetime,
) -> None:
    made = make_deployment(
        make_stage(
            "1",
            "WAIT_APPROVAL",
            status=StageStatus.RUNNING,
            authorized_operators=["ann", "bob"],
            metadata={"pipecd/stage-approved-users": "bob"},
        ),
        make_stage("2", "SYNC", requires=["1"]),
    )
    (asked,) = view.approvals(made, reader, noon)
    assert asked.why_not.startswith(why_not)
    assert bool(asked.why_not) == bool(why_not)
    assert asked.approvers == ("ann", "bob")
    assert asked.approved_by == ("bob",)
    assert asked.leads_to == "continue with SYNC"
