# SPDX-License-Identifier: Apache-2.0
"""The label index beside tables that upstream may have filled, and may still be writing to.

Upstream knows nothing of the index. A database is indexed once, when it is first opened; from then
on a search by label first indexes the documents of its project that changed since the last search.
Every change of labels sets `updated_at`, and upstream has an index over it by project, so that this
takes little time. The clocks of other servers may be behind ours by `CLOCK_SKEW_SECONDS`.
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
    func,
    insert,
    or_,
    select,
    update,
)

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.documents import ADD_LABEL, label_rows
from pipecd.controlplane.datastore.expressions import AnySelect, Row, SameText, Value, Values, given
from pipecd.controlplane.datastore.limits import label_text
from pipecd.controlplane.datastore.schema import (
    APPLICATION,
    DEPLOYMENT,
    EVENT,
    EXT_LABEL,
    EXT_META,
)

LABELLED_TABLES = {table.name: table for table in (APPLICATION, DEPLOYMENT, EVENT)}
BATCH = 500
MAX_TIME = 2**31 - 1
CLOCK_SKEW_SECONDS = 120
# How old the last refresh may be, and by how much the watermark must have moved to be saved.
FRESH_SECONDS = 2.0
SAVE_AFTER_SECONDS = 300

WATERMARK = select(EXT_META.c.Value).where(EXT_META.c.Name == given("name"))
ADD_WATERMARK = insert(EXT_META).values(Name=given("name"), Value=given("value"))
MOVE_WATERMARK = (
    update(EXT_META).where(EXT_META.c.Name == given("name")).values(Value=given("value"))
)


def _labels_column(table: Table) -> ColumnElement[Any]:
    """The labels in a document, as JSON."""
    return func.json_extract(table.c.Data, "$.labels")


@cache
def _next_in_table(name: str) -> AnySelect:
    table = LABELLED_TABLES[name]
    found = select(table.c.Id).where(table.c.Id > given("after"))
    return found.order_by(table.c.Id).limit(BATCH)


@cache
def _changed(name: str) -> AnySelect:
    """Documents of a project from the latest change back to a moment, in upstream's order."""
    table, at = LABELLED_TABLES[name], given("at")
    return (
        select(table.c.Id, table.c.UpdatedAt, _labels_column(table))
        .where(
            SameText(table.c.ProjectId, [given("project")]),
            table.c.UpdatedAt >= given("since"),
            table.c.UpdatedAt <= at,
            or_(table.c.UpdatedAt < at, table.c.Id > given("after")),
        )
        .order_by(table.c.UpdatedAt.desc(), table.c.Id)
        .limit(BATCH)
    )


@cache
def _locked(name: str, parameters: int) -> AnySelect:
    table = LABELLED_TABLES[name]
    found = select(table.c.Id, _labels_column(table)).where(table.c.Id.in_(_ids(parameters)))
    return found.with_for_update()


@cache
def _indexed(parameters: int) -> AnySelect:
    table = EXT_LABEL.c
    found = select(table.DocumentId, table.LabelKey, table.LabelValue)
    return found.where(table.Kind == given("kind"), table.DocumentId.in_(_ids(parameters)))


@cache
def _remove(parameters: int) -> Delete:
    table = EXT_LABEL.c
    return delete(EXT_LABEL).where(
        table.Kind == given("kind"), table.DocumentId.in_(_ids(parameters))
    )


def _ids(parameters: int) -> list[BindParameter[Any]]:
    return [given(f"id_{i}") for i in range(parameters)]


def _parameter_count(count: int) -> int:
    """The next power of two, so that few statements serve all numbers of documents."""
    return 1 << (count - 1).bit_length()


def _id_values(ids: Sequence[bytes]) -> dict[str, Value]:
    return {f"id_{i}": ids[min(i, len(ids) - 1)] for i in range(_parameter_count(len(ids)))}


