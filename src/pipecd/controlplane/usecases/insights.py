# SPDX-License-Identifier: Apache-2.0
"""Insights: the time series of the charts, and the number of applications."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pipecd.controlplane.auth.rbac import Action, Permission, Resource, Scope
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.applications import (
    ApplicationSnapshot,
    applications_path,
    decode_applications,
)
from pipecd.controlplane.insight.deployments import CompletedDeployment
from pipecd.controlplane.insight.dora import DAY
from pipecd.controlplane.insight.files import decode_file
from pipecd.controlplane.insight.series import (
    Metric,
    Point,
    Ratios,
    SeriesFilter,
    TimeRange,
    series_points,
)
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.controlplane.usecases.insight_files import InsightFiles
from pipecd.model.errors import NotFound, Unsupported, UserMistake

_GET = Permission(Resource.INSIGHT, Action.GET)
# Two years with a leap day.
MAX_SPAN_SECONDS = 731 * DAY
# The end of the year 8999, as far as calendar arithmetic goes.
MAX_TIMESTAMP = 221845391999

_OF_CHUNKS = frozenset({Metric.DEPLOYMENT_FREQUENCY, Metric.CHANGE_FAILURE_RATE})
_OF_MONTHS = frozenset({Metric.LEAD_TIME, Metric.TIME_TO_RESTORE})


@dataclass(frozen=True)
class InsightQuery:
    """Which deployments count; an empty application or no labels mean all of them."""

    time_range: TimeRange
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class DeploymentsBehind:
    """How many deployments completed in a time range, and the last of them, latest first.

    `restored` has the seconds since the first failure, by application and time of the success.
    """

    count: int
    latest: tuple[CompletedDeployment, ...]
    restored: Mapping[tuple[str, int], int]


class Insights:
    """Reads what the insight collector stored about deployments and applications."""

    def __init__(self, stores: Stores, access: Access) -> None:
        self._files, self._applications, self._access = stores.files, stores.applications, access

    async def series(
        self, metric: Metric, query: InsightQuery, *, by: UserOrApiKey
    ) -> tuple[Point, ...]:
        """One value per day or month: a count, a rate, or average seconds."""
        ratios = await self.ratios((metric,), query, by=by)
        return series_points(query.time_range, ratios[metric], metric)

    async def ratios(
        self, metrics: Collection[Metric], query: InsightQuery, *, by: UserOrApiKey
    ) -> dict[Metric, Ratios]:
        """What the values of charts are made of, by day or month; none without deployments."""
        series_filter = await self._series_filter(query, by)
        if Metric.APPLICATIONS_COUNT in metrics:
            raise Unsupported("the number of applications is not stored over time")
        files = InsightFiles(self._files, by.project)
        ratios: dict[Metric, Ratios] = {}
        if of_chunks := _OF_CHUNKS.intersection(metrics):
            ratios |= dict.fromkeys(of_chunks, await files.failures(series_filter))
        if of_months := _OF_MONTHS.intersection(metrics):
            ratios |= await files.of_months(of_months, series_filter)
        return {metric: ratios[metric] for metric in metrics}

    async def behind(
        self, query: InsightQuery, *, limit: int, by: UserOrApiKey
    ) -> DeploymentsBehind:
        """The last of the deployments that the values of a time range are made of."""
        series_filter = await self._series_filter(query, by)
        files = InsightFiles(self._files, by.project)
        failures = await files.failures(series_filter)
        latest = await files.latest(series_filter, limit)
        restored: dict[tuple[str, int], int] = {}
        if latest:
            shown = TimeRange(latest[-1].completed_at, latest[0].completed_at)
            for one in await files.restorations(shown):
                restored[one.application, one.at] = one.seconds
        count = sum(ratio.whole for ratio in failures.values())
        return DeploymentsBehind(count, latest, restored)

    async def _series_filter(self, query: InsightQuery, by: UserOrApiKey) -> SeriesFilter:
        """Checks the permission and the query."""
        scope = await self._access.scope(by, _GET)
        _check_time_range(query.time_range)
        if query.application:
            # The series of an unknown application is empty.
            with suppress(NotFound):
                application = await self._applications.get(query.application)
                check_project(by, application.project_id, "application")
        return SeriesFilter(query.time_range, query.application, _label_filter(query.labels, scope))

    async def applications(self, *, by: UserOrApiKey) -> ApplicationSnapshot:
        """The applications as last collected; NotFound before the first collection."""
        scope = await self._access.scope(by, _GET)
        path = applications_path(by.project)
        content = await or_not_found(
            self._files.get(path), "Entity was not found to get application counts"
        )
        snapshot = await asyncio.to_thread(decode_file, path, content, decode_applications)
        visible = tuple(one for one in snapshot.applications if scope.covers(dict(one.labels)))
        return ApplicationSnapshot(visible, snapshot.updated_at)


def _label_filter(
    required: Mapping[str, str], scope: Scope
) -> Callable[[Mapping[str, str]], bool] | None:
    """Matches deployments that have these labels and that the caller may see; None matches all."""
    if not required and scope.is_everything:
        return None
    return lambda labels: required.items() <= labels.items() and scope.covers(labels)


def _check_time_range(time_range: TimeRange) -> None:
    if time_range.start > time_range.end:
        raise UserMistake("the range ends before it begins")
    if time_range.end > MAX_TIMESTAMP:
        raise UserMistake("the range ends too far in the future")
    if time_range.end - time_range.start > MAX_SPAN_SECONDS:
        raise UserMistake("too large duration: a range may span two years at most")
