# SPDX-License-Identifier: Apache-2.0
"""One notification event of every type."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, ManualOperation, StageStatus
from pipecd.piped.notify.deployment_events import deployment_event, stage_events, triggered_event
from pipecd.piped.notify.event import EventType, NotificationEvent
from pipecd.proto.model import notification_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationSyncState
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import (
    Commit,
    Deployment,
    DeploymentMetadata,
    DeploymentTrigger,
    PipelineStage,
)
from pipecd.sdk import APPROVED_USERS_KEY

MENTIONS = (
    '{"mentions":[{"event":"*","slackusers":["U1"],"slackgroups":["G1"],'
    '"email":["ann@example.com","not an address"]}]}'
)
AFTER_PENDING = [s for s in DeploymentStatus if s is not DeploymentStatus.PENDING]
GIT = ApplicationGitPath(
    repo=ApplicationGitRepository(id="site", remote="git@github.com:shop/site.git")
)


def application(**changes: Any) -> Application:
    fields: dict[str, Any] = {
        "id": "app-1",
        "name": "cart",
        "project_id": "shop",
        "labels": {"env": "prod"},
        "git_path": GIT,
    }
    return Application(**{**fields, **changes})


def deployment(**changes: Any) -> Deployment:
    fields: dict[str, Any] = {
        "id": "deployment-1",
        "application_id": "app-1",
        "application_name": "cart",
        "project_id": "shop",
        "labels": {"env": "prod"},
        "git_path": GIT,
        "summary": "Quick sync",
        "status_reason": "it is so",
        "created_at": 1_700_000_000,
        "trigger": DeploymentTrigger(
            commit=Commit(
                hash="abc123", message="a change", author="ann", branch="main", url="https://x/abc"
            )
        ),
        "metadata_v2": DeploymentMetadata(
            shared=DeploymentMetadata.KeyValues(keyValues={"DeploymentNotification": MENTIONS})
        ),
    }
    return Deployment(**{**fields, **changes})


def _stage(status: Any, **changes: Any) -> list[NotificationEvent]:
    stage = PipelineStage(
        id="stage-1", name="K8S_CANARY", status=status, status_reason="so it is", **changes
    )
    return list(stage_events(deployment(), stage, StageStatus.NOT_STARTED_YET))


def _events_of_every_type() -> dict[EventType, NotificationEvent]:
    approve: dict[str, Any] = {
        "available_operation": ManualOperation.APPROVE,
        "metadata": {APPROVED_USERS_KEY: "bob, eve"},
    }
    state = ApplicationSyncState(short_reason="two differences", reason="long")
    pb = notification_pb2
    events = [
        triggered_event(deployment()),
        *(deployment_event(deployment(status=status), by="bob") for status in AFTER_PENDING),
        *(n for status in StageStatus for n in _stage(status, **approve)),
        NotificationEvent(
            EventType.DEPLOYMENT_TRIGGER_FAILED,
            pb.NotificationEventDeploymentTriggerFailed(
                application=application(),
                commit_hash="abc123",
                commit_message="a change\n\nmore",
                reason="no luck",
                mentioned_accounts=["U1"],
                mentioned_groups=["G1"],
            ),
        ),
        NotificationEvent(
            EventType.APPLICATION_SYNCED,
            pb.NotificationEventApplicationSynced(application=application(), state=state),
        ),
        NotificationEvent(
            EventType.APPLICATION_OUT_OF_SYNC,
            pb.NotificationEventApplicationOutOfSync(application=application(), state=state),
        ),
        NotificationEvent(
            EventType.APPLICATION_HEALTHY,
            pb.NotificationEventApplicationSynced(application=application(), state=state),
        ),
        *(
            NotificationEvent(
                type_, message(id="piped-1-and-more", name="dev", version="v1", project_id="shop")
            )
            for type_, message in (
                (EventType.PIPED_STARTED, pb.NotificationEventPipedStarted),
                (EventType.PIPED_STOPPED, pb.NotificationEventPipedStopped),
            )
        ),
    ]
    return {event.type: event for event in events}


@pytest.fixture
def events() -> dict[EventType, NotificationEvent]:
    """One event of every type."""
    return _events_of_every_type()


@pytest.fixture
def new_deployment() -> Callable[..., Deployment]:
    return deployment
