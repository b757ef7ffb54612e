# SPDX-License-Identifier: Apache-2.0
"""The label index beside tables that upstream may have filled, and may still be writing to.

Upstream knows nothing of the index. A database is gone through once, when it is first opened; from
then on a search by label first looks at the documents of its project that changed since the last
look. Every change of labels sets `updated_at`, and upstream has an index over it by project, so
that the look is short. Clocks of other servers may be behind ours by `SLACK` seconds.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Delete,
    Table,
    delete,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.types import NullType

from pipecd.controlplane.datastore.database import (
    AnySelect,
    Database,
    Reading,
    Row,
    Value,
    Values,
    Writing,
    given,
)
from pipecd.controlplane.datastore.documents import ADD_LABEL, label_rows
from pipecd.controlplane.datastore.engine.expression import SameText
from pipecd.controlplane.datastore.fits import label_text
from pipecd.controlplane.datastore.schema import (
    APPLICATION,
    DEPLOYMENT,
    EVENT,
    EXT_LABEL,
    EXT_META,
)

LABELLED = {table.name: table for table in (APPLICATION, DEPLOYMENT, EVENT)}
PART = 500
LATEST = 2**31 - 1
SLACK = 120
# How old the last look may be, and by how much a look must have moved to be written down.
FRESH_SECONDS = 2.0
WORTH_KEEPING = 300

MARK = select(EXT_META.c.Value).where(EXT_META.c.Name == given("name"))
ADD_MARK = insert(EXT_META).values(Name=given("name"), Value=given("value"))
MOVE_MARK = update(EXT_META).where(EXT_META.c.Name == given("name")).values(Value=given("value"))


class LabelsOf(ColumnElement[Any]):
    """The labels in a document, as JSON."""

    inherit_cache = False
    type = NullType()

    def __init__(self, table: Table) -> None:
        self.data = table.c.Data


@compiles(LabelsOf, "mysql")
def _labels_by_mysql(element: LabelsOf, compiler: Any, **options: Any) -> str:
    return f"JSON_EXTRACT({compiler.process(element.data, **options)}, '$.labels')"


@cache
def _next_in_table(name: str) -> AnySelect:
    table = LABELLED[name]
    found = select(table.c.Id).where(table.c.Id > given("after"))
    return found.order_by(table.c.Id).limit(PART)


@cache
def _changed(name: str) -> AnySelect:
    """Documents of a project from the latest change back to a moment, in upstream's order."""
    table, at = LABELLED[name], given("at")
    return (
        select(table.c.Id, table.c.UpdatedAt, LabelsOf(table))
        .where(
            SameText(table.c.ProjectId, [given("project")]),
            table.c.UpdatedAt >= given("since"),
            table.c.UpdatedAt <= at,
            or_(table.c.UpdatedAt < at, table.c.Id > given("after")),
        )
        .order_by(table.c.UpdatedAt.desc(), table.c.Id)
        .limit(PART)
    )


@cache
def _locked(name: str, places: int) -> AnySelect:
    table = LABELLED[name]
    found = select(table.c.Id, LabelsOf(table)).where(table.c.Id.in_(_ids(places)))
    return found.with_for_update()


@cache
def _indexed(places: int) -> AnySelect:
    table = EXT_LABEL.c
    found = select(table.DocumentId, table.LabelKey, table.LabelValue)
    return found.where(table.Kind == given("kind"), table.DocumentId.in_(_ids(places)))


@cache
def _forget(places: int) -> Delete:
    table = EXT_LABEL.c
    return delete(EXT_LABEL).where(table.Kind == given("kind"), table.DocumentId.in_(_ids(places)))


def _ids(places: int) -> list[BindParameter[Any]]:
    return [given(f"id_{i}") for i in range(places)]


def _places(count: int) -> int:
    """The next power of two, so that few statements serve all numbers of documents."""
    return 1 << (count - 1).bit_length()