def index_documents(transaction: Transaction, name: str, ids: Sequence[bytes]) -> None:
    """Replaces the index entries of these documents, which stay locked until the end."""
    found = transaction.query(_locked(name, _parameter_count(len(ids))), _id_values(ids))
    transaction.execute(_remove(_parameter_count(len(ids))), {"kind": name, **_id_values(ids)})
    rows = [row for id, text in found for row in label_rows(name, id, _labels(text))]
    if rows:
        transaction.execute_many(ADD_LABEL, rows)


def next_documents(transaction: Transaction, name: str, after: bytes) -> Sequence[bytes]:
    """Returns the ids of the next documents of a table."""
    return [id for (id,) in transaction.query(_next_in_table(name), {"after": after})]


def read_watermark(transaction: Transaction, *names: str) -> int | None:
    """Returns the first of the watermarks that exists."""
    for name in names:
        if found := transaction.query(WATERMARK, {"name": name}):
            return int(found[0][0])
    return None


def write_watermark(transaction: Transaction, name: str, value: int) -> None:
    values: Values = {"name": name, "value": str(value)}
    if not transaction.execute(MOVE_WATERMARK, values):
        transaction.execute(ADD_WATERMARK, values)


def watermark_name(table: str, project: str = "") -> str:
    return f"labels:{table}:{project}" if project else f"labels:{table}"


class LabelIndex:
    """Indexes what others changed, before a search by label."""

    def __init__(self, database: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._refreshes: dict[tuple[str, str], Refresh] = defaultdict(Refresh)

    async def refresh(self, table: str, project: str) -> None:
        refresh = self._refreshes[table, project]
        async with refresh.lock:
            if refresh.at is not None and self._clock() - refresh.at < FRESH_SECONDS:
                return
            at = self._clock()
            if refresh.watermark is None:
                names = (watermark_name(table, project), watermark_name(table))
                refresh.watermark = refresh.saved = (
                    await self._database.read(lambda t: read_watermark(t, *names)) or 0
                )
            latest = await self._index_changes(table, project, refresh.watermark)
            refresh.watermark = max(refresh.watermark, latest - CLOCK_SKEW_SECONDS)
            refresh.at = at
            if refresh.watermark - refresh.saved >= SAVE_AFTER_SECONDS:
                name, watermark = watermark_name(table, project), refresh.watermark
                await self._database.write(
                    lambda transaction: write_watermark(transaction, name, watermark)
                )
                refresh.saved = watermark

    async def _index_changes(self, table: str, project: str, since: int) -> int:
        """Indexes what changed since then; returns the time of the latest change."""
        latest, at, after = 0, MAX_TIME, b""
        while True:
            values: Values = {"project": project, "since": since, "at": at, "after": after}
            batch, stale = await self._database.read(lambda t, v=values: _compare(t, table, v))
            if stale:
                await self._database.write(lambda t, ids=stale: index_documents(t, table, ids))
            if not batch:
                return latest
            latest = max(latest, batch[0][1])
            if len(batch) < BATCH:
                return latest
            after, at, _ = batch[-1]


@dataclass
class Refresh:
    """When a project was last indexed, and the time of the changes to begin with next."""

    at: float | None = None
    watermark: int | None = None
    saved: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def _compare(
    transaction: Transaction, table: str, values: Values
) -> tuple[Sequence[Row], Sequence[bytes]]:
    """Returns the documents that changed, and those of them whose index entries are stale."""
    batch = transaction.query(_changed(table), values)
    if not batch:
        return (), ()
    indexed: dict[bytes, dict[str, str]] = defaultdict(dict)
    ids = [id for id, _, _ in batch]
    entries = transaction.query(
        _indexed(_parameter_count(len(ids))), {"kind": table, **_id_values(ids)}
    )
    for id, key, value in entries:
        indexed[id][key] = value
    stale = [
        id
        for id, _, text in batch
        if {label_text(k): label_text(v) for k, v in _labels(text).items()} != indexed[id]
    ]
    return batch, stale


def _labels(text: str | bytes | None) -> Mapping[str, str]:
    found: object = json.loads(text) if text else None
    return cast("dict[str, str]", found) if isinstance(found, dict) else {}
