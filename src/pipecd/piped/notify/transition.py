# SPDX-License-Identifier: Apache-2.0
"""The notices that a change of a deployment, or of one of its stages, gives rise to."""

from collections.abc import Iterator, Mapping

from google.protobuf.message import Message

from pipecd.model.deployment import DeploymentStatus, ManualOperation, StageStatus
from pipecd.piped.notify.mentions import mentions_of
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.proto.model import notification_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.sdk import APPROVED_USERS_KEY

_DEPLOYMENTS: Mapping[DeploymentStatus, tuple[NoticeKind, type[Message]]] = {
    DeploymentStatus.PLANNED: (
        NoticeKind.DEPLOYMENT_PLANNED,
        pb.NotificationEventDeploymentPlanned,
    ),
    DeploymentStatus.RUNNING: (
        NoticeKind.DEPLOYMENT_STARTED,
        pb.NotificationEventDeploymentStarted,
    ),
    DeploymentStatus.ROLLING_BACK: (
        NoticeKind.DEPLOYMENT_ROLLING_BACK,
        pb.NotificationEventDeploymentRollingBack,
    ),
    DeploymentStatus.SUCCESS: (
        NoticeKind.DEPLOYMENT_SUCCEEDED,
        pb.NotificationEventDeploymentSucceeded,
    ),
    DeploymentStatus.FAILURE: (
        NoticeKind.DEPLOYMENT_FAILED,
        pb.NotificationEventDeploymentFailed,
    ),
    DeploymentStatus.CANCELLED: (
        NoticeKind.DEPLOYMENT_CANCELLED,
        pb.NotificationEventDeploymentCancelled,
    ),
}
_STAGES: Mapping[StageStatus, tuple[NoticeKind, type[Message]]] = {
    StageStatus.RUNNING: (NoticeKind.STAGE_STARTED, pb.NotificationEventStageStarted),
    StageStatus.SUCCESS: (NoticeKind.STAGE_SUCCEEDED, pb.NotificationEventStageSucceeded),
    StageStatus.EXITED: (NoticeKind.STAGE_SUCCEEDED, pb.NotificationEventStageSucceeded),
    StageStatus.FAILURE: (NoticeKind.STAGE_FAILED, pb.NotificationEventStageFailed),
    StageStatus.CANCELLED: (NoticeKind.STAGE_CANCELLED, pb.NotificationEventStageCancelled),
    StageStatus.SKIPPED: (NoticeKind.STAGE_SKIPPED, pb.NotificationEventStageSkipped),
}


def triggered(deployment: Deployment) -> Notice:
    """That a deployment was made."""
    facts = pb.NotificationEventDeploymentTriggered(deployment=deployment)
    return _about(deployment, NoticeKind.DEPLOYMENT_TRIGGERED, facts)


def deployment_is(deployment: Deployment, *, by: str = "") -> Notice:
    """That a deployment has got where it is now, which is beyond its making; `by` stopped it."""
    kind, message = _DEPLOYMENTS[DeploymentStatus(deployment.status)]
    texts = {"summary": deployment.summary, "reason": deployment.status_reason, "commander": by}
    return _about(deployment, kind, message(**_known(message, texts), deployment=deployment))


def stage_became(
    deployment: Deployment, stage: PipelineStage, before: StageStatus
) -> Iterator[Notice]:
    """What a stage that was in another status has to tell; one that is resumed tells nothing."""
    now = StageStatus(stage.status)
    if now is before or now not in _STAGES:
        return
    approvers = stage.metadata.get(APPROVED_USERS_KEY, "")
    asks = stage.available_operation == ManualOperation.APPROVE
    if asks and approvers and now is StageStatus.SUCCESS:
        approved = pb.NotificationEventDeploymentApproved(deployment=deployment, approver=approvers)
        yield _about(deployment, NoticeKind.DEPLOYMENT_APPROVED, approved, stage)
    kind, message = _STAGES[now]
    yield _about(deployment, kind, message(deployment=deployment, stage=stage), stage)
    if asks and now is StageStatus.RUNNING:
        waits = pb.NotificationEventDeploymentWaitApproval(deployment=deployment)
        yield _about(deployment, NoticeKind.DEPLOYMENT_WAIT_APPROVAL, waits, stage)


def _known(message: type[Message], texts: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in texts.items() if k in message.DESCRIPTOR.fields_by_name}


def _about(
    deployment: Deployment, kind: NoticeKind, facts: Message, stage: PipelineStage | None = None
) -> Notice:
    mentions_of(deployment, kind).add_to(facts)
    parts = [kind.name, deployment.id, *([stage.id] if stage is not None else [])]
    return Notice(kind, facts, key="/".join(parts))
