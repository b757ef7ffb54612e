# SPDX-License-Identifier: Apache-2.0
"""Pages of deployments by text or label, from the packed history of a project.

Deployments that were not updated for a while are packed into segments in the order of their last
update. Whatever was updated later is read from the table. Every change of a deployment sets the
time of its update, so a deployment that changes is packed again, and no program that writes to the
table needs to know about segments.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import TypeVar

from sqlalchemy import insert, select

from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.expressions import (
    AnySelect,
    MayContain,
    Row,
    SameText,
    Value,
    Values,
    param,
)
from pipecd.controlplane.datastore.query import Selection, any_of, at_least, below, row_id
from pipecd.controlplane.datastore.schema import APPLICATION, DEPLOYMENT, EXT_DEPLOYMENT_SEGMENT
from pipecd.controlplane.datastore.segments import (
    MAX_ENTRIES,
    Entry,
    Found,
    Match,
    PackedSegment,
    SegmentQuery,
    entry_of,
    pack,
)
from pipecd.model.clock import Now, to_unix, utc_now

T = TypeVar("T")

# Clocks of pipeds and of other servers may be behind ours by so many seconds.
MAX_CLOCK_SKEW = 600
# Segments read at once, and documents checked at once: few for a frequent text, then more.
SEGMENTS_AT_ONCE = (2, 8, 32, 64)
DOCUMENTS_AT_ONCE = (64, 256, 512)
# The pause between segments, as a multiple of the time that packing one takes.
PAUSE = 1.0

_ROW = EXT_DEPLOYMENT_SEGMENT.c
_DOCUMENT = DEPLOYMENT.c
_SEGMENTS = (
    select(_ROW.Segment, _ROW.FirstUpdatedAt, _ROW.LastUpdatedAt, _ROW.Grams)
    .where(_ROW.ProjectId == param("project"), _ROW.Segment > param("after"))
    .order_by(_ROW.Segment)
)
_LAST = (
    select(_ROW.Segment, _ROW.LastUpdatedAt)
    .where(_ROW.ProjectId == param("project"))
    .order_by(_ROW.Segment.desc())
    .limit(1)
)
_ADD = insert(EXT_DEPLOYMENT_SEGMENT).values(
    ProjectId=param("project"),
    Segment=param("segment"),
    FirstUpdatedAt=param("first"),
    LastUpdatedAt=param("last"),
    Grams=param("grams"),
    Wordings=param("wordings"),
    Texts=param("texts"),
    Entries=param("entries"),
    Ids=param("ids"),
    Keys=param("keys"),
)
_OLDEST = (
    select(_DOCUMENT.Id, _DOCUMENT.UpdatedAt, _DOCUMENT.Data)
    .where(
        SameText(_DOCUMENT.ProjectId, [param("project")]),
        _DOCUMENT.UpdatedAt >= param("since"),
        _DOCUMENT.UpdatedAt < param("until"),
    )
    .order_by(_DOCUMENT.UpdatedAt)
    .limit(param("limit"))
    .with_hint(DEPLOYMENT, "INDEXED BY ext_deployment_list", "sqlite")
    .with_hint(DEPLOYMENT, "FORCE INDEX (deployment_project_id_updated_at_desc)", "mysql")
)
_OF_SECOND = (
    select(_DOCUMENT.Id, _DOCUMENT.UpdatedAt, _DOCUMENT.Data)
    .where(
        SameText(_DOCUMENT.ProjectId, [param("project")]),
        _DOCUMENT.UpdatedAt == param("second"),
        _DOCUMENT.Id > param("after"),
    )
    .order_by(_DOCUMENT.Id)
    .limit(param("limit"))
    .with_hint(DEPLOYMENT, "INDEXED BY ext_deployment_list", "sqlite")
    .with_hint(DEPLOYMENT, "FORCE INDEX (deployment_project_id_updated_at_desc)", "mysql")
)
_PROJECTS = select(APPLICATION.c.ProjectId)


@dataclass(frozen=True)
class Segment:
    """A stored segment without its entries."""

    number: int
    first_updated_at: int
    last_updated_at: int
    grams: bytes


@lru_cache(maxsize=64)
def _parts_statement(columns: tuple[str, ...], segments: int, filtered: str) -> AnySelect:
    numbers = [param(f"segment_{i}") for i in range(segments)]
    statement = select(_ROW.Segment, *(_ROW[column] for column in columns)).where(
        _ROW.ProjectId == param("project"), _ROW.Segment.in_(numbers)
    )
    return statement.where(MayContain(_ROW[filtered], param("text"))) if filtered else statement


class DeploymentHistory:
    """The segments of all projects; their grams are kept in memory, as they never change."""

    def __init__(self, database: Database, *, now: Now = utc_now) -> None:
        self._database, self._now = database, now
        self._known: dict[str, list[Segment]] = {}

    async def extend(self) -> int:
        """Packs the deployments that have not changed for a while; returns their number."""
        packed = 0
        # DISTINCT of MySQL would ignore the case.
        for project in sorted({project for (project,) in await self._database.query(_PROJECTS)}):
            while count := await self._extend_project(project):
                packed += count
            # Else the first search after a start would read the bits of the whole history.
            await self._segments(project)
        return packed

    async def rows(self, selection: Selection) -> Sequence[Row]:
        """Returns the documents of a page of a project by text or label."""
        project = selection.project
        segments = await self._segments(project)
        if not segments:
            return await self._database.select(selection)
        recent = at_least("UpdatedAt", segments[-1].last_updated_at + 1)
        # A document that changes in the meantime may be read twice.
        rows = dict.fromkeys(await self._database.select(selection.and_also(recent)))
        if len(rows) < selection.limit:
            async for found in self._found(selection, project, segments):
                for at_once in _parts(found, DOCUMENTS_AT_ONCE):
                    rows |= dict.fromkeys(await self._checked(selection, at_once))
                    if len(rows) >= selection.limit:
                        return list(rows)[: selection.limit]
        return list(rows)[: selection.limit]

    async def _checked(self, selection: Selection, found: Sequence[Found]) -> Sequence[Row]:
        """Returns those of the documents that match and are not newer than what was found."""
        conditions = (
            *any_of("Id", *{each.id for each in found}),
            *at_least("UpdatedAt", found[-1].updated_at),
            *below("UpdatedAt", found[0].updated_at + 1),
        )
        return await self._database.select(selection.and_also(conditions))

    async def _found(
        self, selection: Selection, project: str, segments: Sequence[Segment]
    ) -> AsyncIterator[list[Found]]:
        """Yields what segments have, in the order of the list."""
        newest, after = segments[-1].last_updated_at, None
        if selection.after is not None:
            newest = min(newest, selection.after.value)
            after = (-selection.after.value, row_id(selection.after.id))
        query = SegmentQuery.of(selection.conditions, newest=newest)
        candidates = [
            segment
            for segment in reversed(segments)
            if segment.first_updated_at <= newest
            and segment.last_updated_at >= query.oldest
            and query.may_have(segment.grams)
        ]
        waiting: list[Found] = []
        read, at_once = 0, bool(query.labels)
        for part in _parts(candidates, SEGMENTS_AT_ONCE):
            read += len(part)
            found, worth = await self._database.read(_finder(query, project, part, at_once=at_once))
            waiting += found
            at_once = worth * 2 > len(part)
            # Two segments may have deployments of the same second.
            until = candidates[read].last_updated_at if read < len(candidates) else None
            ready = [each for each in waiting if until is None or each.updated_at > until]
            ready = [each for each in ready if after is None or each.rank > after]
            waiting = [each for each in waiting if until is not None and each.updated_at <= until]
            if ready:
                yield sorted(ready, key=lambda each: each.rank)

    async def _segments(self, project: str) -> Sequence[Segment]:
        known = self._known.get(project, [])
        after = known[-1].number if known else 0
        rows = await self._database.query(_SEGMENTS, {"project": project, "after": after})
        if rows:
            # Another search may have read them at the same time.
            known = [*known, *(Segment(n, first, last, bytes(g)) for n, first, last, g in rows)]
            self._known[project] = known
        return known

    async def _extend_project(self, project: str) -> int:
        """Packs the deployments that come next; returns their number."""
        last = await self._database.query(_LAST, {"project": project})
        number, updated_at = last[0] if last else (0, -1)
        values: Values = {
            "project": project,
            "since": updated_at + 1,
            "until": to_unix(self._now()) - MAX_CLOCK_SKEW,
            "limit": MAX_ENTRIES,
        }
        clock = asyncio.get_running_loop().time
        began = clock()
        rows = await self._database.query(_OLDEST, values)
        if len(rows) < MAX_ENTRIES:
            return 0
        first, end = rows[0][1], rows[-1][1]
        if first == end:
            entries = await self._of_second(project, end)
        else:
            # There may be more of the last second.
            complete = [row for row in rows if row[1] < end]
            entries = await asyncio.to_thread(lambda: [entry_of(*row) for row in complete])
        segments = await asyncio.to_thread(lambda: list(pack(entries)))
        try:
            await self._database.write(lambda t: _store(t, project, number, segments))
        except Duplicate:
            # Another replica has packed them.
            return 0
        await asyncio.sleep((clock() - began) * PAUSE)
        return len(entries)

    async def _of_second(self, project: str, second: int) -> list[Entry]:
        """The entries of all deployments that were last updated in this second."""
        entries: list[Entry] = []
        while True:
            values: Values = {
                "project": project,
                "second": second,
                "after": entries[-1].id if entries else b"",
                "limit": MAX_ENTRIES,
            }
            rows = await self._database.query(_OF_SECOND, values)
            entries += [entry_of(*row) for row in rows]
            if len(rows) < MAX_ENTRIES:
                return entries


def _finder(
    query: SegmentQuery, project: str, segments: Sequence[Segment], *, at_once: bool
) -> Callable[[Transaction], tuple[list[Found], int]]:
    """Work that reads these segments, finds what matches, and counts those that were worth it.

    Entries are read with the lines in which the text is looked for, `at_once`, if most of the
    segments before had the text; otherwise those of the segments that have it are read after the
    lines. Ids are read of the segments that have a match.
    """
    by_key = [each for each in segments if query.may_have_key(each.grams)]
    keyed = [each.number for each in by_key if query.may_have_text(each.grams)]
    only_keyed = [each.number for each in by_key if not query.may_have_text(each.grams)]
    others = [each.number for each in segments if not query.may_have_key(each.grams)]
    column = "Texts" if query.has_number else "Wordings"

    def work(transaction: Transaction) -> tuple[list[Found], int]:
        read = partial(_read, transaction, project)
        matches: dict[int, list[Match]] = {}
        lines_of: dict[int, bytes] = {}
        for number, lines, entries, keys in read(keyed, (column, "Entries", "Keys")):
            matches[number] = query.find(entries, lines, keys)
        for number, entries, keys in read(only_keyed, ("Entries", "Keys")):
            matches[number] = query.find(entries, keys=keys)
        worth = len(by_key)
        if query.text is None:
            lines_of = dict.fromkeys(others, b"")
        elif at_once:
            for number, lines, entries in read(others, (column, "Entries")):
                if query.text in lines:
                    worth += 1
                    matches[number] = query.find(entries, lines)
        else:
            lines_of = {
                number: lines
                for number, lines in read(others, (column,), containing=query.text)
                if query.text in lines
            }
            worth += len(lines_of)
        for number, entries in read([*lines_of], ("Entries",)):
            matches[number] = query.find(entries, lines_of[number])
        with_match = [number for number, of in matches.items() if of]
        found = [
            match.found(ids)
            for number, ids in read(with_match, ("Ids",))
            for match in matches[number]
        ]
        return found, worth

    return work


def _read(
    transaction: Transaction,
    project: str,
    segments: Sequence[int],
    columns: tuple[str, ...],
    *,
    containing: bytes | None = None,
) -> Iterator[Row]:
    """Reads columns of these segments, after their numbers.

    Segments whose first column does not have what it should be `containing` may be left out.
    """
    if not segments:
        return
    # A number is repeated up to a power of two, so that few statements serve all lengths.
    count = 1 << (len(segments) - 1).bit_length()
    repeated = [*segments, *[segments[-1]] * (count - len(segments))]
    values: dict[str, Value] = {f"segment_{i}": number for i, number in enumerate(repeated)}
    statement = _parts_statement(columns, count, columns[0] if containing is not None else "")
    yield from transaction.rows(statement, {**values, "project": project, "text": containing})


def _store(
    transaction: Transaction, project: str, last: int, segments: Sequence[PackedSegment]
) -> None:
    for number, segment in enumerate(segments, last + 1):
        values: Values = {
            "project": project,
            "segment": number,
            "first": segment.first_updated_at,
            "last": segment.last_updated_at,
            "grams": segment.grams,
            "wordings": segment.wordings,
            "texts": segment.texts,
            "entries": segment.entries,
            "ids": segment.ids,
            "keys": segment.keys,
        }
        transaction.execute(_ADD, values)


def _parts(items: Sequence[T], lengths: Sequence[int]) -> Iterator[Sequence[T]]:
    """Parts of these lengths; the last length is that of all further parts."""
    remaining, number = iter(items), 0
    while part := tuple(islice(remaining, lengths[min(number, len(lengths) - 1)])):
        yield part
        number += 1
