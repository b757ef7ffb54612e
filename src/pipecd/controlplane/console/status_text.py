# SPDX-License-Identifier: Apache-2.0
"""The status of an application or deployment in a sentence or two: what happens, and why."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pipecd.controlplane.console.formatting import duration, join_words, plural, sentence
from pipecd.controlplane.console.pipeline_view import (
    PipelineView,
    StageView,
    approved_by,
    is_waiting_for_approval,
)
from pipecd.controlplane.console.status_badge import PipedStatus, Tone, sync_status
from pipecd.controlplane.usecases.deployments import approvers_of
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

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


def application_status_text(application: Application, piped: PipedStatus) -> str:
    """The sync status of an application, its reason and what to do about it."""
    if application.disabled:
        return "Disabled: neither deployed nor checked for drift until it is enabled again."
    if piped.is_unavailable:
        return (
            f"Piped {piped.name} is {piped.badge.text.lower()}: this is the last known state, "
            "and a sync waits until that piped is back."
        )
    status, state = sync_status(application), application.sync_state
    if status is SyncStatus.UNKNOWN and state.reason:
        return f"The live state cannot be compared with Git. {sentence(state.reason)}"
    reason = ""
    if status is SyncStatus.OUT_OF_SYNC:
        reason = sentence(state.short_reason)
    elif status is SyncStatus.INVALID_CONFIG:
        reason = sentence(state.reason or state.short_reason)
    elif (
        status is SyncStatus.UNKNOWN
        and not application.most_recently_triggered_deployment.deployment_id
    ):
        reason = "The first deployment starts with the next commit or with Sync."
    return f"{_SYNC_TEXTS[status]} {reason}".strip()


def deployment_status_text(
    deployment: Deployment, pipeline: PipelineView, piped: PipedStatus
) -> StatusText:
    """What the deployment is doing or waiting for, or how it ended."""
    status = DeploymentStatus(deployment.status)
    if not status.is_completed and piped.is_unavailable:
        return StatusText(
            f"No progress: piped {piped.name} is {piped.badge.text.lower()}. "
            "The deployment resumes when that piped is back."
        )
    waiting_for = sentence(deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, ""))
    if not status.is_completed and waiting_for:
        return StatusText(waiting_for)
    stage_count = plural(len(pipeline.stages), "stage")
    texts: dict[DeploymentStatus, Callable[[], StatusText]] = {
        DeploymentStatus.PENDING: lambda: StatusText(
            f"Waiting for piped {piped.name} to plan the deployment."
        ),
        DeploymentStatus.PLANNED: lambda: StatusText(
            f"Planned with {stage_count}; the first one starts next."
        ),
        DeploymentStatus.RUNNING: lambda: _running(deployment, pipeline),
        DeploymentStatus.ROLLING_BACK: lambda: _rolling_back(deployment, pipeline),
        DeploymentStatus.SUCCESS: lambda: _succeeded(deployment, pipeline),
        DeploymentStatus.FAILURE: lambda: _failed(deployment, pipeline),
        DeploymentStatus.CANCELLED: lambda: _cancelled(deployment, pipeline),
    }
    return texts[status]()


def _running(deployment: Deployment, pipeline: PipelineView) -> StatusText:
    for waiting in filter(is_waiting_for_approval, deployment.stages):
        approved, approvers = approved_by(waiting), approvers_of(waiting)
        so_far = f" Approved by {join_words(approved)} so far." if approved else ""
        who = join_words(approvers, "or") if approvers else "anyone who may update deployments"
        return StatusText(f"Waiting for approval by {who}.{so_far}")
    for number, stage in enumerate(pipeline.stages, 1):
        if stage.running:
            description = sentence(stage.desc or stage.name)
            text = f"Stage {number} of {len(pipeline.stages)} is running: {description}"
            return StatusText(text, stage)
    return StatusText("The next stage starts in a moment.")


def _rolling_back(deployment: Deployment, pipeline: PipelineView) -> StatusText:
    failed = _first_failed(pipeline.stages)
    cause = _cause(deployment, failed)
    return StatusText(f"{cause} Rolling back{_to_running_commit(deployment)}.", failed)


def _succeeded(deployment: Deployment, pipeline: PipelineView) -> StatusText:
    seconds = deployment.completed_at - deployment.created_at
    elapsed = duration(seconds) if seconds > 0 else "less than a second"
    skipped = [stage.name for stage in pipeline.stages if stage.status == "SKIPPED"]
    exited = [stage.name for stage in pipeline.stages if stage.status == "EXITED"]
    text = f"Completed {plural(len(pipeline.stages) - len(skipped), 'stage')} in {elapsed}."
    if skipped:
        text += f" Skipped: {join_words(skipped)}."
    if exited:
        text += f" {exited[0]} ended the deployment early."
    return StatusText(text)


def _failed(deployment: Deployment, pipeline: PipelineView) -> StatusText:
    failed = _first_failed(pipeline.stages)
    text = _cause(deployment, failed)
    if pipeline.rollback:
        rolled_back = all(stage.status == "SUCCESS" for stage in pipeline.rollback)
        target = _to_running_commit(deployment)
        text += f" It was rolled back{target}." if rolled_back else " The rollback failed too."
    return StatusText(text, failed)


def _cancelled(deployment: Deployment, pipeline: PipelineView) -> StatusText:
    text = sentence(deployment.status_reason) or "The deployment was cancelled."
    if pipeline.rollback and all(stage.status == "SUCCESS" for stage in pipeline.rollback):
        text += f" It was rolled back{_to_running_commit(deployment)}."
    return StatusText(text, next((s for s in pipeline.stages if s.status == "CANCELLED"), None))


def _cause(deployment: Deployment, failed: StageView | None) -> str:
    """The reason of the failed stage, which is more specific than the deployment's."""
    if failed and failed.reason:
        return f"{failed.name} failed: {failed.reason}"
    reason = sentence(deployment.status_reason)
    default = f"{failed.name} failed." if failed else "The deployment failed without a reason."
    return reason or default


def _to_running_commit(deployment: Deployment) -> str:
    return f" to {deployment.running_commit_hash[:7]}" if deployment.running_commit_hash else ""


def _first_failed(stages: Iterable[StageView]) -> StageView | None:
    return next((stage for stage in stages if stage.badge.tone is Tone.BAD), None)
