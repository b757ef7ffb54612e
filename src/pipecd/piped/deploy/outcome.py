# SPDX-License-Identifier: Apache-2.0
"""What the endings of stages mean for their deployment; all pure, with the words people read."""

from dataclasses import dataclass

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


def cancelled_before(stage: PipelineStage, stop: Stop, last_stage: str) -> Outcome:
    """A deployment that was stopped between two stages; the second one is never started."""
    has_begun = bool(last_stage)
    where = f"executing the previous stage of {stage.id}" if has_begun else "preparing"
    if stop.reason is StopReason.TIMED_OUT:
        reason = f"Timed out while {where}"
        return Outcome(DeploymentStatus.FAILURE, reason, last_stage, rolls_back=has_begun)
    return Outcome(
        DeploymentStatus.CANCELLED,
        f"Cancelled by {stop.by} while {where}",
        last_stage,
        rolls_back=has_begun and not stop.force_no_rollback,
    )


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
        return Outcome(DeploymentStatus.CANCELLED, reason, stage.id, rolls_back)
    if stop is not None:
        reason = f"Timed out while executing stage {stage.id}"
    else:
        reason = f"Failed while executing stage {stage.id}{because}"
    return Outcome(DeploymentStatus.FAILURE, reason, stage.id, rolls_back=True)
