# SPDX-License-Identifier: Apache-2.0
"""Notification events: type and metadata as upstream defines them, subject and mentions."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import structlog
from google.protobuf.message import Message
from pydantic import ValidationError

from pipecd.config.application import NotificationSpec
from pipecd.config.piped_notifications import EVENT_GROUPS
from pipecd.model.application import ApplicationKind
from pipecd.proto.model import notification_pb2 as pb
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

log: structlog.stdlib.BoundLogger = structlog.get_logger()

NOTIFICATION_KEY = "DeploymentNotification"

M = TypeVar("M", bound=Message)


class EventType(IntEnum):
    """The type of an event, with the numbers of the wire."""

    DEPLOYMENT_TRIGGERED = pb.EVENT_DEPLOYMENT_TRIGGERED
    DEPLOYMENT_PLANNED = pb.EVENT_DEPLOYMENT_PLANNED
    DEPLOYMENT_APPROVED = pb.EVENT_DEPLOYMENT_APPROVED
    DEPLOYMENT_ROLLING_BACK = pb.EVENT_DEPLOYMENT_ROLLING_BACK
    DEPLOYMENT_SUCCEEDED = pb.EVENT_DEPLOYMENT_SUCCEEDED
    DEPLOYMENT_FAILED = pb.EVENT_DEPLOYMENT_FAILED
    DEPLOYMENT_CANCELLED = pb.EVENT_DEPLOYMENT_CANCELLED
    DEPLOYMENT_WAIT_APPROVAL = pb.EVENT_DEPLOYMENT_WAIT_APPROVAL
    DEPLOYMENT_TRIGGER_FAILED = pb.EVENT_DEPLOYMENT_TRIGGER_FAILED
    DEPLOYMENT_STARTED = pb.EVENT_DEPLOYMENT_STARTED
    APPLICATION_SYNCED = pb.EVENT_APPLICATION_SYNCED
    APPLICATION_OUT_OF_SYNC = pb.EVENT_APPLICATION_OUT_OF_SYNC
    APPLICATION_HEALTHY = pb.EVENT_APPLICATION_HEALTHY
    PIPED_STARTED = pb.EVENT_PIPED_STARTED
    PIPED_STOPPED = pb.EVENT_PIPED_STOPPED
    STAGE_STARTED = pb.EVENT_STAGE_STARTED
    STAGE_SKIPPED = pb.EVENT_STAGE_SKIPPED
    STAGE_SUCCEEDED = pb.EVENT_STAGE_SUCCEEDED
    STAGE_FAILED = pb.EVENT_STAGE_FAILED
    STAGE_CANCELLED = pb.EVENT_STAGE_CANCELLED

    @property
    def group(self) -> str:
        """The group by which a route selects all events of a sort."""
        return EVENT_GROUPS[self // 100]


@dataclass(frozen=True)
class NotificationEvent:
    """An event to notify about; `metadata` is the NotificationEvent… message of its type.

    Events with the same `key` are sent once; an event without a key is always sent.
    """

    type: EventType
    metadata: Message
    key: str = ""


@dataclass(frozen=True)
class EventSubject:
    """The application, deployment and stage of an event; events of piped itself have none."""

    project: str
    application_id: str = ""
    application: str = ""
    labels: Mapping[str, str] | None = None
    platform: str = ""
    """The kind of a v0 application; v1 applications have none."""
    remote: str = ""
    """The repository that the application is in."""
    deployment: Deployment | None = None
    stage: PipelineStage | None = None
    state: ApplicationSyncState | None = None


def subject_of(metadata: Message) -> EventSubject:
    """Extracts the subject from the metadata of an event."""
    if (deployment := _field_of_type(metadata, Deployment)) is not None:
        return EventSubject(
            project=deployment.project_id,
            application_id=deployment.application_id,
            application=deployment.application_name,
            labels=deployment.labels,
            platform=_platform(deployment),
            remote=deployment.git_path.repo.remote,
            deployment=deployment,
            stage=_field_of_type(metadata, PipelineStage),
        )
    if (application := _field_of_type(metadata, Application)) is not None:
        return EventSubject(
            project=application.project_id,
            application_id=application.id,
            application=application.name,
            labels=application.labels,
            platform=_platform(application),
            remote=application.git_path.repo.remote,
            state=_field_of_type(metadata, ApplicationSyncState),
        )
    return EventSubject(project=text_field(metadata, "project_id"))


def text_field(metadata: Message, name: str) -> str:
    """A field of the metadata as text, empty if messages of this type do not have the field."""
    return str(getattr(metadata, name)) if name in metadata.DESCRIPTOR.fields_by_name else ""


def _field_of_type(metadata: Message, type_: type[M]) -> M | None:
    return next((value for _, value in metadata.ListFields() if isinstance(value, type_)), None)


def _platform(of: Deployment | Application) -> str:
    if not of.platform_provider and not of.cloud_provider:
        return ""
    try:
        return ApplicationKind(of.kind).name
    except ValueError:
        return ""


@dataclass(frozen=True)
class Mentions:
    """Users and groups of Slack, and e-mail addresses, to mention in a notification."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()

    def add_to(self, metadata: Message) -> None:
        """Writes the Slack mentions into metadata, where its message type has these fields."""
        for name, ids in (("mentioned_accounts", self.users), ("mentioned_groups", self.groups)):
            if name in metadata.DESCRIPTOR.fields_by_name:
                getattr(metadata, name).extend(ids)


def mentions_of(deployment: Deployment, type_: EventType) -> Mentions:
    """The mentions that the application configured when the deployment was triggered."""
    shared = deployment.metadata_v2.shared.keyValues
    text = shared.get(NOTIFICATION_KEY) or deployment.metadata.get(NOTIFICATION_KEY)
    if not text:
        return Mentions()
    try:
        spec = NotificationSpec.model_validate_json(json.dumps(_without_nulls(json.loads(text))))
    except (ValueError, ValidationError) as e:
        log.warning(
            "invalid notification mentions, no user is mentioned",
            application=deployment.application_name,
            deployment=deployment.id,
            error=str(e),
        )
        return Mentions()
    return mentions_in(spec, type_)


def mentions_in(spec: NotificationSpec, type_: EventType) -> Mentions:
    """The mentions that the configuration of an application has for an event."""
    return Mentions(spec.users(type_.name), spec.groups(type_.name), spec.emails(type_.name))


def _without_nulls(value: Any) -> Any:
    """Upstream writes unset lists as null."""
    match value:
        case dict():
            return {k: _without_nulls(v) for k, v in value.items() if v is not None}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_without_nulls(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value
