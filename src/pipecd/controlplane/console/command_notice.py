# SPDX-License-Identifier: Apache-2.0
"""The notice about a command that the user requested: a sync, a cancellation, an approval."""

from dataclasses import dataclass

from pipecd.controlplane.console.formatting import clause, sentence
from pipecd.controlplane.console.status_badge import Badge, PipedStatus, Tone
from pipecd.model.command import (
    REASON_KEY,
    REJECTION_KEY,
    TRIGGERED_KEY,
    CommandKind,
    CommandStatus,
)
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import PipecdError
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment

_NOUNS = {
    CommandKind.SYNC_APPLICATION: "sync",
    CommandKind.CHAIN_SYNC_APPLICATION: "sync",
    CommandKind.CANCEL_DEPLOYMENT: "cancellation",
    CommandKind.APPROVE_STAGE: "approval",
    CommandKind.SKIP_STAGE: "skip",
    CommandKind.RESTART_PIPED: "restart",
    CommandKind.BUILD_PLAN_PREVIEW: "plan preview",
    CommandKind.UPDATE_APPLICATION_CONFIG: "update",
}


_ENDED_DEPLOYMENT = {
    DeploymentStatus.SUCCESS: "has already succeeded",
    DeploymentStatus.FAILURE: "has already failed",
    DeploymentStatus.CANCELLED: "was already cancelled",
}
_ENDED_STAGE = {
    StageStatus.SUCCESS: "has already succeeded",
    StageStatus.FAILURE: "has already failed",
    StageStatus.CANCELLED: "was already cancelled",
    StageStatus.SKIPPED: "was already skipped",
    StageStatus.EXITED: "has already ended the deployment",
}


@dataclass(frozen=True)
class Notice:
    """A sentence about a command; `deployment_id` is the deployment that it triggered."""

    command_id: str
    badge: Badge
    text: str
    is_pending: bool
    deployment_id: str = ""


def command_notice(command: Command, piped: PipedStatus) -> Notice:
    """What became of the command so far."""
    noun = "rejection" if REJECTION_KEY in command.metadata else _NOUNS[CommandKind(command.type)]
    status = CommandStatus(command.status)
    if status is CommandStatus.NOT_HANDLED_YET:
        if piped.is_unavailable:
            badge = Badge(Tone.WAIT, "clock", "waiting")
            text = (
                f"The {noun} is requested, but piped {piped.name} is {piped.badge.text.lower()}; "
                f"it is executed when that piped {piped.remedy}."
            )
        else:
            badge = Badge(Tone.RUN, "run", "requested")
            text = f"The {noun} is requested; piped {piped.name} picks it up in a moment."
        return Notice(command.id, badge, text, is_pending=True)
    reason = command.metadata.get(REASON_KEY) or f"piped {piped.name} gave no reason; see its log"
    texts = {
        CommandStatus.SUCCEEDED: (Tone.OK, "check", f"The {noun} you requested succeeded."),
        CommandStatus.FAILED: (
            Tone.BAD,
            "cross",
            f"The {noun} you requested failed: {clause(reason)}",
        ),
        CommandStatus.TIMEOUT: (
            Tone.BAD,
            "clock",
            f"Piped {piped.name} did not handle the {noun} in time. Request it again.",
        ),
    }
    tone, icon, text = texts[status]
    triggered = command.metadata.get(TRIGGERED_KEY, "")
    if triggered and status is CommandStatus.SUCCEEDED:
        text = "The sync you requested has started a deployment."
    badge = Badge(tone, icon, status.name.lower())
    return Notice(command.id, badge, text, is_pending=False, deployment_id=triggered)


def is_approval_done(command: Command) -> bool:
    """Whether the command is an approval that the piped has counted."""
    is_approval = command.type == CommandKind.APPROVE_STAGE
    is_approval = is_approval and REJECTION_KEY not in command.metadata
    return is_approval and command.status == CommandStatus.SUCCEEDED


def refusal_text(noun: str, error: PipecdError, deployment: Deployment, stage_id: str = "") -> str:
    """Why a command for a deployment, or for a stage of it, was refused at once."""
    stage = next((stage for stage in deployment.stages if stage.id == stage_id), None)
    if ended := _ENDED_DEPLOYMENT.get(DeploymentStatus(deployment.status)):
        return f"The {noun} came too late: the deployment {ended}."
    if stage and (ended := _ENDED_STAGE.get(StageStatus(stage.status))):
        return f"The {noun} came too late: {stage.name} {ended}."
    return f"The {noun} was refused: {clause(error.message)} {sentence(error.hint)}".strip()
