# SPDX-License-Identifier: Apache-2.0
"""How a project delivers: the lines of the charts, and how many applications there are."""

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
from pipecd.controlplane.usecases.access import Access, check_project, found
from pipecd.model.errors import NotFound, Unsupported, UserMistake

_GET = Permission(Resource.INSIGHT, Action.GET)
# Two years with a leap day.
LONGEST_SECONDS = 731 * DAY
# The end of the year 8999; calendars do not go much further.
LATEST = 221845391999
_AT_ONCE = 8

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Question:
    """Which line of a chart is asked for; an empty application or no labels mean everything."""

    metric: Metric
    span: Span
    application: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


class Insights:
    """What was collected about the deployments and applications of a project."""

    def __init__(self, stores: Stores, access: Access) -> None:
        self._files, self._applications, self._access = stores.files, stores.applications, access

    async def series(self, question: Question, *, by: UserOrApiKey) -> tuple[Point, ...]:
        """One value for each day or month: a number, a share, or seconds on average."""
        scope = await self._access.scope(by, _GET)
        _check_span(question.span)
        if question.application:
            await self._check_own(question.application, by)
        wanted = Wanted(question.span, question.application, _sight(question.labels, scope))
        shares = await self._shares(question.metric, by.project, wanted)
        return points(question.span, shares, question.metric)

    async def applications(self, *, by: UserOrApiKey) -> ApplicationBook:
        """The applications as last collected, or NotFound before the first time."""
        scope = await self._access.scope(by, _GET)
        path = book_path(by.project)
        content = await found(
            self._files.get(path), "Entity was not found to get application counts"
        )
        book = await asyncio.to_thread(decoded, path, content, read_book)
        visible = tuple(one for one in book.applications if scope.covers(dict(one.labels)))
        return ApplicationBook(visible, book.updated_at)

    async def _check_own(self, application_id: str, by: UserOrApiKey) -> None:
        try:
            application = await self._applications.get(application_id)
        except NotFound:
            # Nothing was ever collected for it, which the line then shows.
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

        return together(await _some_at_once(paths, summed))

    async def _months(self, project: str, span: Span) -> tuple[Month, ...]:
        """The months that exist, in the order of time."""

        async def read(name: str) -> Month | None:
            path = month_path(project, name)
            content = await self._content(path)
            if content is None:
                return None
            return await asyncio.to_thread(decoded, path, content, read_month)

        months = await _some_at_once(months_between(span.start, span.end), read)
        return tuple(month for month in months if month is not None)

    async def _content(self, path: str) -> bytes | None:
        try:
            return await self._files.get(path)
        except NotFound:
            return None


async def _some_at_once(things: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """The results in the order of the things; a remote filestore is slow, but patient."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(thing: T) -> R:
        async with turn:
            return await work(thing)

    return list(await asyncio.gather(*(one(thing) for thing in things)))


def _failures_in(path: str, content: bytes, wanted: Wanted) -> dict[int, Share]:
    return decoded(path, content, lambda text: failures(read_ends(text), wanted))


def _restore_times(months: Sequence[Month], wanted: Wanted) -> dict[int, Share]:
    mended: list[Restored] = []
    for month in months:
        mended += restored(month.tallies, month.failing)[0]
    return restore_times(mended, wanted)


def _sight(wanted: Mapping[str, str], scope: Scope) -> Callable[[Mapping[str, str]], bool]:
    """Whether a deployment with these labels is asked for and may be seen."""
    if not wanted and scope.is_everything:
        return lambda _: True
    return lambda labels: wanted.items() <= labels.items() and scope.covers(labels)


def _check_span(span: Span) -> None:
    if span.start > span.end:
        raise UserMistake("the range ends before it begins")
    if span.end > LATEST:
        raise UserMistake("the range ends too far in the future")
    if span.end - span.start > LONGEST_SECONDS:
        raise UserMistake("too large duration: a range may span two years at most")
