# SPDX-License-Identifier: Apache-2.0
"""Writes the totals by day that are derived from the chunks and months of the insight collector.

The totals of a year say which chunks they count, so a reader knows what they lack. The totals of a
month are removed before the month is written, and written again afterwards: if a process stops in
between, they are missing, and a reader takes the month itself.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

import structlog

from pipecd.controlplane.filestore import Files
from pipecd.controlplane.insight.chunks import (
    Block,
    ChunkMeta,
    block_path,
    chunk_path,
    decode_block,
    decode_results,
)
from pipecd.controlplane.insight.days import (
    DayTotals,
    YearDays,
    chunks_to_add,
    month_days_path,
    month_totals,
    year_days_path,
)
from pipecd.controlplane.insight.deployments import DeploymentResult
from pipecd.controlplane.insight.files import decode_file
from pipecd.controlplane.insight.months import decode_month, month_of
from pipecd.controlplane.jobs.insights import MONTH_MILESTONE, Milestone
from pipecd.model.errors import NotFound, PipecdError

TOTALS_MILESTONE = "insights/ext-days-milestone.json"
# How many chunks are read before the totals are written.
CHUNKS_PER_STEP = 100

_PREFIX = "insights/"
_BLOCK = re.compile(r"insights/(?P<project>[^/]+)/completed-deployments/block_(?P<year>\d+)/")
_MONTH = re.compile(r"insights/(?P<project>[^/]+)/ext/(?P<month>\d+-\d+)\.json")
_MONTH_TOTALS = re.compile(r"insights/(?P<project>[^/]+)/ext-days/(?P<month>\d+-\d+)\.json")

T = TypeVar("T")

log = structlog.get_logger()


class DayTotalsWriter:
    """Derives the totals by day that are missing, also those of an earlier release's files."""

    def __init__(self, files: Files, *, chunks_per_step: int = CHUNKS_PER_STEP) -> None:
        self._files, self._chunks_per_step = files, chunks_per_step
        # What need not be read again to see that it is complete: the totals of years by their
        # chunks, and those of months.
        self._complete_years: dict[str, frozenset[ChunkMeta]] = {}
        self._complete_months: set[str] = set()

    async def discard_outdated(self) -> None:
        """Deletes the totals of months that another release has written since the last update.

        An earlier release does not know of the totals. Call this before months are collected.
        """
        reached = (await Milestone.read(self._files, MONTH_MILESTONE)).reached
        known = await Milestone.read(self._files, TOTALS_MILESTONE)
        if reached == known.reached:
            return
        first = month_of(known.settled_before)
        for path, project, month in _matching(_MONTH_TOTALS, await self._files.list(_PREFIX)):
            if month >= first:
                log.info("totals of a month discarded", project=project, month=month)
                await self._files.delete(path)

    async def update(self) -> None:
        """Writes the totals that are missing. Call this after chunks and months are collected."""
        reached = (await Milestone.read(self._files, MONTH_MILESTONE)).reached
        paths = await self._files.list(_PREFIX)
        stored = set(paths)
        blocks = {(project, int(year)) for _, project, year in _matching(_BLOCK, paths)}
        for project, year in sorted(blocks):
            await self._update_year(project, year, stored)
        for path, project, month in _matching(_MONTH, paths):
            totals = month_days_path(project, month)
            if totals not in stored or not await self._is_month_usable(totals):
                await self._write_month(path, totals)
            self._complete_months.add(totals)
        await (await Milestone.read(self._files, TOTALS_MILESTONE)).advance(reached)

    async def _update_year(self, project: str, year: int, stored: set[str]) -> None:
        block_file, path = block_path(project, year), year_days_path(project, year)
        content = await self._content(block_file)
        if content is None:
            return
        block = decode_file(block_file, content, lambda text: decode_block(text, year))
        completed = frozenset(chunk for chunk in block.chunks if chunk.completed)
        if not completed or (path in stored and self._complete_years.get(path) == completed):
            return
        year_days = await self._year_days(path, block)
        while missing := chunks_to_add(block, year_days, self._chunks_per_step):
            results = {chunk: await self._results(project, year, chunk) for chunk in missing}
            content = await asyncio.to_thread(year_days.with_chunks, results)
            await self._files.put(path, content)
            year_days = YearDays.decode(content)
        self._complete_years[path] = completed

    async def _is_month_usable(self, path: str) -> bool:
        if path in self._complete_months:
            return True
        return await self._read_totals(path, DayTotals.decode) is not None

    async def _write_month(self, path: str, totals: str) -> None:
        content = await self._files.get(path)

        def derive() -> bytes:
            return month_totals(decode_file(path, content, decode_month))

        await self._files.put(totals, await asyncio.to_thread(derive))

    async def _year_days(self, path: str, block: Block) -> YearDays:
        """The totals stored for a block; empty if they are unusable or of other chunks."""
        year_days = await self._read_totals(path, YearDays.decode)
        if year_days is None or not year_days.is_of(block):
            return YearDays.empty()
        return year_days

    async def _read_totals(self, path: str, decode: Callable[[bytes], T]) -> T | None:
        """Reads a file of totals; None if it is missing, damaged or of another version."""
        content = await self._content(path)
        if content is None:
            return None
        try:
            return await self._decode(path, content, decode)
        except PipecdError as e:
            log.warning("totals by day are written again", path=path, error=str(e))
            return None

    async def _results(
        self, project: str, year: int, chunk: ChunkMeta
    ) -> tuple[DeploymentResult, ...]:
        path = chunk_path(project, year, chunk)
        content = await self._content(path)
        if content is None:
            return ()
        return await self._decode(path, content, lambda text: tuple(decode_results(text)))

    async def _decode(self, path: str, content: bytes, decode: Callable[[bytes], T]) -> T:
        return await asyncio.to_thread(decode_file, path, content, decode)

    async def _content(self, path: str) -> bytes | None:
        try:
            return await self._files.get(path)
        except NotFound:
            return None


def _matching(pattern: re.Pattern[str], paths: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """The paths of a pattern, with their projects and the year or month."""
    for path in paths:
        if match := pattern.match(path):
            yield path, match[1], match[2]
