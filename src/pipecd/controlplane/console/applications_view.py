# SPDX-License-Identifier: Apache-2.0
"""View models of applications: the list and the page of one."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
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
    plural,
    safe_link,
    timestamp,
)
from pipecd.controlplane.console.list_filters import ApplicationQuery
from pipecd.controlplane.console.status_badge import (
    Badge,
    PipedStatus,
    application_badge,
    sync_badge,
    sync_status,
)
from pipecd.controlplane.console.status_text import application_status_text
from pipecd.model.application import SyncStatus
from pipecd.model.ids import is_uuid
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference

# The order of statuses in summaries and when a list is sorted by status.
_WORST_FIRST = (
    SyncStatus.INVALID_CONFIG,
    SyncStatus.OUT_OF_SYNC,
    SyncStatus.DEPLOYING,
    SyncStatus.UNKNOWN,
    SyncStatus.SYNCED,
)


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
    status: int
    disabled: bool
    labels: tuple[str, ...]
    platform: str
    triggered: LastDeploymentView | None
    running: LastDeploymentView | None
    updated: Timestamp | None


@dataclass(frozen=True)
class DriftLine:
    """A line of the diff between Git and the live state; `kind` is add, remove, change or same."""

    kind: str
    text: str


@dataclass(frozen=True)
class ApplicationView:
    """The page of one application."""

    row: ApplicationRow
    status_text: str
    checked: Timestamp | None
    drift: tuple[DriftLine, ...]
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


@dataclass(frozen=True)
class StatusCount:
    """The number of applications in a status."""

    status: int
    badge: Badge
    count: int


def application_row(application: Application, now: datetime) -> ApplicationRow:
    status = sync_status(application)
    return ApplicationRow(
        id=application.id,
        name=application.name,
        badge=application_badge(application),
        status=int(status),
        disabled=application.disabled,
        labels=label_texts(application.labels),
        platform=platform_name(application),
        triggered=_last(application.most_recently_triggered_deployment, now),
        running=_last(application.most_recently_successful_deployment, now),
        updated=timestamp(application.updated_at, now),
    )


def application_view(
    application: Application, piped: PipedStatus, now: datetime
) -> ApplicationView:
    git, state = application.git_path, application.sync_state
    is_compared = sync_status(application) is not SyncStatus.UNKNOWN or state.reason
    return ApplicationView(
        row=application_row(application, now),
        status_text=application_status_text(application, piped),
        checked=timestamp(state.timestamp, now) if is_compared else None,
        drift=drift_lines(application),
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


def drift_lines(application: Application) -> tuple[DriftLine, ...]:
    """The differences with Git, line by line."""
    if sync_status(application) is not SyncStatus.OUT_OF_SYNC:
        return ()
    kinds = {"+": "add", "-": "remove", "~": "change"}
    text = application.sync_state.reason.strip("\n")
    return tuple(
        DriftLine(kinds.get(line.lstrip()[:1], "same"), line) for line in text.splitlines()
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


@dataclass(frozen=True)
class ApplicationList:
    """One page of the list; the counts cover all pages and ignore the status filter."""

    rows: tuple[ApplicationRow, ...]
    summary: str
    counts: tuple[StatusCount, ...]
    total: int
    page: int
    pages: int


def application_list(
    applications: Iterable[Application], query: ApplicationQuery, now: datetime
) -> ApplicationList:
    text = query.text.casefold()
    matching: list[Application] = []
    for application in applications:
        labels = (f"{key}:{value}\n{key}: {value}" for key, value in application.labels.items())
        if text in "\n".join((application.name, *labels)).casefold():
            matching.append(application)
    counts = status_counts(matching)
    listed = [a for a in matching if not query.statuses or sync_status(a) in query.statuses]
    if query.sort:
        listed.sort(key=_SORT_KEYS[query.sort], reverse=query.descending)
    pages = max(-(-len(listed) // query.size), 1)
    page = min(query.page, pages)
    shown = listed[(page - 1) * query.size : page * query.size]
    return ApplicationList(
        rows=tuple(application_row(application, now) for application in shown),
        summary=list_summary(counts),
        counts=counts,
        total=len(listed),
        page=page,
        pages=pages,
    )


_SORT_KEYS: dict[str, Callable[[Application], tuple[str | int, ...]]] = {
    "status": lambda a: (_WORST_FIRST.index(sync_status(a)), a.name.casefold(), a.id),
    "name": lambda a: (a.name.casefold(), a.id),
    "deployed": lambda a: (a.most_recently_triggered_deployment.started_at, a.id),
    "updated": lambda a: (a.updated_at, a.id),
}


def status_counts(applications: Sequence[Application]) -> tuple[StatusCount, ...]:
    """How many applications there are of each status, worst first, without zeros."""
    counts = Counter(map(sync_status, applications))
    return tuple(
        StatusCount(int(status), sync_badge(status), counts[status])
        for status in _WORST_FIRST
        if counts[status]
    )


def list_summary(counts: Sequence[StatusCount]) -> str:
    """The number of applications, and their status if all have the same."""
    total = sum(count.count for count in counts)
    if not total:
        return ""
    if len(counts) > 1:
        return f"{plural(total, 'application')}:"
    status = counts[0].badge.text.lower()
    if counts[0].status == SyncStatus.UNKNOWN:
        return f"{plural(total, 'application')} with an unknown sync status."
    return f"{plural(total, 'application')}, {'all ' if total > 1 else ''}{status}."
