# SPDX-License-Identifier: Apache-2.0
"""The notification events of a deployment and its stages."""

from collections.abc import Iterator, Mapping

from google.protobuf.message import Message

from pipecd.model.deployment import DeploymentStatus, ManualOperation, StageStatus
from pipecd.piped.notify.event import EventType, NotificationEvent, mentions_of
from pipecd.proto.model import notification_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.sdk import APPROVED_USERS_KEY

_DEPLOYMENTS: Mapping[DeploymentStatus, tuple[EventType, type[Message]]] = {
    DeploymentStatus.PLANNED: (
        EventType.DEPLOYMENT_PLANNED,
        pb.NotificationEventDeploymentPlanned,
    ),
    DeploymentStatus.RUNNING: (
        EventType.DEPLOYMENT_STARTED,
        pb.NotificationEventDeploymentStarted,
    ),
    DeploymentStatus.ROLLING_BACK: (
        EventType.DEPLOYMENT_ROLLING_BACK,
        pb.NotificationEventDeploymentRollingBack,
    ),
    DeploymentStatus.SUCCESS: (
        EventType.DEPLOYMENT_SUCCEEDED,
        pb.NotificationEventDeploymentSucceeded,
    ),
    DeploymentStatus.FAILURE: (
        EventType.DEPLOYMENT_FAILED,
        pb.NotificationEventDeploymentFailed,
    ),
    DeploymentStatus.CANCELLED: (
        EventType.DEPLOYMENT_CANCELLED,
        pb.NotificationEventDeploymentCancelled,
    ),
}
_STAGES: Mapping[StageStatus, tuple[EventType, type[Message]]] = {
    StageStatus.RUNNING: (EventType.STAGE_STARTED, pb.NotificationEventStageStarted),
    StageStatus.SUCCESS: (
        EventType.STAGE_SUCCEEDED,
        pb.NotificationEventStageSucceeded,
    ),
    StageStatus.EXITED: (EventType.STAGE_SUCCEEDED, pb.NotificationEventStageSucceeded),
    StageStatus.FAILURE: (EventType.STAGE_FAILED, pb.NotificationEventStageFailed),
    StageStatus.CANCELLED: (
        EventType.STAGE_CANCELLED,
        pb.NotificationEventStageCancelled,
    ),
    StageStatus.SKIPPED: (EventType.STAGE_SKIPPED, pb.NotificationEventStageSkipped),
}


def triggered_event(deployment: Deployment) -> NotificationEvent:
    """The event of a deployment that was created."""
    metadata = pb.NotificationEventDeploymentTriggered(deployment=deployment)
    return _event(deployment, EventType.DEPLOYMENT_TRIGGERED, metadata)


def deployment_event(deployment: Deployment, *, by: str = "") -> NotificationEvent:
    """The event of the current status, which is beyond PENDING; `by` cancelled the deployment."""
    type_, message = _DEPLOYMENTS[DeploymentStatus(deployment.status)]
    texts = {"summary": deployment.summary, "reason": deployment.status_reason, "commander": by}
    fields = {k: v for k, v in texts.items() if k in message.DESCRIPTOR.fields_by_name}
    return _event(deployment, type_, message(**fields, deployment=deployment))


def stage_events(
    deployment: Deployment, stage: PipelineStage, before: StageStatus
) -> Iterator[NotificationEvent]:
    """The events of a stage whose status was `before`; a resumed stage has none."""
    status = StageStatus(stage.status)
    if status is before or status not in _STAGES:
        return
    approvers = stage.metadata.get(APPROVED_USERS_KEY, "")
    needs_approval = stage.available_operation == ManualOperation.APPROVE
    if needs_approval and approvers and status is StageStatus.SUCCESS:
        approved = pb.NotificationEventDeploymentApproved(deployment=deployment, approver=approvers)
        yield _event(deployment, EventType.DEPLOYMENT_APPROVED, approved, stage)
    type_, message = _STAGES[status]
    yield _event(deployment, type_, message(deployment=deployment, stage=stage), stage)
    if needs_approval and status is StageStatus.RUNNING:
        waiting = pb.NotificationEventDeploymentWaitApproval(deployment=deployment)
        yield _event(deployment, EventType.DEPLOYMENT_WAIT_APPROVAL, waiting, stage)


def _event(
    deployment: Deployment,
    type_: EventType,
    metadata: Message,
    stage: PipelineStage | None = None,
) -> NotificationEvent:
    mentions_of(deployment, type_).add_to(metadata)
    parts = [type_.name, deployment.id, *([stage.id] if stage is not None else [])]
    return NotificationEvent(type_, metadata, key="/".join(parts))
