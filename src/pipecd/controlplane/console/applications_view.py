# SPDX-License-Identifier: Apache-2.0
"""View models of an application: a row of a list, and its page."""

from dataclasses import dataclass
from datetime import datetime

from pipecd.controlplane.console.deploy_targets import platform_name, target_names
from pipecd.controlplane.console.deployments_view import (
    CommitView,
    VersionView,
    commit_view,
    version_views,
)
from pipecd.controlplane.console.formatting import (
    Timestamp,
    label_texts,
    safe_link,
    timestamp,
)
from pipecd.controlplane.console.status_badge import (
    Badge,
    PipedStatus,
    application_badge,
    sync_status,
)
from pipecd.controlplane.console.status_text import application_status_text
from pipecd.model.application import SyncStatus
from pipecd.model.ids import is_uuid
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference


@dataclass(frozen=True)
class LastDeploymentView:
    """A deployment as the application document refers to it."""

    id: str
    commit: CommitView
    by: str
    started: Timestamp | None
    completed: Timestamp | None
    summary: str
    versions: tuple[VersionView, ...]


@dataclass(frozen=True)
class ApplicationRow:
    """One row of the list."""

    id: str
    name: str
    badge: Badge
    disabled: bool
    labels: tuple[str, ...]
    platform: str
    piped_id: str
    triggered: LastDeploymentView | None
    running: LastDeploymentView | None
    updated: Timestamp | None
    # None if no live state is reported.
    health: Badge | None = None
    # The status of the deployment that was triggered last; None if it is not known.
    outcome: Badge | None = None


@dataclass(frozen=True)
class ApplicationView:
    """The page of one application."""

    row: ApplicationRow
    status_text: str
    # The deployment that waits for an approval, and the one that is in progress otherwise.
    waiting_id: str
    moving_id: str
    checked: Timestamp | None
    piped: PipedStatus
    targets: str
    repository: str
    branch: str
    path: str
    path_url: str
    config_filename: str
    description: str
    created: Timestamp | None
    sync_disabled_reason: str


def application_row(
    application: Application, now: datetime, *, waiting: bool = False
) -> ApplicationRow:
    return ApplicationRow(
        id=application.id,
        name=application.name,
        badge=application_badge(application, waiting=waiting),
        disabled=application.disabled,
        labels=label_texts(application.labels),
        platform=platform_name(application),
        piped_id=application.piped_id,
        triggered=_last(application.most_recently_triggered_deployment, now),
        running=_last(application.most_recently_successful_deployment, now),
        updated=timestamp(application.updated_at, now),
    )


def application_view(
    application: Application,
    piped: PipedStatus,
    now: datetime,
    *,
    waiting_id: str = "",
    moving_id: str = "",
) -> ApplicationView:
    git, state = application.git_path, application.sync_state
    status = sync_status(application)
    is_compared = status is not SyncStatus.UNKNOWN or state.reason
    # What a deployment does is not the result of a check.
    is_compared = is_compared and status is not SyncStatus.DEPLOYING and not waiting_id
    return ApplicationView(
        row=application_row(application, now, waiting=bool(waiting_id)),
        status_text=application_status_text(application, piped, waiting=bool(waiting_id)),
        waiting_id=waiting_id,
        moving_id=moving_id if status is SyncStatus.DEPLOYING else "",
        checked=timestamp(state.timestamp, now) if is_compared else None,
        piped=piped,
        targets=target_names(application),
        repository=git.repo.id,
        branch=git.repo.branch,
        path=git.path,
        path_url=safe_link(git.url),
        config_filename=git.config_filename,
        description=application.description.strip(),
        created=timestamp(application.created_at, now),
        sync_disabled_reason=(
            "The application is disabled; enable it first." if application.disabled else ""
        ),
    )


def _last(reference: ApplicationDeploymentReference, now: datetime) -> LastDeploymentView | None:
    if not reference.deployment_id:
        return None
    trigger = reference.trigger
    # Chains and API keys are commanders without a name; the commit author stands in for them.
    is_person = trigger.commander and not is_uuid(trigger.commander)
    return LastDeploymentView(
        id=reference.deployment_id,
        commit=commit_view(trigger.commit, now),
        by=trigger.commander if is_person else trigger.commit.author,
        started=timestamp(reference.started_at, now),
        completed=timestamp(reference.completed_at, now),
        summary=reference.summary,
        versions=version_views(reference.versions),
    )
