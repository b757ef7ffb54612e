# SPDX-License-Identifier: Apache-2.0
"""View models of applications: the list and the page of one."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

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
from pipecd.controlplane.console.list_filters import UNKNOWN_STATUS, ApplicationQuery
from pipecd.controlplane.console.pipeline_view import has_pending_approval
from pipecd.controlplane.console.status_badge import (
    APPLICATION_STATUSES,
    Badge,
    PipedStatus,
    StatusCount,
    application_badge,
    application_status,
    deployment_badge,
    health_badge,
    sync_status,
)
from pipecd.controlplane.console.status_text import application_status_text
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.health import HealthStatus
from pipecd.model.ids import is_uuid
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.deployment_pb2 import Deployment

# How many labels the filter offers.
MAX_LABELS = 200


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
    # The deployment that waits for an approval.
    waiting_id: str
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
        triggered=_last(application.most_recently_triggered_deployment, now),
        running=_last(application.most_recently_successful_deployment, now),
        updated=timestamp(application.updated_at, now),
    )


def application_view(
    application: Application, piped: PipedStatus, now: datetime, *, waiting_id: str = ""
) -> ApplicationView:
    git, state = application.git_path, application.sync_state
    is_compared = sync_status(application) is not SyncStatus.UNKNOWN or state.reason
    return ApplicationView(
        row=application_row(application, now, waiting=bool(waiting_id)),
        status_text=application_status_text(application, piped, waiting=bool(waiting_id)),
        waiting_id=waiting_id,
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


@dataclass(frozen=True)
class ApplicationList:
    """One page of the list; the counts cover all pages and ignore the status filter.

    `labels` are all labels of the listed applications; a column is empty if no row has it.
    """

    rows: tuple[ApplicationRow, ...]
    labels: tuple[str, ...]
    summary: str
    counts: tuple[StatusCount, ...]
    healths: tuple[StatusCount, ...]
    total: int
    page: int
    pages: int


def application_list(
    applications: Iterable[Application],
    query: ApplicationQuery,
    now: datetime,
    waiting: Collection[str] = (),
    health: Mapping[str, HealthStatus] = MappingProxyType({}),
) -> ApplicationList:
    """The page that the query asks for.

    `waiting` are the ids of those that wait for approval; `health` is that of the live states.
    """
    text = query.text.casefold()
    matching = [a for a in applications if not text or text in _searched_text(a)]
    statuses = {a.id: application_status(a, waiting=a.id in waiting) for a in matching}
    counts = status_counts(statuses.values())
    listed = matching
    if query.statuses:
        listed = [a for a in matching if _has_status(a, statuses[a.id], query.statuses)]
    if query.health:
        listed = [a for a in listed if health.get(a.id) == query.health]
    listed = sorted(listed, key=_sort_key(query.sort, statuses, health), reverse=query.descending)
    pages = max(-(-len(listed) // query.size), 1)
    page = min(query.page, pages)
    shown = listed[(page - 1) * query.size : page * query.size]
    return ApplicationList(
        rows=tuple(
            replace(
                application_row(a, now, waiting=a.id in waiting),
                health=health_badge(health[a.id]) if a.id in health else None,
            )
            for a in shown
        ),
        healths=tuple(
            StatusCount(status.value, health_badge(status), count)
            for status, count in _health_counts(matching, health)
        ),
        labels=_all_labels(listed)[:MAX_LABELS],
        summary=list_summary(counts),
        counts=counts,
        total=len(listed),
        page=page,
        pages=pages,
    )


def _searched_text(application: Application) -> str:
    labels = (f"{key}:{value}\n{key}: {value}" for key, value in application.labels.items())
    return "\n".join((application.name, *labels)).casefold()


def _all_labels(applications: Iterable[Application]) -> tuple[str, ...]:
    """The labels of all applications; thousands of them share a few labels."""
    labels = {label for application in applications for label in application.labels.items()}
    return tuple(sorted({text for label in labels for text in label_texts(dict((label,)))}))


def _health_counts(
    applications: Iterable[Application], health: Mapping[str, HealthStatus]
) -> Iterator[tuple[HealthStatus, int]]:
    counts = Counter(health[a.id] for a in applications if a.id in health)
    return ((status, counts[status]) for status in HealthStatus if counts[status])


def _sort_key(
    sort: str, statuses: Mapping[str, str], health: Mapping[str, HealthStatus]
) -> Callable[[Application], tuple[str | int, ...]]:
    """What the list is sorted by; `statuses` are those of the applications by id."""
    worst_first = {status: rank for rank, status in enumerate(APPLICATION_STATUSES)}
    match sort:
        case "health":
            ranks = {status: rank for rank, status in enumerate(HealthStatus)}
            return lambda a: (
                ranks[health[a.id]] if a.id in health else len(ranks),
                a.name.casefold(),
                a.id,
            )
        case "name":
            return lambda a: (a.name.casefold(), a.id)
        case "deployed":
            return lambda a: (a.most_recently_triggered_deployment.started_at, a.id)
        case "updated":
            return lambda a: (a.updated_at, a.id)
        case _:
            return lambda a: (worst_first[statuses[a.id]], a.name.casefold(), a.id)


def _has_status(application: Application, status: str, wanted: Collection[str]) -> bool:
    is_unknown = sync_status(application) is SyncStatus.UNKNOWN
    return status in wanted or (UNKNOWN_STATUS in wanted and is_unknown)


def with_outcomes(
    listing: ApplicationList, deployments: Mapping[str, Deployment]
) -> ApplicationList:
    """The page with the statuses of the deployments that were triggered last."""
    rows: list[ApplicationRow] = []
    for row in listing.rows:
        deployment = deployments.get(row.triggered.id) if row.triggered else None
        if deployment is None:
            rows.append(row)
            continue
        status = DeploymentStatus(deployment.status)
        badge = deployment_badge(status, waiting=has_pending_approval(deployment))
        rows.append(replace(row, outcome=badge))
    return replace(listing, rows=tuple(rows))


def status_counts(statuses: Iterable[str]) -> tuple[StatusCount, ...]:
    """How many applications there are of each status, worst first, without zeros."""
    counts = Counter(statuses)
    return tuple(
        StatusCount(status, badge, counts[status])
        for status, badge in APPLICATION_STATUSES.items()
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
    return f"{plural(total, 'application')}, {'all ' if total > 1 else ''}{status}."
