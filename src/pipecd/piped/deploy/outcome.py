# SPDX-License-Identifier: Apache-2.0
"""What the endings of stages mean for their deployment; all pure, with the words people read."""

from dataclasses import dataclass, replace

from pipecd.model.deployment import DeploymentStatus, Next, StageStatus, after
from pipecd.piped.deploy.stop import Stop, StopReason
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

SUCCEEDED = "The deployment was completed successfully"


@dataclass(frozen=True)
class StageEnding:
    """How a stage ended, and what stopped it if something did."""

    status: StageStatus
    message: str = ""
    stop: Stop | None = None


@dataclass(frozen=True)
class Outcome:
    """How a deployment is going to end; a rollback before that does not change it."""

    status: DeploymentStatus
    reason: str
    last_stage: str = ""
    rolls_back: bool = False
    by: str = ""
    """Who cancelled it."""


def ending_of(stop: Stop) -> StageEnding:
    """A stage that was stopped: a person cancels it, time lets it fail."""
    match stop.reason:
        case StopReason.CANCELLED:
            return StageEnding(StageStatus.CANCELLED, f"Cancelled by {stop.by}", stop)
        case StopReason.TIMED_OUT:
            return StageEnding(StageStatus.FAILURE, "Timed out", stop)


def outcome_after(stage: PipelineStage, ending: StageEnding) -> Outcome | None:
    """What the deployment comes to after a stage; None means it goes on."""
    match after(ending.status):
        case Next.CONTINUE:
            return None
        case Next.STOP_SUCCEEDED:
            return Outcome(DeploymentStatus.SUCCESS, SUCCEEDED, stage.id)
        case Next.STOP_UNSUCCESSFUL:
            return _unsuccessful(stage, ending)


def next_stage(deployment: Deployment) -> tuple[PipelineStage | None, str]:
    """The first stage that is not over, and the id of the last one that did something."""
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


def outcome_between(following: PipelineStage | None, last: str, ending: StageEnding) -> Outcome:
    """A deployment that ends before its next stage, which is never started."""
    stop = ending.stop
    before = f"executing the previous stage of {following.id}" if following else "ending"
    where = before if last else "preparing"
    if ending.status is StageStatus.CANCELLED:
        rolls_back = bool(last) and not (stop is not None and stop.force_no_rollback)
        by = stop.by if stop is not None else ""
        reason = f"Cancelled by {by} while {where}"
        return Outcome(DeploymentStatus.CANCELLED, reason, last, rolls_back, by)
    reason = f"Timed out while {where}" if stop is not None else ending.message
    return Outcome(DeploymentStatus.FAILURE, reason, last, rolls_back=bool(last))


def without_rollback(outcome: Outcome, stop: Stop) -> Outcome:
    """Tells a person who demanded a rollback that the deployment was planned without one."""
    if not (stop.force_rollback and outcome.rolls_back):
        return outcome
    told = "there is no rollback, as planner.autoRollback is off or no stage can be undone"
    return replace(outcome, reason=f"{outcome.reason} ({told})", rolls_back=False)


def remembered(stage: PipelineStage) -> StageEnding:
    """The ending of a stage that ended in an earlier life of this piped."""
    return StageEnding(StageStatus(stage.status), stage.status_reason)


def resumed_rollback(deployment: Deployment) -> Outcome:
    """What a deployment was coming to when its rollback was interrupted."""
    forward = [stage for stage in deployment.stages if not stage.rollback]
    stopped = [s for s in forward if _stops(StageStatus(s.status))]
    last = stopped[0] if stopped else next((s for s in reversed(forward) if s.status), None)
    failed = last is not None and StageStatus(last.status) is StageStatus.FAILURE
    return Outcome(
        DeploymentStatus.FAILURE if failed else DeploymentStatus.CANCELLED,
        deployment.status_reason,
        last.id if last is not None else "",
        rolls_back=True,
    )


def _stops(status: StageStatus) -> bool:
    return status.is_completed and after(status) is Next.STOP_UNSUCCESSFUL


def _unsuccessful(stage: PipelineStage, ending: StageEnding) -> Outcome:
    stop = ending.stop
    because = f" ({ending.message})" if ending.message else ""
    if ending.status is StageStatus.CANCELLED:
        reason = (
            f"Cancelled by {stop.by} while executing stage {stage.id}"
            if stop is not None
            else f"Deployment was cancelled while executing stage {stage.id}"
        )
        rolls_back = stop is None or not stop.force_no_rollback
        by = stop.by if stop is not None else ""
        return Outcome(DeploymentStatus.CANCELLED, reason, stage.id, rolls_back, by)
    if stop is not None:
        reason = f"Timed out while executing stage {stage.id}"
    else:
        reason = f"Failed while executing stage {stage.id}{because}"
    return Outcome(DeploymentStatus.FAILURE, reason, stage.id, rolls_back=True)
