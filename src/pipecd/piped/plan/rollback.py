# SPDX-License-Identifier: Apache-2.0
"""The rollback rule: what the result of a stage, a cancellation or a timeout means.

`outcome_after` decides after each stage whether the deployment continues, ends, or ends after a
rollback. `pipecd.piped.deploy.scheduler` carries the decision out.
"""

from dataclasses import dataclass, replace
from enum import Enum

from pipecd.model.deployment import DeploymentStatus, NextStep, StageStatus, next_step
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

SUCCEEDED = "The deployment was completed successfully"


class StopReason(Enum):
    """Why a deployment stops before its last stage."""

    CANCELLED = "cancelled"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Stop:
    """A request to stop; a user who cancels may force or forbid the rollback."""

    reason: StopReason
    by: str = ""
    force_rollback: bool = False
    force_no_rollback: bool = False


TIMED_OUT = Stop(StopReason.TIMED_OUT)


def stop_from(command: Command) -> Stop:
    """Returns the stop that a CANCEL_DEPLOYMENT command requests."""
    return Stop(
        StopReason.CANCELLED,
        by=command.commander,
        force_rollback=command.cancel_deployment.force_rollback,
        force_no_rollback=command.cancel_deployment.force_no_rollback,
    )


@dataclass(frozen=True)
class StageOutcome:
    """How a stage ended, and what stopped it, if anything."""

    status: StageStatus
    message: str = ""
    stop: Stop | None = None


@dataclass(frozen=True)
class DeploymentOutcome:
    """How a deployment ends; the result of its rollback does not change it."""

    status: DeploymentStatus
    reason: str
    last_stage: str = ""
    rolls_back: bool = False
    by: str = ""
    """The user who cancelled it."""


def stopped_stage(stop: Stop) -> StageOutcome:
    """Returns the outcome of a stopped stage: cancelled by a user, failed by a timeout."""
    match stop.reason:
        case StopReason.CANCELLED:
            return StageOutcome(StageStatus.CANCELLED, f"Cancelled by {stop.by}", stop)
        case StopReason.TIMED_OUT:
            return StageOutcome(StageStatus.FAILURE, "Timed out", stop)


def recorded_outcome(stage: PipelineStage) -> StageOutcome:
    """Returns the outcome of a stage that completed before a restart of piped."""
    return StageOutcome(StageStatus(stage.status), stage.status_reason)


def outcome_after(stage: PipelineStage, ended: StageOutcome) -> DeploymentOutcome | None:
    """Returns the outcome of the deployment after a stage, or None if it continues."""
    match next_step(ended.status):
        case NextStep.CONTINUE:
            return None
        case NextStep.STOP_SUCCEEDED:
            return DeploymentOutcome(DeploymentStatus.SUCCESS, SUCCEEDED, stage.id)
        case NextStep.STOP_UNSUCCESSFUL:
            pass
    stop, by = ended.stop, ended.stop.by if ended.stop is not None else ""
    if ended.status is StageStatus.CANCELLED:
        cancelled = f"Cancelled by {by}" if stop is not None else "Deployment was cancelled"
        reason = f"{cancelled} while executing stage {stage.id}"
        rolls_back = stop is None or not stop.force_no_rollback
        return DeploymentOutcome(DeploymentStatus.CANCELLED, reason, stage.id, rolls_back, by)
    if stop is not None:
        reason = f"Timed out while executing stage {stage.id}"
    else:
        cause = f" ({ended.message})" if ended.message else ""
        reason = f"Failed while executing stage {stage.id}{cause}"
    return DeploymentOutcome(DeploymentStatus.FAILURE, reason, stage.id, rolls_back=True)


def next_stage(deployment: Deployment) -> tuple[PipelineStage | None, str]:
    """Returns the first stage that is not completed, and the id of the last executed one."""
    last = ""
    for stage in deployment.stages:
        status = StageStatus(stage.status)
        if stage.rollback:
            continue
        if not status.is_completed:
            return stage, last
        if status is not StageStatus.SKIPPED:
            last = stage.id
    return None, last


def outcome_between(
    following: PipelineStage | None, last: str, ended: StageOutcome
) -> DeploymentOutcome:
    """Returns the outcome of a deployment that ends before the stage `following` starts.

    `last` is the id of the last executed stage; without one there is nothing to roll back.
    """
    stop = ended.stop
    before = f"executing the previous stage of {following.id}" if following else "ending"
    where = before if last else "preparing"
    if ended.status is StageStatus.CANCELLED:
        rolls_back = bool(last) and not (stop is not None and stop.force_no_rollback)
        by = stop.by if stop is not None else ""
        reason = f"Cancelled by {by} while {where}"
        return DeploymentOutcome(DeploymentStatus.CANCELLED, reason, last, rolls_back, by)
    reason = f"Timed out while {where}" if stop is not None else ended.message
    return DeploymentOutcome(DeploymentStatus.FAILURE, reason, last, rolls_back=bool(last))


def without_rollback(outcome: DeploymentOutcome, stop: Stop) -> DeploymentOutcome:
    """Adds to the reason of a cancellation with rollback that no rollback was planned."""
    if not (stop.force_rollback and outcome.rolls_back):
        return outcome
    note = "there is no rollback, as planner.autoRollback is off or no stage can be undone"
    return replace(outcome, reason=f"{outcome.reason} ({note})", rolls_back=False)


def resumed_rollback(deployment: Deployment) -> DeploymentOutcome:
    """Returns the outcome of a deployment whose rollback a restart of piped interrupted."""
    forward = [stage for stage in deployment.stages if not stage.rollback]
    last = next((s for s in reversed(forward) if s.status), None)
    for stage in forward:
        status = StageStatus(stage.status)
        if status.is_completed and next_step(status) is NextStep.STOP_UNSUCCESSFUL:
            last = stage
            break
    failed = last is not None and StageStatus(last.status) is StageStatus.FAILURE
    return DeploymentOutcome(
        DeploymentStatus.FAILURE if failed else DeploymentStatus.CANCELLED,
        deployment.status_reason,
        last.id if last is not None else "",
        rolls_back=True,
    )