def _among(ids: Sequence[bytes]) -> dict[str, Value]:
    return {f"id_{i}": ids[min(i, len(ids) - 1)] for i in range(_places(len(ids)))}


def index_part(writing: Writing, name: str, ids: Sequence[bytes]) -> None:
    """Makes the index of these documents say what they say; they stay locked until the end."""
    found = writing.rows(_locked(name, _places(len(ids))), _among(ids))
    writing.run(_forget(_places(len(ids))), {"kind": name, **_among(ids)})
    rows = [row for id, text in found for row in label_rows(name, id, _labels(text))]
    if rows:
        writing.run_many(ADD_LABEL, rows)


def next_part(reading: Reading, name: str, after: bytes) -> Sequence[bytes]:
    """The ids of the next documents of a table."""
    return [id for (id,) in reading.rows(_next_in_table(name), {"after": after})]


def mark_of(reading: Reading, *names: str) -> int | None:
    """The first of the marks that is there."""
    for name in names:
        if found := reading.rows(MARK, {"name": name}):
            return int(found[0][0])
    return None


def set_mark(writing: Writing, name: str, value: int) -> None:
    values: Values = {"name": name, "value": str(value)}
    if not writing.run(MOVE_MARK, values):
        writing.run(ADD_MARK, values)


def mark_name(table: str, project: str = "") -> str:
    return f"labels:{table}:{project}" if project else f"labels:{table}"


class LabelWatch:
    """Looks after what others changed, when a search by label is about to begin."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._looks: dict[tuple[str, str], Look] = defaultdict(Look)

    async def catch_up(self, table: str, project: str) -> None:
        look = self._looks[table, project]
        async with look.turn:
            if look.at is not None and self._clock() - look.at < FRESH_SECONDS:
                return
            at = self._clock()
            if look.mark is None:
                names = (mark_name(table, project), mark_name(table))
                look.mark = look.kept = await self._database.read(lambda r: mark_of(r, *names)) or 0
            latest = await self._go_back(table, project, look.mark)
            look.mark = max(look.mark, latest - SLACK)
            look.at = at
            if look.mark - look.kept >= WORTH_KEEPING:
                name, mark = mark_name(table, project), look.mark
                await self._database.write(lambda writing: set_mark(writing, name, mark))
                look.kept = mark

    async def _go_back(self, table: str, project: str, since: int) -> int:
        """Indexes what changed since then; the moment of the latest change."""
        latest, at, after = 0, LATEST, b""
        while True:
            values: Values = {"project": project, "since": since, "at": at, "after": after}
            part, odd = await self._database.read(lambda r, v=values: _compare(r, table, v))
            if odd:
                await self._database.write(lambda w, ids=odd: index_part(w, table, ids))
            if not part:
                return latest
            latest = max(latest, part[0][1])
            if len(part) < PART:
                return latest
            after, at, _ = part[-1]


@dataclass
class Look:
    """When a project was last looked at, and from which change on to look next."""

    at: float | None = None
    mark: int | None = None
    kept: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


def _compare(reading: Reading, table: str, values: Values) -> tuple[Sequence[Row], Sequence[bytes]]:
    """Documents that changed, and those of them that the index has wrong."""
    part = reading.rows(_changed(table), values)
    if not part:
        return (), ()
    indexed: dict[bytes, dict[str, str]] = defaultdict(dict)
    ids = [id for id, _, _ in part]
    known = reading.rows(_indexed(_places(len(ids))), {"kind": table, **_among(ids)})
    for id, key, value in known:
        indexed[id][key] = value
    odd = [
        id
        for id, _, text in part
        if {label_text(k): label_text(v) for k, v in _labels(text).items()} != indexed[id]
    ]
    return part, odd


def _labels(text: str | bytes | None) -> Mapping[str, str]:
    found: object = json.loads(text) if text else None
    return cast("dict[str, str]", found) if isinstance(found, dict) else {}
