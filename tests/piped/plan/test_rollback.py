# SPDX-License-Identifier: Apache-2.0
"""The rollback rule: what the outcome of a stage means for its deployment."""

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.piped.plan.rollback import (
    SUCCEEDED,
    TIMED_OUT,
    DeploymentOutcome,
    StageOutcome,
    Stop,
    StopReason,
    next_stage,
    outcome_after,
    outcome_between,
    recorded_outcome,
    resumed_rollback,
    stop_from,
    stopped_stage,
    without_rollback,
)
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

SUCCESS, FAILURE, CANCELLED = (
    DeploymentStatus.SUCCESS,
    DeploymentStatus.FAILURE,
    DeploymentStatus.CANCELLED,
)
BY_ANN = Stop(StopReason.CANCELLED, by="ann")
NO_ROLLBACK = Stop(StopReason.CANCELLED, by="ann", force_no_rollback=True)
FORCED_ROLLBACK = Stop(StopReason.CANCELLED, by="ann", force_rollback=True)
STAGE = PipelineStage(id="s1", name="WAIT")


def stage(id: str, status: StageStatus, *, rollback: bool = False, reason: str = "") -> PipelineStage:  # fmt: skip
    return PipelineStage(id=id, name="X", status=int(status), rollback=rollback, status_reason=reason)  # type: ignore[arg-type] # fmt: skip


def deployment(*stages: PipelineStage) -> Deployment:
    return Deployment(id="d", stages=stages, status_reason="because")


@pytest.mark.parametrize(
    ("ended", "outcome"),
    [
        pytest.param(StageOutcome(StageStatus.SUCCESS), None, id="a success continues"),
        pytest.param(StageOutcome(StageStatus.SKIPPED), None, id="a skipped stage continues"),
        pytest.param(StageOutcome(StageStatus.EXITED), DeploymentOutcome(SUCCESS, SUCCEEDED, "s1"), id="an exit is a success"),
        pytest.param(StageOutcome(StageStatus.FAILURE), DeploymentOutcome(FAILURE, "Failed while executing stage s1", "s1", True), id="a failure without a message"),
        pytest.param(StageOutcome(StageStatus.FAILURE, "no luck"), DeploymentOutcome(FAILURE, "Failed while executing stage s1 (no luck)", "s1", True), id="a failure with a message"),
        pytest.param(stopped_stage(TIMED_OUT), DeploymentOutcome(FAILURE, "Timed out while executing stage s1", "s1", True), id="a timeout"),
        pytest.param(stopped_stage(BY_ANN), DeploymentOutcome(CANCELLED, "Cancelled by ann while executing stage s1", "s1", True, "ann"), id="a user cancels"),
        pytest.param(stopped_stage(NO_ROLLBACK), DeploymentOutcome(CANCELLED, "Cancelled by ann while executing stage s1", "s1", False, "ann"), id="a user cancels without rollback"),
        pytest.param(recorded_outcome(stage("s1", StageStatus.CANCELLED)), DeploymentOutcome(CANCELLED, "Deployment was cancelled while executing stage s1", "s1", True), id="cancelled before a restart"),
        pytest.param(recorded_outcome(stage("s1", StageStatus.FAILURE, reason="no luck")), DeploymentOutcome(FAILURE, "Failed while executing stage s1 (no luck)", "s1", True), id="failed before a restart"),
    ],
)  # fmt: skip
def test_after_a_stage(ended: StageOutcome, outcome: DeploymentOutcome | None) -> None:
    assert outcome_after(STAGE, ended) == outcome


