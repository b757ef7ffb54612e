# SPDX-License-Identifier: Apache-2.0
"""What the endings of stages mean for a deployment, without any of the machinery."""

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.piped.deploy.outcome import (
    SUCCEEDED,
    Outcome,
    StageEnding,
    ending_of,
    next_stage,
    outcome_after,
    outcome_between,
    remembered,
    resumed_rollback,
)
from pipecd.piped.deploy.stop import TIME_IS_UP, Stop, StopReason, stop_of
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

SUCCESS, FAILURE, CANCELLED = (
    DeploymentStatus.SUCCESS,
    DeploymentStatus.FAILURE,
    DeploymentStatus.CANCELLED,
)
BY_ANN = Stop(StopReason.CANCELLED, by="ann")
NO_ROLLBACK = Stop(StopReason.CANCELLED, by="ann", force_no_rollback=True)
STAGE = PipelineStage(id="s1", name="WAIT")


def stage(id: str, status: StageStatus, *, rollback: bool = False, reason: str = "") -> PipelineStage:  # fmt: skip
    return PipelineStage(id=id, name="X", status=int(status), rollback=rollback, status_reason=reason)  # type: ignore[arg-type] # fmt: skip


def deployment(*stages: PipelineStage) -> Deployment:
    return Deployment(id="d", stages=stages, status_reason="because")


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        pytest.param(StageEnding(StageStatus.SUCCESS), None, id="a success goes on"),
        pytest.param(StageEnding(StageStatus.SKIPPED), None, id="a skipped stage goes on"),
        pytest.param(StageEnding(StageStatus.EXITED), Outcome(SUCCESS, SUCCEEDED, "s1"), id="an exit is a success"),
        pytest.param(StageEnding(StageStatus.FAILURE), Outcome(FAILURE, "Failed while executing stage s1", "s1", True), id="a failure without words"),
        pytest.param(StageEnding(StageStatus.FAILURE, "no luck"), Outcome(FAILURE, "Failed while executing stage s1 (no luck)", "s1", True), id="a failure with words"),
        pytest.param(ending_of(TIME_IS_UP), Outcome(FAILURE, "Timed out while executing stage s1", "s1", True), id="time is up"),
        pytest.param(ending_of(BY_ANN), Outcome(CANCELLED, "Cancelled by ann while executing stage s1", "s1", True, "ann"), id="a person cancels"),
        pytest.param(ending_of(NO_ROLLBACK), Outcome(CANCELLED, "Cancelled by ann while executing stage s1", "s1", False, "ann"), id="a person cancels and wants no rollback"),
        pytest.param(remembered(stage("s1", StageStatus.CANCELLED)), Outcome(CANCELLED, "Deployment was cancelled while executing stage s1", "s1", True), id="cancelled in an earlier life"),
        pytest.param(remembered(stage("s1", StageStatus.FAILURE, reason="no luck")), Outcome(FAILURE, "Failed while executing stage s1 (no luck)", "s1", True), id="failed in an earlier life"),
    ],
)  # fmt: skip
def test_after_a_stage(ending: StageEnding, outcome: Outcome | None) -> None:
    assert outcome_after(STAGE, ending) == outcome


@pytest.mark.parametrize("status", [StageStatus.NOT_STARTED_YET, StageStatus.RUNNING])
def test_a_stage_that_is_not_over_decides_nothing(status: StageStatus) -> None:
    with pytest.raises(ValueError, match="stage is still"):
        outcome_after(STAGE, StageEnding(status))


@pytest.mark.parametrize(
    ("last", "ending", "outcome"),
    [
        pytest.param("s0", ending_of(BY_ANN), Outcome(CANCELLED, "Cancelled by ann while executing the previous stage of s1", "s0", True, "ann"), id="cancelled between two stages"),
        pytest.param("s0", ending_of(NO_ROLLBACK), Outcome(CANCELLED, "Cancelled by ann while executing the previous stage of s1", "s0", False, "ann"), id="and no rollback is wanted"),
        pytest.param("", ending_of(BY_ANN), Outcome(CANCELLED, "Cancelled by ann while preparing", "", False, "ann"), id="cancelled before anything happened"),
        pytest.param("s0", ending_of(TIME_IS_UP), Outcome(FAILURE, "Timed out while executing the previous stage of s1", "s0", True), id="time is up between two stages"),
        pytest.param("", StageEnding(StageStatus.FAILURE, "no source"), Outcome(FAILURE, "no source", "", False), id="the source cannot be had"),
    ],
)  # fmt: skip
def test_between_two_stages(last: str, ending: StageEnding, outcome: Outcome) -> None:
    assert outcome_between(STAGE, last, ending) == outcome


@pytest.mark.parametrize(
    ("stages", "status", "last"),
    [
        pytest.param([stage("a", StageStatus.SUCCESS), stage("b", StageStatus.FAILURE), stage("c", StageStatus.NOT_STARTED_YET)], FAILURE, "b", id="a stage failed"),
        pytest.param([stage("a", StageStatus.CANCELLED), stage("r", StageStatus.FAILURE, rollback=True)], CANCELLED, "a", id="a stage was cancelled, and the rollback does not count"),
        pytest.param([stage("a", StageStatus.SUCCESS), stage("b", StageStatus.NOT_STARTED_YET)], CANCELLED, "a", id="cancelled between two stages"),
        pytest.param([stage("a", StageStatus.RUNNING)], CANCELLED, "a", id="a stage that was never told to be over"),
    ],
)  # fmt: skip
def test_a_rollback_goes_on_towards_the_same_ending(
    stages: list[PipelineStage], status: DeploymentStatus, last: str
) -> None:
    outcome = resumed_rollback(deployment(*stages))
    assert (outcome.status, outcome.reason, outcome.last_stage) == (status, "because", last)
    assert outcome.rolls_back


@pytest.mark.parametrize(
    ("stages", "following", "last"),
    [
        pytest.param([], None, "", id="no stages at all"),
        pytest.param([stage("a", StageStatus.NOT_STARTED_YET)], "a", "", id="at the beginning"),
        pytest.param([stage("a", StageStatus.SUCCESS), stage("b", StageStatus.RUNNING)], "b", "a", id="in the middle"),
        pytest.param([stage("a", StageStatus.SKIPPED), stage("b", StageStatus.RUNNING)], "b", "", id="a skipped stage did nothing"),
        pytest.param([stage("a", StageStatus.SUCCESS), stage("r", StageStatus.NOT_STARTED_YET, rollback=True)], None, "a", id="rollback stages do not follow"),
    ],
)  # fmt: skip
def test_where_a_deployment_stands(
    stages: list[PipelineStage], following: str | None, last: str
) -> None:
    found, before = next_stage(deployment(*stages))
    assert (found.id if found is not None else None, before) == (following, last)


def test_a_command_says_what_is_to_become_of_the_rollback() -> None:
    command = Command(commander="ann")
    command.cancel_deployment.force_rollback = True
    assert stop_of(command) == Stop(StopReason.CANCELLED, by="ann", force_rollback=True)
