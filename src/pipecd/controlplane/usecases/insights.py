# SPDX-License-Identifier: Apache-2.0
"""Insights: the time series of the charts, and the number of applications."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from pipecd.controlplane.auth.rbac import Action, Permission, Resource, Scope
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.applications import (
    ApplicationSnapshot,
    applications_path,
    decode_applications,
)
from pipecd.controlplane.insight.chunks import (
    block_path,
    block_years,
    chunk_path,
    decode_block,
    decode_chunk,
    decode_results,
)
from pipecd.controlplane.insight.deployments import CompletedDeployment
from pipecd.controlplane.insight.dora import DAY, Restoration, find_restorations
from pipecd.controlplane.insight.files import decode_file
from pipecd.controlplane.insight.months import Month, decode_month, month_path, months_between
from pipecd.controlplane.insight.series import (
    Metric,
    Point,
    Ratio,
    SeriesFilter,
    TimeRange,
    count_failures,
    lead_times,
    merge_ratios,
    restore_times,
    series_points,
)
from pipecd.controlplane.usecases.access import Access, check_project, or_not_found
from pipecd.model.errors import NotFound, Unsupported, UserMistake

_GET = Permission(Resource.INSIGHT, Action.GET)
# Two years with a leap day.
MAX_SPAN_SECONDS = 731 * DAY
# The end of the year 8999, as far as calendar arithmetic goes.
MAX_TIMESTAMP = 221845391999
_CONCURRENT_READS = 8

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class InsightQuery:
    """A time series; an empty application or no labels mean all of them."""

    metric: Metric
    time_range: TimeRange
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class DeploymentsBehind:
    """The completed deployments of a time range, latest first.

    `restored` has the seconds since the first failure, by application and time of the success.
    """

    deployments: tuple[CompletedDeployment, ...]
    restored: Mapping[tuple[str, int], int]


class Insights:
    """Reads what the insight collector stored about deployments and applications."""

    def __init__(self, stores: Stores, access: Access) -> None:
        self._files, self._applications, self._access = stores.files, stores.applications, access

    async def series(self, query: InsightQuery, *, by: UserOrApiKey) -> tuple[Point, ...]:
        """One value per day or month: a count, a rate, or average seconds."""
        ratios = await self.ratios(query, by=by)
        return series_points(query.time_range, ratios, query.metric)

    async def ratios(self, query: InsightQuery, *, by: UserOrApiKey) -> dict[int, Ratio]:
        """What the values of a series are made of, by day or month; none without deployments."""
        series_filter = await self._series_filter(query, by)
        return await self._ratios(query.metric, by.project, series_filter)

    async def behind(self, query: InsightQuery, *, by: UserOrApiKey) -> DeploymentsBehind:
        """The deployments that the values of all metrics in this time range are made of."""
        series_filter = await self._series_filter(query, by)
        time_range = query.time_range

        async def read(path: str) -> list[CompletedDeployment]:
            content = await self._content(path)
            if content is None:
                return []
            chunk = await asyncio.to_thread(decode_file, path, content, decode_chunk)
            return [
                each
                for each in chunk
                if time_range.contains(each.completed_at)
                and series_filter.matches(each.application, dict(each.labels))
            ]

        chunks = await _gather_limited(await self._chunk_paths(by.project, time_range), read)
        months = await self._months(by.project, time_range)
        found = sorted(
            (each for chunk in chunks for each in chunk), key=lambda each: -each.completed_at
        )
        restored = {
            (one.application, one.at): one.seconds
            for month in months
            for one in find_restorations(month.totals, month.failing)[0]
        }
        return DeploymentsBehind(tuple(found), restored)

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

    async def _ratios(
        self, metric: Metric, project: str, series_filter: SeriesFilter
    ) -> dict[int, Ratio]:
        match metric:
            case Metric.DEPLOYMENT_FREQUENCY | Metric.CHANGE_FAILURE_RATE:
                return await self._failures(project, series_filter)
            case Metric.LEAD_TIME:
                months = await self._months(project, series_filter.time_range)
                return await asyncio.to_thread(lead_times, months, series_filter)
            case Metric.TIME_TO_RESTORE:
                months = await self._months(project, series_filter.time_range)
                return await asyncio.to_thread(_restore_times, months, series_filter)
            case Metric.APPLICATIONS_COUNT:
                raise Unsupported("the number of applications is not stored over time")

    async def _chunk_paths(self, project: str, time_range: TimeRange) -> list[str]:
        """The files of the deployments that completed in the time range, and perhaps of others."""
        paths: list[str] = []
        for year in block_years(time_range.start, time_range.end):
            content = await self._content(block_path(project, year))
            if content is not None:
                block = decode_file(
                    block_path(project, year), content, lambda c, y=year: decode_block(c, y)
                )
                near = block.between(time_range.start, time_range.end)
                paths += (chunk_path(project, year, chunk) for chunk in near)
        return paths

    async def _failures(self, project: str, series_filter: SeriesFilter) -> dict[int, Ratio]:
        paths = await self._chunk_paths(project, series_filter.time_range)

        async def summed(path: str) -> dict[int, Ratio]:
            content = await self._content(path)
            if content is None:
                return {}
            return await asyncio.to_thread(
                decode_file,
                path,
                content,
                lambda text: count_failures(decode_results(text), series_filter),
            )

        return merge_ratios(await _gather_limited(paths, summed))

    async def _months(self, project: str, time_range: TimeRange) -> tuple[Month, ...]:
        """The stored months in chronological order."""

        async def read(name: str) -> Month | None:
            path = month_path(project, name)
            content = await self._content(path)
            if content is None:
                return None
            return await asyncio.to_thread(decode_file, path, content, decode_month)

        months = await _gather_limited(months_between(time_range.start, time_range.end), read)
        return tuple(month for month in months if month is not None)

    async def _content(self, path: str) -> bytes | None:
        try:
            return await self._files.get(path)
        except NotFound:
            return None


async def _gather_limited(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """Runs a few reads at a time; the results are in the order of the items."""
    slots = asyncio.Semaphore(_CONCURRENT_READS)

    async def one(item: T) -> R:
        async with slots:
            return await work(item)

    return list(await asyncio.gather(*(one(item) for item in items)))


def _restore_times(months: Sequence[Month], series_filter: SeriesFilter) -> dict[int, Ratio]:
    restores: list[Restoration] = []
    for month in months:
        restores += find_restorations(month.totals, month.failing)[0]
    return restore_times(restores, series_filter)


def _label_filter(required: Mapping[str, str], scope: Scope) -> Callable[[Mapping[str, str]], bool]:
    """Matches deployments that have these labels and that the caller may see."""
    if not required and scope.is_everything:
        return lambda _: True
    return lambda labels: required.items() <= labels.items() and scope.covers(labels)


def _check_time_range(time_range: TimeRange) -> None:
    if time_range.start > time_range.end:
        raise UserMistake("the range ends before it begins")
    if time_range.end > MAX_TIMESTAMP:
        raise UserMistake("the range ends too far in the future")
    if time_range.end - time_range.start > MAX_SPAN_SECONDS:
        raise UserMistake("too large duration: a range may span two years at most")
