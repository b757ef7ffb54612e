# SPDX-License-Identifier: Apache-2.0
"""The status of an application or deployment in a sentence or two: what happens, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipecd.controlplane.console.formatting import (
    clause,
    duration,
    isolate,
    join_words,
    plural,
    sentence,
)
from pipecd.controlplane.console.pipeline_view import (
    PipelineView,
    StageView,
    approved_by,
    missing_approvals,
)
from pipecd.controlplane.console.status_badge import PipedStatus, Tone, sync_status
from pipecd.controlplane.usecases.deployments import is_waiting_for_approval
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus, with_stage_names
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

_SYNC_TEXTS = {
    SyncStatus.UNKNOWN: "The live state has not been compared with Git yet.",
    SyncStatus.SYNCED: "The live state matches Git.",
    SyncStatus.DEPLOYING: "A deployment is in progress.",
    SyncStatus.OUT_OF_SYNC: "The live state differs from Git.",
    SyncStatus.INVALID_CONFIG: "The application configuration is invalid; nothing is deployed.",
}


@dataclass(frozen=True)
class StatusText:
    """The text, and the stage whose log explains it."""

    text: str
    stage: StageView | None = None


def application_status_text(
    application: Application, piped: PipedStatus, *, waiting: bool = False
) -> str:
    """The sync status of an application, its reason and what to do about it.

    `waiting` means that one of its deployments waits for an approval.
    """
    if application.disabled:
        return "Disabled: neither deployed nor checked for drift until it is enabled again."
    status, state = sync_status(application), application.sync_state
    if piped.is_unavailable:
        text = (
            f"Piped {isolate(piped.name)} is {piped.badge.text.lower()}: "
            f"this is the last known state, and a sync waits until that piped {piped.remedy}."
        )
        # What to fix in Git meanwhile, or what differed at last.
        reasons = {
            SyncStatus.INVALID_CONFIG: state.reason or state.short_reason,
            SyncStatus.OUT_OF_SYNC: state.short_reason,
        }
        return f"{sentence(reasons.get(status, ''))} {text}".strip()
    if waiting:
        return "A deployment waits for approval."
    text, reason = _SYNC_TEXTS[status], ""
    if status is SyncStatus.OUT_OF_SYNC:
        reason = sentence(state.short_reason)
        latest = application.most_recently_triggered_deployment.deployment_id
        if latest and application.most_recently_successful_deployment.deployment_id != latest:
            reason = f"{reason} The latest deployment has not succeeded.".strip()
    elif status is SyncStatus.INVALID_CONFIG:
        reason = sentence(state.reason or state.short_reason)
    elif status is SyncStatus.UNKNOWN and state.reason:
        text = "The live state cannot be compared with Git."
        reason = sentence(state.reason)
    elif status is SyncStatus.UNKNOWN:
        # A piped reports no reason if no plugin of the application reads a live state.
        text = "This application has no live state to compare." if state.timestamp else text
        latest = application.most_recently_triggered_deployment.deployment_id
        if not latest:
            reason = "The first deployment starts by itself, or at once with Sync."
        elif application.most_recently_successful_deployment.deployment_id != latest:
            reason = "The latest deployment has not succeeded."
    return f"{text} {reason}".strip()


def deployment_status_text(
    deployment: Deployment, pipeline: PipelineView, piped: PipedStatus
) -> StatusText:
    """What the deployment is doing or waiting for, or how it ended."""
    status = DeploymentStatus(deployment.status)
    if not status.is_completed and piped.is_unavailable:
        return StatusText(
            f"No progress: piped {isolate(piped.name)} is {piped.badge.text.lower()}. "
            f"The deployment resumes when that piped {piped.remedy}."
        )
    waiting_for = sentence(deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, ""))
    if not status.is_completed and waiting_for:
        return StatusText(waiting_for)
    failed = _failed_stage(pipeline)
    commit = deployment.running_commit_hash[:7]
    to_commit = f" to {commit}" if commit else ""
    is_rolled_back = all(each.status == "SUCCESS" for each in pipeline.rollback)
    stage: StageView | None = None
    match status:
        case DeploymentStatus.PENDING:
            text = f"Waiting for piped {isolate(piped.name)} to plan the deployment."
        case DeploymentStatus.PLANNED:
            text = (
                f"Planned with {plural(len(pipeline.stages), 'stage')}; the first one starts next."
            )
        case DeploymentStatus.RUNNING:
            return _running(deployment, pipeline)
        case DeploymentStatus.ROLLING_BACK:
            stage = failed
            text = f"{_cause(deployment, pipeline, failed)} Rolling back{to_commit}."
        case DeploymentStatus.SUCCESS:
            text = _succeeded(deployment, pipeline)
        case DeploymentStatus.FAILURE:
            stage = failed
            text = _cause(deployment, pipeline, failed)
            if pipeline.rollback:
                rolled_back = f" It was rolled back{to_commit}."
                text += rolled_back if is_rolled_back else " The rollback failed too."
        case DeploymentStatus.CANCELLED:
            stage = next((each for each in pipeline.stages if each.status == "CANCELLED"), None)
            reason = with_stage_names(deployment.status_reason, deployment)
            text = isolate(sentence(reason)) or "The deployment was cancelled."
            if pipeline.rollback and is_rolled_back:
                text += f" It was rolled back{to_commit}."
    return StatusText(text, stage)


def _running(deployment: Deployment, pipeline: PipelineView) -> StatusText:
    if waiting := [stage for stage in deployment.stages if is_waiting_for_approval(stage)]:
        # Who approves, and how many have, is on the card below.
        done = sum(stage.status in ("SUCCESS", "SKIPPED") for stage in pipeline.stages)
        others = len(pipeline.stages) - done - 1
        text = f"{done} of {plural(len(pipeline.stages), 'stage')} done."
        follow = "the next one starts" if others == 1 else f"the other {others} start"
        then = follow if others > 0 else "it ends"
        return StatusText(f"{text} Once {_needed_approval(waiting)}, {then}.")
    stage = next((stage for stage in pipeline.stages if stage.running), None)
    if stage is None:
        return StatusText("The next stage starts in a moment.")
    return StatusText(
        f"{running_stage(pipeline)} is running: {clause(stage.desc or stage.name)}", stage
    )


def _needed_approval(waiting: Sequence[PipelineStage]) -> str:
    stage = waiting[0]
    missing, more = missing_approvals(stage), " more" if approved_by(stage) else ""
    if len(waiting) > 1 or not missing or (missing == 1 and not more):
        return "it is approved"
    return f"{missing}{more} person approves" if missing == 1 else f"{missing}{more} people approve"


def running_stage(pipeline: PipelineView) -> str:
    """Which of how many stages runs first; empty if none does."""
    running = (number for number, stage in enumerate(pipeline.stages, 1) if stage.running)
    number = next(running, 0)
    return f"Stage {number} of {len(pipeline.stages)}" if number else ""


def _succeeded(deployment: Deployment, pipeline: PipelineView) -> str:
    seconds = deployment.completed_at - deployment.created_at
    elapsed = duration(seconds) if seconds > 0 else "less than a second"
    skipped = [isolate(stage.name) for stage in pipeline.stages if stage.status == "SKIPPED"]
    exited = [isolate(stage.name) for stage in pipeline.stages if stage.status == "EXITED"]
    text = f"Completed {plural(len(pipeline.stages) - len(skipped), 'stage')} in {elapsed}."
    if skipped:
        text += f" Skipped: {join_words(skipped)}."
    if exited:
        text += f" {exited[0]} ended the deployment early."
    return text


def failure_text(deployment: Deployment, pipeline: PipelineView) -> str:
    """Why a deployment has failed: its stage that did, and the reason."""
    return _cause(deployment, pipeline, _failed_stage(pipeline))


def _failed_stage(pipeline: PipelineView) -> StageView | None:
    return next((each for each in pipeline.stages if each.badge.tone is Tone.BAD), None)


def _cause(deployment: Deployment, pipeline: PipelineView, failed: StageView | None) -> str:
    """The reason of the failed stage, which is more specific than the deployment's."""
    name = _distinct_name(failed, pipeline) if failed else ""
    if failed and failed.reason:
        return f"{name} failed: {isolate(failed.reason)}"
    reason = isolate(sentence(with_stage_names(deployment.status_reason, deployment)))
    default = f"{name} failed." if failed else "The deployment failed without a reason."
    return reason or default


def _distinct_name(stage: StageView, pipeline: PipelineView) -> str:
    """The name of a stage, with its description if another stage has the same name."""
    is_only = sum(each.name == stage.name for each in pipeline.stages) < 2
    return isolate(stage.name if is_only or not stage.desc else f"{stage.name} ({stage.desc})")
