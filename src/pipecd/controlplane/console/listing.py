# SPDX-License-Identifier: Apache-2.0
"""Lists as people read them: what matches, in order, one page of it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from itertools import groupby

from pipecd.controlplane.console.applications_view import (
    ApplicationRow,
    StatusCount,
    application_row,
    list_story,
    status_counts,
    sync_status,
)
from pipecd.controlplane.console.deployments_view import DeploymentRow, deployment_row
from pipecd.controlplane.console.formatting import day
from pipecd.controlplane.console.list_filters import ApplicationQuery, DeploymentQuery
from pipecd.controlplane.console.pipeline_view import waits_for_approval
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment


@dataclass(frozen=True)
class ApplicationList:
    """One page of applications; the counts are those of all pages, whatever their status."""

    rows: tuple[ApplicationRow, ...]
    story: str
    counts: tuple[StatusCount, ...]
    total: int
    page: int
    pages: int


@dataclass(frozen=True)
class Day:
    """The deployments of a day."""

    heading: str
    rows: tuple[DeploymentRow, ...]


def application_list(
    applications: Iterable[Application], query: ApplicationQuery, now: datetime
) -> ApplicationList:
    text = query.text.casefold()
    matching = [found for found in applications if not text or text in _searched(found)]
    counts = status_counts(matching)
    wanted = [
        found for found in matching if not query.statuses or sync_status(found) in query.statuses
    ]
    if query.sort:
        wanted.sort(key=_ORDERS[query.sort], reverse=query.descending)
    pages = max(-(-len(wanted) // query.size), 1)
    page = min(query.page, pages)
    shown = wanted[(page - 1) * query.size : page * query.size]
    return ApplicationList(
        rows=tuple(application_row(found, now) for found in shown),
        story=list_story(counts),
        counts=counts,
        total=len(wanted),
        page=page,
        pages=pages,
    )


def _searched(application: Application) -> str:
    labels = (f"{key}:{value} {key}: {value}" for key, value in application.labels.items())
    return "\n".join((application.name, *labels)).casefold()


_WORST_FIRST = {4: 0, 3: 1, 2: 2, 0: 3, 1: 4}
_ORDERS: dict[str, Callable[[Application], tuple[str | int, ...]]] = {
    "status": lambda a: (_WORST_FIRST[sync_status(a)], a.name.casefold(), a.id),
    "name": lambda a: (a.name.casefold(), a.id),
    "deployed": lambda a: (a.most_recently_triggered_deployment.started_at, a.id),
    "updated": lambda a: (a.updated_at, a.id),
}


def matches(deployment: Deployment, query: DeploymentQuery) -> bool:
    """Whether it is one of those wanted, as far as the store cannot tell."""
    if query.waiting and not waits_for_approval(deployment):
        return False
    if query.piped_id and deployment.piped_id != query.piped_id:
        return False
    text = query.text.casefold()
    commit = deployment.trigger.commit
    found = (deployment.application_name, commit.message, deployment.summary)
    begins = (commit.hash, deployment.id)
    return (
        not text
        or any(text in value.casefold() for value in found)
        or any(value.casefold().startswith(text) for value in begins)
    )


def by_day(deployments: Sequence[Deployment], now: datetime, zone: tzinfo) -> tuple[Day, ...]:
    """Newest first, grouped by the day of the reader on which they were made."""
    newest = sorted(deployments, key=lambda d: (-d.created_at, d.id))
    groups = groupby(newest, key=lambda d: day(d.created_at, now, zone))
    return tuple(
        Day(heading, tuple(deployment_row(found, now) for found in group))
        for heading, group in groups
    )
