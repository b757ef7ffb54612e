# SPDX-License-Identifier: Apache-2.0
"""Notices of every kind."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, ManualOperation, StageStatus
from pipecd.piped.notify.notice import Notice, NoticeKind
from pipecd.piped.notify.transition import deployment_is, stage_became, triggered
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
BEYOND_MAKING = [s for s in DeploymentStatus if s is not DeploymentStatus.PENDING]
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


def _stage(status: Any, **changes: Any) -> list[Notice]:
    stage = PipelineStage(
        id="stage-1", name="K8S_CANARY", status=status, status_reason="so it is", **changes
    )
    return list(stage_became(deployment(), stage, StageStatus.NOT_STARTED_YET))


def _every_kind() -> dict[NoticeKind, Notice]:
    approve: dict[str, Any] = {
        "available_operation": ManualOperation.APPROVE,
        "metadata": {APPROVED_USERS_KEY: "bob, eve"},
    }
    state = ApplicationSyncState(short_reason="two differences", reason="long")
    pb = notification_pb2
    found = [
        triggered(deployment()),
        *(deployment_is(deployment(status=status), by="bob") for status in BEYOND_MAKING),
        *(n for status in StageStatus for n in _stage(status, **approve)),
        Notice(
            NoticeKind.DEPLOYMENT_TRIGGER_FAILED,
            pb.NotificationEventDeploymentTriggerFailed(
                application=application(),
                commit_hash="abc123",
                commit_message="a change\n\nmore",
                reason="no luck",
                mentioned_accounts=["U1"],
                mentioned_groups=["G1"],
            ),
        ),
        Notice(
            NoticeKind.APPLICATION_SYNCED,
            pb.NotificationEventApplicationSynced(application=application(), state=state),
        ),
        Notice(
            NoticeKind.APPLICATION_OUT_OF_SYNC,
            pb.NotificationEventApplicationOutOfSync(application=application(), state=state),
        ),
        Notice(
            NoticeKind.APPLICATION_HEALTHY,
            pb.NotificationEventApplicationSynced(application=application(), state=state),
        ),
        *(
            Notice(
                kind, message(id="piped-1-and-more", name="dev", version="v1", project_id="shop")
            )
            for kind, message in (
                (NoticeKind.PIPED_STARTED, pb.NotificationEventPipedStarted),
                (NoticeKind.PIPED_STOPPED, pb.NotificationEventPipedStopped),
            )
        ),
    ]
    return {notice.kind: notice for notice in found}


@pytest.fixture
def notices() -> dict[NoticeKind, Notice]:
    """One notice of every kind."""
    return _every_kind()


@pytest.fixture
def about_deployment() -> Callable[..., Deployment]:
    return deployment