@pytest.mark.parametrize(
    ("stop", "outcome", "expected"),
    [
        pytest.param(FORCED_ROLLBACK, DeploymentOutcome(CANCELLED, "Cancelled", "s1", True, "ann"), DeploymentOutcome(CANCELLED, "Cancelled (there is no rollback, as planner.autoRollback is off or no stage can be undone)", "s1", False, "ann"), id="a cancellation with rollback"),
        pytest.param(FORCED_ROLLBACK, DeploymentOutcome(CANCELLED, "Cancelled", "", False, "ann"), DeploymentOutcome(CANCELLED, "Cancelled", "", False, "ann"), id="a cancellation with rollback before the first stage"),
        pytest.param(BY_ANN, DeploymentOutcome(CANCELLED, "Cancelled", "s1", True, "ann"), DeploymentOutcome(CANCELLED, "Cancelled", "s1", True, "ann"), id="a plain cancellation"),
        pytest.param(NO_ROLLBACK, DeploymentOutcome(CANCELLED, "Cancelled", "s1", False, "ann"), DeploymentOutcome(CANCELLED, "Cancelled", "s1", False, "ann"), id="a cancellation without rollback"),
        pytest.param(TIMED_OUT, DeploymentOutcome(FAILURE, "Timed out", "s1", True), DeploymentOutcome(FAILURE, "Timed out", "s1", True), id="a timeout"),
    ],
)  # fmt: skip
def test_only_a_requested_rollback_that_was_not_planned_is_mentioned(
    stop: Stop, outcome: DeploymentOutcome, expected: DeploymentOutcome
) -> None:
    assert without_rollback(outcome, stop) == expected


@pytest.mark.parametrize("status", [StageStatus.NOT_STARTED_YET, StageStatus.RUNNING])
def test_a_stage_that_still_runs_has_no_outcome(status: StageStatus) -> None:
    with pytest.raises(ValueError, match="stage is still"):
        outcome_after(STAGE, StageOutcome(status))


@pytest.mark.parametrize(
    ("last", "ended", "outcome"),
    [
        pytest.param("s0", stopped_stage(BY_ANN), DeploymentOutcome(CANCELLED, "Cancelled by ann while executing the previous stage of s1", "s0", True, "ann"), id="cancelled between two stages"),
        pytest.param("s0", stopped_stage(NO_ROLLBACK), DeploymentOutcome(CANCELLED, "Cancelled by ann while executing the previous stage of s1", "s0", False, "ann"), id="and without rollback"),
        pytest.param("", stopped_stage(BY_ANN), DeploymentOutcome(CANCELLED, "Cancelled by ann while preparing", "", False, "ann"), id="cancelled before the first stage"),
        pytest.param("s0", stopped_stage(TIMED_OUT), DeploymentOutcome(FAILURE, "Timed out while executing the previous stage of s1", "s0", True), id="a timeout between two stages"),
        pytest.param("", StageOutcome(StageStatus.FAILURE, "no source"), DeploymentOutcome(FAILURE, "no source", "", False), id="the source is not available"),
    ],
)  # fmt: skip
def test_between_two_stages(last: str, ended: StageOutcome, outcome: DeploymentOutcome) -> None:
    assert outcome_between(STAGE, last, ended) == outcome


@pytest.mark.parametrize(
    ("stages", "status", "last"),
    [
        pytest.param([stage("a", StageStatus.SUCCESS), stage("b", StageStatus.FAILURE), stage("c", StageStatus.NOT_STARTED_YET)], FAILURE, "b", id="a stage failed"),
        pytest.param([stage("a", StageStatus.CANCELLED), stage("r", StageStatus.FAILURE, rollback=True)], CANCELLED, "a", id="a stage was cancelled, and the rollback does not count"),
        pytest.param([stage("a", StageStatus.SUCCESS), stage("b", StageStatus.NOT_STARTED_YET)], CANCELLED, "a", id="cancelled between two stages"),
        pytest.param([stage("a", StageStatus.RUNNING)], CANCELLED, "a", id="a stage whose completion was never reported"),
    ],
)  # fmt: skip
def test_a_resumed_rollback_keeps_the_outcome(
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
def test_next_stage(stages: list[PipelineStage], following: str | None, last: str) -> None:
    following_stage, before = next_stage(deployment(*stages))
    assert (following_stage.id if following_stage is not None else None, before) == (
        following,
        last,
    )


def test_a_cancel_command_may_force_the_rollback() -> None:
    command = Command(commander="ann")
    command.cancel_deployment.force_rollback = True
    assert stop_from(command) == Stop(StopReason.CANCELLED, by="ann", force_rollback=True)
