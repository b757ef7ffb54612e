# SPDX-License-Identifier: Apache-2.0
"""View model of the list of applications.

What is counted, searched and sorted are summaries of all of them; only the rows of the page are
made of whole documents.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from heapq import nlargest, nsmallest
from types import MappingProxyType

from pipecd.controlplane.console.application_summary import ApplicationSummary
from pipecd.controlplane.console.applications_view import ApplicationRow, application_row
from pipecd.controlplane.console.formatting import label_texts, plural
from pipecd.controlplane.console.list_filters import UNKNOWN_STATUS, ApplicationQuery
from pipecd.controlplane.console.pipeline_view import has_pending_approval
from pipecd.controlplane.console.status_badge import (
    APPLICATION_STATUSES,
    WAITING,
    StatusCount,
    deployment_badge,
    health_badge,
)
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.health import HealthStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment

# How many labels the filter offers.
MAX_LABELS = 200
_HEALTH_RANKS = {status: rank for rank, status in enumerate(HealthStatus)}
_STATUS_RANKS = {status: rank for rank, status in enumerate(APPLICATION_STATUSES)}
_NO_HEALTH: Mapping[str, HealthStatus] = MappingProxyType({})

Label = tuple[str, str]


@dataclass(frozen=True)
class ApplicationList:
    """One page of the list; the counts cover all pages and ignore the status filter.

    `shown` are the ids of its rows, which `with_rows` adds. `labels` are all labels of the listed
    applications.
    """

    shown: tuple[str, ...]
    labels: tuple[str, ...]
    summary: str
    counts: tuple[StatusCount, ...]
    healths: tuple[StatusCount, ...]
    total: int
    page: int
    pages: int
    rows: tuple[ApplicationRow, ...] = ()


def application_list(
    applications: Sequence[ApplicationSummary],
    query: ApplicationQuery,
    waiting: Collection[str] = (),
    health: Mapping[str, HealthStatus] = _NO_HEALTH,
) -> ApplicationList:
    """The page that the query asks for, still without rows.

    `waiting` are the ids of those that wait for approval; `health` is that of the live states.
    """
    matching = applications
    if query.platforms:
        matching = [a for a in matching if not set(query.platforms).isdisjoint(a.platforms)]
    if text := query.text.casefold():
        matching = _with_text(matching, text)
    counts = status_counts(_status(a, waiting) for a in matching)
    listed = matching
    if query.statuses:
        listed = [a for a in matching if _has_status(a, waiting, query.statuses)]
    if query.health:
        listed = [a for a in listed if health.get(a.id) == query.health]
    pages = max(-(-len(listed) // query.size), 1)
    page = min(query.page, pages)
    key = _sort_key(query.sort, waiting, health)
    if page == 1:
        ordered = (nlargest if query.descending else nsmallest)(query.size, listed, key=key)
    else:
        ordered = sorted(listed, key=key, reverse=query.descending)
    return ApplicationList(
        shown=tuple(a.id for a in ordered[(page - 1) * query.size : page * query.size]),
        healths=tuple(
            StatusCount(status.value, health_badge(status), count)
            for status, count in _health_counts(matching, health)
        ),
        labels=_label_texts(_all_labels(listed))[:MAX_LABELS],
        summary=list_summary(counts),
        counts=counts,
        total=len(listed),
        page=page,
        pages=pages,
    )


def with_choices_of(listing: ApplicationList, whole: ApplicationList) -> ApplicationList:
    """The list with the statuses, healths and labels of the whole project where it has none.

    A filter that leaves nothing to choose from would take the other filters away.
    """
    return replace(
        listing,
        counts=listing.counts or whole.counts,
        healths=listing.healths or whole.healths,
        labels=listing.labels or whole.labels,
    )


def with_rows(
    listing: ApplicationList,
    applications: Mapping[str, Application],
    now: datetime,
    waiting: Collection[str] = (),
    health: Mapping[str, HealthStatus] = _NO_HEALTH,
) -> ApplicationList:
    """The page with its rows; one that has been deleted in the meantime has none."""
    rows = tuple(
        replace(
            application_row(applications[id], now, waiting=id in waiting),
            health=health_badge(health[id]) if id in health else None,
        )
        for id in listing.shown
        if id in applications
    )
    return replace(listing, rows=rows)


def _status(application: ApplicationSummary, waiting: Collection[str]) -> str:
    return WAITING if application.id in waiting else application.status


def _with_text(applications: Sequence[ApplicationSummary], text: str) -> list[ApplicationSummary]:
    """Those whose name or a label contains the text."""
    labels = {label for label in _all_labels(applications) if text in _searched_text(label)}
    return [a for a in applications if text in a.folded_name or labels & a.labels.items()]


def _searched_text(label: Label) -> str:
    key, value = label
    return f"{key}:{value}\n{key}: {value}".casefold()


def _all_labels(applications: Iterable[ApplicationSummary]) -> set[Label]:
    labels: set[Label] = set()
    for application in applications:
        labels.update(application.labels.items())
    return labels


def _label_texts(labels: Iterable[Label]) -> tuple[str, ...]:
    return tuple(sorted({text for label in labels for text in label_texts(dict((label,)))}))


def _health_counts(
    applications: Iterable[ApplicationSummary], health: Mapping[str, HealthStatus]
) -> Iterator[tuple[HealthStatus, int]]:
    counts = Counter(health[a.id] for a in applications if a.id in health)
    return ((status, counts[status]) for status in HealthStatus if counts[status])


def _sort_key(
    sort: str, waiting: Collection[str], health: Mapping[str, HealthStatus]
) -> Callable[[ApplicationSummary], tuple[str | int, ...]]:
    """What the list is sorted by."""
    match sort:
        case "health":
            return lambda a: (
                _HEALTH_RANKS[health[a.id]] if a.id in health else len(_HEALTH_RANKS),
                a.folded_name,
                a.id,
            )
        case "name":
            return lambda a: (a.folded_name, a.id)
        case "deployed":
            return lambda a: (a.deployed_at, a.id)
        case "updated":
            return lambda a: (a.updated_at, a.id)
        case _:
            return lambda a: (_STATUS_RANKS[_status(a, waiting)], a.folded_name, a.id)


def _has_status(
    application: ApplicationSummary, waiting: Collection[str], wanted: Collection[str]
) -> bool:
    is_unknown = application.is_unknown and UNKNOWN_STATUS in wanted
    return is_unknown or _status(application, waiting) in wanted


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
