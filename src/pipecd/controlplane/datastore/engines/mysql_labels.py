# SPDX-License-Identifier: Apache-2.0
"""The label index of tables that upstream's control plane may write to as well.

Upstream does not update the index. When a database is first opened, all documents are indexed;
from then on a search by label first indexes the documents of its project that changed since the
last search. Every change of labels sets `updated_at`, and upstream has an index on project and
`updated_at`, so that this takes little time. The clocks of other servers may be behind ours by
`CLOCK_SKEW_SECONDS`.
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
    ColumnElement,
    Delete,
    Insert,
    Table,
    and_,
    delete,
    func,
    or_,
    select,
)

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.documents import ADD_LABEL, label_rows
from pipecd.controlplane.datastore.expressions import AnySelect, Row, SameText, Value, Values, param
from pipecd.controlplane.datastore.labelled_applications import add_missing_statement
from pipecd.controlplane.datastore.limits import label_text
from pipecd.controlplane.datastore.schema import (
    APPLICATION,
    DEPLOYMENT,
    EVENT,
    EXT_LABEL,
)
from pipecd.controlplane.datastore.watermarks import read_watermark, write_watermark

LABELLED_TABLES = {table.name: table for table in (APPLICATION, DEPLOYMENT, EVENT)}
BATCH = 500
MAX_TIME = 2**31 - 1
CLOCK_SKEW_SECONDS = 120
# How long a refresh stays valid, and by how much the watermark must have moved to be saved.
FRESH_SECONDS = 2.0
SAVE_AFTER_SECONDS = 300


def _labels_column(table: Table) -> ColumnElement[Any]:
    """The labels in a document, as JSON."""
    return func.json_extract(table.c.Data, "$.labels")


# The documents of a project that changed in a period, the latest change first.
CHANGED_DOCUMENTS = {
    name: select(table.c.Id, table.c.UpdatedAt, _labels_column(table))
    .where(
        SameText(table.c.ProjectId, [param("project")]),
        table.c.UpdatedAt >= param("since"),
        table.c.UpdatedAt <= param("at"),
        or_(table.c.UpdatedAt < param("at"), table.c.Id > param("after")),
    )
    .order_by(table.c.UpdatedAt.desc(), table.c.Id)
    .limit(BATCH)
    for name, table in LABELLED_TABLES.items()
}


@dataclass(frozen=True)
class LabelStatements:
    """The statements that read and replace the labels of so many documents of a table."""

    lock_documents: AnySelect
    index_entries: AnySelect
    remove_entries: Delete
    add_applications: Insert | None


@cache
def label_statements(name: str, parameters: int) -> LabelStatements:
    table, entry = LABELLED_TABLES[name], EXT_LABEL.c
    ids = [param(f"id_{i}") for i in range(parameters)]
    of_documents = and_(entry.Kind == param("kind"), entry.DocumentId.in_(ids))
    return LabelStatements(
        select(table.c.Id, _labels_column(table)).where(table.c.Id.in_(ids)).with_for_update(),
        select(entry.DocumentId, entry.LabelKey, entry.LabelValue).where(of_documents),
        delete(EXT_LABEL).where(of_documents),
        add_missing_statement(table.c.Id.in_(ids)) if table is DEPLOYMENT else None,
    )


def _padded_ids(ids: Sequence[bytes]) -> dict[str, Value]:
    """The parameters of these ids.

    The last id is repeated up to a power of two, so that few statements serve all numbers of
    documents.
    """
    count = 1 << (len(ids) - 1).bit_length()
    return {f"id_{i}": ids[min(i, len(ids) - 1)] for i in range(count)}


def index_documents(transaction: Transaction, name: str, ids: Sequence[bytes]) -> None:
    """Replaces the index entries of these documents, and locks them until the commit."""
    padded = _padded_ids(ids)
    statements = label_statements(name, len(padded))
    documents = transaction.query(statements.lock_documents, padded)
    transaction.execute(statements.remove_entries, {"kind": name, **padded})
    rows = [row for id, text in documents for row in label_rows(name, id, _labels(text))]
    if rows:
        transaction.execute_many(ADD_LABEL, rows)
        if statements.add_applications is not None:
            transaction.execute(statements.add_applications, padded)


def fill_label_index(transaction: Transaction, name: str) -> None:
    """Indexes a whole table once, in batches; a later refresh indexes concurrent changes."""
    watermark = watermark_name(name)
    if read_watermark(transaction, watermark) is not None:
        return
    started_at = int(time.time())
    table, after = LABELLED_TABLES[name], b""
    statement = (
        select(table.c.Id).where(table.c.Id > param("after")).order_by(table.c.Id).limit(BATCH)
    )
    while ids := [id for (id,) in transaction.query(statement, {"after": after})]:
        transaction.run_sql("START TRANSACTION")
        index_documents(transaction, name, ids)
        transaction.run_sql("COMMIT")
        after = ids[-1]
    write_watermark(transaction, watermark, started_at - CLOCK_SKEW_SECONDS)


def watermark_name(table: str, project: str = "") -> str:
    return f"labels:{table}:{project}" if project else f"labels:{table}"


class LabelIndex:
    """Indexes the documents that other programs changed, before a search by label."""

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
        """Indexes the documents that changed since then; returns the time of the latest change."""
        latest, at, after = 0, MAX_TIME, b""
        while True:
            values: Values = {"project": project, "since": since, "at": at, "after": after}
            batch, stale = await self._database.read(
                lambda t, v=values: _stale_documents(t, table, v)
            )
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
    """When a project was last indexed, and the update time from which the next refresh starts."""

    at: float | None = None
    watermark: int | None = None
    saved: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


def _stale_documents(
    transaction: Transaction, table: str, values: Values
) -> tuple[Sequence[Row], Sequence[bytes]]:
    """Returns the documents that changed, and those of them whose index entries are stale."""
    batch = transaction.query(CHANGED_DOCUMENTS[table], values)
    if not batch:
        return (), ()
    indexed: dict[bytes, dict[str, str]] = defaultdict(dict)
    padded = _padded_ids([id for id, _, _ in batch])
    statement = label_statements(table, len(padded)).index_entries
    for id, key, value in transaction.query(statement, {"kind": table, **padded}):
        indexed[id][key] = value
    stale = [
        id
        for id, _, text in batch
        if {label_text(k): label_text(v) for k, v in _labels(text).items()} != indexed[id]
    ]
    return batch, stale


def _labels(text: str | bytes | None) -> Mapping[str, str]:
    labels: object = json.loads(text) if text else None
    return cast("dict[str, str]", labels) if isinstance(labels, dict) else {}
