# SPDX-License-Identifier: Apache-2.0
"""Reads the insight files of a project: totals by day where they exist, else chunks and months."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import structlog

from pipecd.controlplane.filestore import Files
from pipecd.controlplane.insight.chunks import (
    Block,
    ChunkMeta,
    block_path,
    block_years,
    chunk_path,
    decode_block,
    decode_chunk,
    decode_results,
)
from pipecd.controlplane.insight.days import (
    LEAD_TIMES,
    RESTORE_TIMES,
    DayTotals,
    YearDays,
    chunk_reads,
    month_days_path,
    month_ratios,
    month_totals,
    year_days_path,
)
from pipecd.controlplane.insight.deployments import CompletedDeployment
from pipecd.controlplane.insight.dora import Restoration, find_restorations
from pipecd.controlplane.insight.files import decode_file
from pipecd.controlplane.insight.months import Month, decode_month, month_path, months_between
from pipecd.controlplane.insight.series import (
    Metric,
    Ratios,
    SeriesFilter,
    TimeRange,
    count_failures,
    merge_ratios,
)
from pipecd.model.errors import NotFound, PipecdError

_CONCURRENT_READS = 8
_MONTH_TOTALS = {Metric.LEAD_TIME: LEAD_TIMES, Metric.TIME_TO_RESTORE: RESTORE_TIMES}

T = TypeVar("T")
R = TypeVar("R")

log = structlog.get_logger()


class InsightFiles:
    """What the insight collector stored about a project.

    Totals by day are used where they exist and belong to the chunks and months of today; otherwise
    chunks and months are read themselves.
    """

    def __init__(self, files: Files, project: str) -> None:
        self._files, self._project = files, project

    async def failures(self, series_filter: SeriesFilter) -> Ratios:
        """By period: the number of failed deployments out of all."""
        time_range = series_filter.time_range
        years = block_years(time_range.start, time_range.end)
        return merge_ratios([await self._failures_of_year(year, series_filter) for year in years])

    async def of_months(
        self, metrics: Collection[Metric], series_filter: SeriesFilter
    ) -> dict[Metric, Ratios]:
        """By metric and period: seconds, and the number of changes or failures."""

        def ratios(content: bytes) -> dict[Metric, Ratios]:
            totals = DayTotals.decode(content)
            return {
                metric: month_ratios(totals, _MONTH_TOTALS[metric], series_filter)
                for metric in metrics
            }

        async def read(name: str) -> dict[Metric, Ratios]:
            path = month_days_path(self._project, name)
            derived = await _decode_derived(path, await self._content(path), ratios)
            if derived is not None:
                return derived
            month = await self._month(name)
            if month is None:
                return {}
            return await asyncio.to_thread(lambda: ratios(month_totals(month)))

        time_range = series_filter.time_range
        months = await _gather_limited(months_between(time_range.start, time_range.end), read)
        return {
            metric: merge_ratios(month.get(metric, {}) for month in months) for metric in metrics
        }

    async def restorations(self, time_range: TimeRange) -> tuple[Restoration, ...]:
        """The restorations of the months of the time range."""
        found: list[Restoration] = []
        for name in months_between(time_range.start, time_range.end):
            if (month := await self._month(name)) is not None:
                found += find_restorations(month.totals, month.failing)[0]
        return tuple(found)

    async def _month(self, name: str) -> Month | None:
        path = month_path(self._project, name)
        content = await self._content(path)
        if content is None:
            return None
        return await asyncio.to_thread(decode_file, path, content, decode_month)

    async def latest(
        self, series_filter: SeriesFilter, limit: int
    ) -> tuple[CompletedDeployment, ...]:
        """The deployments that completed last, latest first."""
        time_range = series_filter.time_range
        chunks: list[tuple[ChunkMeta, int]] = []
        for year in block_years(time_range.start, time_range.end):
            if (block := await self._block(year)) is not None:
                near = block.between(time_range.start, time_range.end)
                chunks += ((chunk, year) for chunk in near)
        chunks.sort(key=lambda entry: -entry[0].last)
        latest: list[CompletedDeployment] = []
        for chunk, year in chunks:
            if len(latest) == limit and chunk.last < latest[-1].completed_at:
                break
            path = chunk_path(self._project, year, chunk)
            content = await self._content(path)
            if content is None:
                continue
            latest += (
                one
                for one in await asyncio.to_thread(decode_file, path, content, decode_chunk)
                if time_range.contains(one.completed_at)
                and series_filter.matches(one.application, dict(one.labels))
            )
            latest = sorted(latest, key=lambda one: -one.completed_at)[:limit]
        return tuple(latest)

    async def _failures_of_year(self, year: int, series_filter: SeriesFilter) -> Ratios:
        # The totals are read first, so that the block has all of their chunks.
        totals_path = year_days_path(self._project, year)
        totals = await self._content(totals_path)
        block = await self._block(year)
        if block is None:
            return {}

        def decode_totals(content: bytes) -> tuple[YearDays, Ratios]:
            year_days = YearDays.decode(content)
            if not year_days.is_of(block):
                return YearDays.empty(), {}
            return year_days, year_days.failures(series_filter)

        derived = await _decode_derived(totals_path, totals, decode_totals)
        year_days, of_whole_days = derived or (YearDays.empty(), {})
        reads = chunk_reads(block, year_days, series_filter.time_range)

        async def count(read: tuple[ChunkMeta, Sequence[TimeRange]]) -> Ratios:
            chunk, time_ranges = read
            path = chunk_path(self._project, year, chunk)
            content = await self._content(path)
            if content is None:
                return {}

            def count_each(text: bytes) -> Ratios:
                results = tuple(decode_results(text))
                filters = (replace(series_filter, time_range=each) for each in time_ranges)
                return merge_ratios(count_failures(results, each) for each in filters)

            return await asyncio.to_thread(decode_file, path, content, count_each)

        return merge_ratios([of_whole_days, *await _gather_limited(reads, count)])

    async def _block(self, year: int) -> Block | None:
        path = block_path(self._project, year)
        content = await self._content(path)
        if content is None:
            return None
        return decode_file(path, content, lambda text: decode_block(text, year))

    async def _content(self, path: str) -> bytes | None:
        try:
            return await self._files.get(path)
        except NotFound:
            return None


async def _decode_derived(
    path: str, content: bytes | None, decode: Callable[[bytes], T]
) -> T | None:
    """Decodes a file that is derived from others; None if it is missing or damaged."""
    if content is None:
        return None
    try:
        return await asyncio.to_thread(decode_file, path, content, decode)
    except PipecdError as e:
        log.warning("totals by day ignored", path=path, error=str(e))
        return None


async def _gather_limited(items: Sequence[T], work: Callable[[T], Awaitable[R]]) -> list[R]:
    """Runs a few reads at a time; the results are in the order of the items."""
    slots = asyncio.Semaphore(_CONCURRENT_READS)

    async def one(item: T) -> R:
        async with slots:
            return await work(item)

    return list(await asyncio.gather(*(one(item) for item in items)))
