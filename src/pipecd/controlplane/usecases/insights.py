# SPDX-License-Identifier: Apache-2.0
"""Insights: the time series of the charts, and the number of applications."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pipecd.controlplane.auth.rbac import Action, Permission, Resource, Scope
from pipecd.controlplane.auth.subject import UserOrApiKey
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.applications import ApplicationBook, book_path, read_book
from pipecd.controlplane.insight.chunks import (
    block_path,
    chunk_path,
    read_block,
    read_ends,
    years_near,
)
from pipecd.controlplane.insight.decoding import decoded
from pipecd.controlplane.insight.facts import DAY, Restored, restored
from pipecd.controlplane.insight.months import Month, month_path, months_between, read_month
from pipecd.controlplane.insight.series import (
    Metric,
    Point,
    Share,
    Span,
    Wanted,
    failures,
    lead_times,
    points,
    restore_times,
    together,
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
    span: Span
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Insights:
    """Reads what the insight collector stored about deployments and applications."""

    def __init__(self, stores: Stores, access: Access) -> None:
        self._files, self._applications, self._access = stores.files, stores.applications, access

    async def series(self, query: InsightQuery, *, by: UserOrApiKey) -> tuple[Point, ...]:
        """One value per day or month: a count, a rate, or average seconds."""
        scope = await self._access.scope(by, _GET)
        _check_span(query.span)
        if query.application:
            await self._check_own(query.application, by)
        wanted = Wanted(query.span, query.application, _label_filter(query.labels, scope))
        shares = await self._shares(query.metric, by.project, wanted)
        return points(query.span, shares, query.metric)

    async def applications(self, *, by: UserOrApiKey) -> ApplicationBook:
        """The applications as last collected; NotFound before the first collection."""
        scope = await self._access.scope(by, _GET)
        path = book_path(by.project)
        content = await or_not_found(
            self._files.get(path), "Entity was not found to get application counts"
        )
        book = await asyncio.to_thread(decoded, path, content, read_book)
        visible = tuple(one for one in book.applications if scope.covers(dict(one.labels)))
        return ApplicationBook(visible, book.updated_at)

    async def _check_own(self, application_id: str, by: UserOrApiKey) -> None:
        try:
            application = await self._applications.get(application_id)
        except NotFound:
            # The series of an unknown application is empty.
            return
        check_project(by, application.project_id, "application")

    async def _shares(self, metric: Metric, project: str, wanted: Wanted) -> dict[int, Share]:
        match metric:
            case Metric.DEPLOYMENT_FREQUENCY | Metric.CHANGE_FAILURE_RATE:
                return await self._failures(project, wanted)
            case Metric.LEAD_TIME:
                months = await self._months(project, wanted.span)
                return await asyncio.to_thread(lead_times, months, wanted)
            case Metric.TIME_TO_RESTORE:
                months = await self._months(project, wanted.span)
                return await asyncio.to_thread(_restore_times, months, wanted)
            case Metric.APPLICATIONS_COUNT:
                raise Unsupported("the number of applications is not kept over time")

    async def _failures(self, project: str, wanted: Wanted) -> dict[int, Share]:
        span = wanted.span
        paths: list[str] = []
        for year in years_near(span.start, span.end):
            content = await self._content(block_path(project, year))
            if content is not None:
                block = decoded(
                    block_path(project, year), content, lambda c, y=year: read_block(c, y)
                )
                near = block.between(span.start, span.end)
                paths += (chunk_path(project, year, chunk) for chunk in near)

        async def summed(path: str) -> dict[int, Share]:
            content = await self._content(path)
            if content is None:
                return {}
            return await asyncio.to_thread(_failures_in, path, content, wanted)

        return together(await _gather_limited(paths, summed))

    async def _months(self, project: str, span: Span) -> tuple[Month, ...]:
        """The stored months in chronological order."""

        async def read(name: str) -> Month | None:
            path = month_path(project, name)
            content = await self._content(path)
            if content is None:
                return None
            return await asyncio.to_thread(decoded, path, content, read_month)

        months = await _gather_limited(months_between(span.start, span.end), read)
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


def _failures_in(path: str, content: bytes, wanted: Wanted) -> dict[int, Share]:
    return decoded(path, content, lambda text: failures(read_ends(text), wanted))


def _restore_times(months: Sequence[Month], wanted: Wanted) -> dict[int, Share]:
    restores: list[Restored] = []
    for month in months:
        restores += restored(month.tallies, month.failing)[0]
    return restore_times(restores, wanted)


def _label_filter(required: Mapping[str, str], scope: Scope) -> Callable[[Mapping[str, str]], bool]:
    """Matches deployments that have these labels and that the caller may see."""
    if not required and scope.is_everything:
        return lambda _: True
    return lambda labels: required.items() <= labels.items() and scope.covers(labels)


def _check_span(span: Span) -> None:
    if span.start > span.end:
        raise UserMistake("the range ends before it begins")
    if span.end > MAX_TIMESTAMP:
        raise UserMistake("the range ends too far in the future")
    if span.end - span.start > MAX_SPAN_SECONDS:
        raise UserMistake("too large duration: a range may span two years at most")
