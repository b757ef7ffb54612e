# SPDX-License-Identifier: Apache-2.0
"""The base class of the nine tables of documents: get, add, update, lists and pages."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar, cast

from google.protobuf.message import Message
from sqlalchemy import Table, delete, insert, select, update

from pipecd.cache import LruCache
from pipecd.controlplane.datastore.cursor import Position, decode_cursor, encode_cursor
from pipecd.controlplane.datastore.database import Database, Duplicate, OutcomeUnknown, Transaction
from pipecd.controlplane.datastore.document_cache import (
    MAX_CACHED_CHARACTERS,
    DocumentCache,
    stored_fields,
)
from pipecd.controlplane.datastore.expressions import Row, SameDocument, Values, param
from pipecd.controlplane.datastore.limits import check_limits, label_text
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    OLDEST,
    Condition,
    Order,
    Selection,
    any_of,
    at_least,
    row_id,
)
from pipecd.controlplane.datastore.schema import EXT_LABEL
from pipecd.controlplane.datastore.sequences import number_document, sequences_of
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import to_json
from pipecd.model.errors import AlreadyExists, NotFound, PipecdError, UserMistake
from pipecd.wire.validation import check

M = TypeVar("M", bound=Message)
D = TypeVar("D")
Insertion: TypeAlias = Callable[[Transaction], int | None]

# Longer lists are parsed on a thread, so that the event loop is not held up.
MAX_PARSED_ON_LOOP = 100
# How many documents are read at a time when all of them are requested.
BATCH_SIZE = 500
# Some engines take very long to plan a query with a long list of ids.
IDS_PER_QUERY = 512
# Up to so many documents with a label, a list is selected by their ids.
RARE_LABEL_LIMIT = 1024
# The fields from which the columns of times are computed.
TIME_FIELDS = {"CreatedAt": "created_at", "CompletedAt": "completed_at"}

# Of the deployments that have not completed; a push may create hundreds.
MAX_CACHED_SEQUENCES = 1000

NO_LABELS: Mapping[str, str] = {}

ADD_LABEL = insert(EXT_LABEL).values(
    Kind=param("kind"),
    DocumentId=param("id"),
    LabelKey=param("key"),
    LabelValue=param("value"),
)
LABELLED = (
    select(EXT_LABEL.c.DocumentId)
    .where(
        EXT_LABEL.c.Kind == param("kind"),
        EXT_LABEL.c.LabelKey == param("key"),
        EXT_LABEL.c.LabelValue == param("value"),
    )
    .limit(param("limit"))
)
REMOVE_LABELS = delete(EXT_LABEL).where(
    EXT_LABEL.c.Kind == param("kind"), EXT_LABEL.c.DocumentId == param("id")
)


@dataclass(frozen=True)
class PageRequest:
    """Which part of a list is requested; a `size` of 0 means all of it.

    `cursor` is the opaque text of an earlier page. `min_updated_at` cuts off older documents.
    """

    size: int = 0
    cursor: str = ""
    min_updated_at: int = 0


EVERYTHING = PageRequest()


@dataclass(frozen=True)
class Page(Generic[D]):
    """One page of a list; an empty `cursor` means that nothing follows."""

    items: tuple[D, ...]
    cursor: str = ""


@dataclass(frozen=True)
class Kind(Generic[M]):
    """A table and its message; `extra` is the field copied to upstream's `_extra`.

    `scope` returns the scope within which new documents are numbered, see `sequences`.
    `cached_characters` limits the parsed documents that are cached: a kind whose lists are read as
    a whole needs as many as a list has, since a shorter cache is never hit by a scan.
    """

    table: Table
    message: type[M]
    extra: str = "id"
    labelled: bool = False
    scope: Callable[[M], str] | None = None
    cached_characters: int = MAX_CACHED_CHARACTERS


@dataclass
class _Update(Generic[M]):
    """A change to make; `unconfirmed` is a text that was written without a confirmation."""

    id: str
    change: Callable[[M], None]
    now: int
    unconfirmed: str = ""


class Documents(Generic[M]):
    """A table of documents of one kind, each with an id, on any engine.

    `created_at` and `updated_at` are filled in when they are 0; every update sets `updated_at` to
    now unless `touch` is false.
    """

    def __init__(self, database: Database, kind: Kind[M], *, now: Now = utc_now) -> None:
        self._database = database
        self._kind = kind
        self._now = now
        table, id = kind.table, param("id")
        self._get = select(table.c.Data).where(table.c.Id == id)
        self._get_locked = self._get.with_for_update()
        self._insert = insert(table).values(Id=id, Data=param("data"))
        # SQLAlchemy reserves the names of columns as parameters of an update.
        self._update = update(table).where(table.c.Id == id).values(Data=param("data"))
        self._swap = self._update.where(SameDocument(table.c.Data, param("expected")))
        self._cache = DocumentCache(kind.message, kind.cached_characters)
        self._sequences = LruCache[str, int](MAX_CACHED_SEQUENCES)

    async def get(self, id: str) -> M:
        """Returns the document, or raises NotFound."""
        rows = await self._database.lookup(self._get, {"id": row_id(id)})
        return self._cache.parsed(self._only_text(rows))

    async def get_many(self, ids: tuple[str, ...]) -> dict[str, M]:
        """Returns those of the documents that exist, by id."""
        row_ids = tuple({row_id(id): None for id in ids})
        documents: dict[str, M] = {}
        for start in range(0, len(row_ids), IDS_PER_QUERY):
            among = any_of("Id", *row_ids[start : start + IDS_PER_QUERY])
            for document in await self.all_of(among, OLDEST):
                documents[stored_fields(document).id] = document
        return documents

    async def add(
        self, document: M, *, follows: str | None = None, beside: Sequence[Insertion] = ()
    ) -> None:
        """Stores a new document, or raises AlreadyExists; fills in its times if they are 0.

        With `follows` it raises Conflict unless that document is the last one of the scope. What is
        `beside` is stored in the same transaction, or not at all.
        """
        insert = self.insertion(document, follows=follows)

        def work(transaction: Transaction) -> int | None:
            number = insert(transaction)
            for insertion in beside:
                insertion(transaction)
            return number

        if (number := await self._database.write(work)) is not None:
            self._sequences.put(stored_fields(document).id, number)

    def insertion(self, document: M, *, follows: str | None = None) -> Insertion:
        """The part of a transaction that stores a new document; returns its sequence number."""
        stored = stored_fields(document)
        now = to_unix(self._now())
        stored.created_at = stored.created_at or now
        stored.updated_at = stored.updated_at or now
        text = self._checked(document)

        def insert(transaction: Transaction) -> int | None:
            try:
                transaction.execute(self._insert, {"id": row_id(stored.id), "data": text})
            except Duplicate as e:
                raise AlreadyExists(f"{self._kind.table.name} {stored.id!r} exists already") from e
            self._add_labels(transaction, document)
            if self._kind.scope is None:
                return None
            return number_document(
                transaction,
                self._kind.table.name,
                self._kind.scope(document),
                stored.id,
                follows=follows,
            )

        return insert

    async def sequences(self, ids: Collection[str]) -> dict[str, int]:
        """Returns the sequence numbers of those of the documents that have one, by id."""
        # A number never changes.
        numbers = {id: number for id in ids if (number := self._sequences.get(id))}
        if unknown := [id for id in ids if id not in numbers]:
            read = await sequences_of(self._database, self._kind.table.name, unknown)
            for id, number in read.items():
                self._sequences.put(id, number)
            numbers |= read
        return numbers

    async def update(self, id: str, change: Callable[[M], None], *, touch: bool = True) -> M:
        """Applies `change` to the document and returns what is stored; an error changes nothing.

        Concurrent updates are never lost. `change` may run on another thread, and is retried on a
        fresh copy after a failed transaction: it must change nothing but the document.
        """
        update = _Update(id, change, to_unix(self._now()) if touch else 0)
        if (swapped := await self._compare_and_swap(update)) is not None:
            return swapped
        return await self._database.write(
            lambda transaction: self._update_locked(transaction, update)
        )

    async def all_of(self, conditions: Iterable[Condition], order: Order) -> tuple[M, ...]:
        """Returns every document that meets the conditions."""
        return await self._select(Selection(self._kind.table.name, tuple(conditions), order))

    async def shared_of(self, conditions: Iterable[Condition], order: Order) -> tuple[M, ...]:
        """Returns every document that meets the conditions, as it is cached.

        Nobody may change them; copies of ten thousand take as long as reading their rows.
        """
        return await self._from_texts(conditions, order, self._cache.shared)

    async def derived_of(
        self, conditions: Iterable[Condition], order: Order, derive: Callable[[M], D]
    ) -> tuple[D, ...]:
        """Returns what `derive` makes of every document that meets the conditions.

        It is computed once for each version of a document, so `derive` depends on nothing else, and
        it must not change the document.
        """
        return await self._from_texts(
            conditions, order, lambda texts: self._cache.derived(texts, derive)
        )

    async def lookup_of(self, selection: Selection, *, mentioning: str = "") -> tuple[M, ...]:
        """Returns every document of a selection that an index lookup answers with few rows.

        Documents whose text does not contain `mentioning` are left out without being parsed.
        """
        rows = await self._database.lookup(selection.statement, selection.values)
        return self._parsed([row for row in rows if mentioning in row[0]])

    async def page_of(self, conditions: Iterable[Condition], page: PageRequest) -> Page[M]:
        """Returns a page of the documents that meet the conditions, newest update first."""
        order = NEWEST_UPDATE
        size = max(page.size, 0)
        selection = Selection(
            self._kind.table.name,
            (*conditions, *at_least("UpdatedAt", page.min_updated_at)),
            order,
            after=decode_cursor(page.cursor, order.column) if page.cursor else None,
            # One more than requested, to know whether there is a next page.
            limit=size + 1 if size else 0,
        )
        documents = await self._select(selection)
        if not size or len(documents) <= size:
            return Page(documents)
        last = stored_fields(documents[size - 1])
        cursor = encode_cursor(Position(last.id, last.updated_at), order.column)
        return Page(documents[:size], cursor)

    async def batches_of(
        self, conditions: Iterable[Condition], order: Order, *, size: int = BATCH_SIZE
    ) -> AsyncIterator[tuple[M, ...]]:
        """Iterates in batches over the documents that meet the conditions, by a column of times."""
        selection = Selection(self._kind.table.name, tuple(conditions), order, limit=size)
        while documents := await self._select(selection):
            yield documents
            if len(documents) < size:
                return
            last = documents[-1]
            value: int = getattr(last, TIME_FIELDS[order.column])
            selection = replace(selection, after=Position(stored_fields(last).id, value))

    async def first_of(self, conditions: Iterable[Condition], order: Order) -> M | None:
        """Returns the first document that meets the conditions."""
        selection = Selection(self._kind.table.name, tuple(conditions), order, limit=1)
        documents = await self._select(selection)
        return documents[0] if documents else None

    async def _from_texts(
        self,
        conditions: Iterable[Condition],
        order: Order,
        read: Callable[[Sequence[str]], tuple[D, ...]],
    ) -> tuple[D, ...]:
        rows = await self._selected(Selection(self._kind.table.name, tuple(conditions), order))
        texts = [text for (text,) in rows]
        if len(texts) > MAX_PARSED_ON_LOOP:
            return await asyncio.to_thread(read, texts)
        return read(texts)

    async def _select(self, selection: Selection) -> tuple[M, ...]:
        rows = await self._selected(selection)
        if len(rows) > MAX_PARSED_ON_LOOP:
            return await asyncio.to_thread(self._parsed, rows)
        return self._parsed(rows)

    async def _selected(self, selection: Selection) -> Sequence[Row]:
        if project := selection.project_by_label:
            await self._database.refresh_labels(self._kind.table.name, project)
        return await self._rows(selection)

    def _parsed(self, rows: Sequence[Row]) -> tuple[M, ...]:
        return tuple(self._cache.parsed(data) for (data,) in rows)

    async def _rows(self, selection: Selection) -> Sequence[Row]:
        """Selects the rows, by the ids of the documents with a rare label if it has one.

        Engines scan a list in its order until a page is full. That is fast for a common label, but
        scans the whole table for a rare one.
        """
        for key, value in selection.labels:
            values = {
                "kind": self._kind.table.name,
                "key": key,
                "value": value,
                "limit": RARE_LABEL_LIMIT + 1,
            }
            ids = await self._database.query(LABELLED, values)
            if not ids:
                return ()
            if len(ids) <= RARE_LABEL_LIMIT:
                among = any_of("Id", *(id for (id,) in ids))
                return await self._database.select(selection.and_also(among))
        return await self._database.select(selection)

    def _only_text(self, rows: Sequence[Row]) -> str:
        if not rows:
            raise NotFound(f"{self._kind.table.name} is not found")
        return rows[0][0]

    def _update_locked(self, transaction: Transaction, update: "_Update[M]") -> M:
        row = row_id(update.id)
        before = self._cache.parsed(
            self._only_text(transaction.query(self._get_locked, {"id": row}))
        )
        # Parsed documents are compared, because some engines store the JSON in another form.
        if update.unconfirmed and before == self._cache.parsed(update.unconfirmed):
            return before
        after = self._changed(before, update)
        if after is before:
            return before
        text = self._checked_change(before, after)
        transaction.execute(self._update, {"id": row, "data": text})
        if self._labels(after) != self._labels(before):
            transaction.execute(REMOVE_LABELS, {"kind": self._kind.table.name, "id": row})
            self._add_labels(transaction, after)
        self._cache.written(row, text, after)
        return after

    async def _compare_and_swap(self, update: "_Update[M]") -> M | None:
        """Updates the row in one statement if it still holds the cached text, else returns None.

        No update is lost, and a document that changes often, such as a running deployment, need not
        be read before each change.
        """
        row = row_id(update.id)
        expected = self._cache.latest(row)
        if expected is None:
            return None
        before = self._cache.parsed(expected)
        try:
            after = self._changed(before, update)
            text = self._checked_change(before, after) if after is not before else expected
        except PipecdError:
            # The cached document may be outdated; the stored one decides.
            return None
        is_stored = False
        if after is before:
            rows = await self._database.lookup(self._get, {"id": row})
            is_stored = self._cache.parsed(self._only_text(rows)) == before
        elif self._labels(before) == self._labels(after):
            values = {"id": row, "expected": expected, "data": text}
            try:
                is_stored = await self._database.execute(self._swap, values) > 0
            except OutcomeUnknown:
                update.unconfirmed = text
            if is_stored:
                self._cache.written(row, text, after)
        return after if is_stored else None

    def _changed(self, before: M, update: "_Update[M]") -> M:
        """Returns the changed document, or `before` itself if the update changes nothing."""
        after = self._kind.message()
        after.CopyFrom(before)
        update.change(after)
        if after == before:
            return before
        stored, was = stored_fields(after), stored_fields(before)
        if stored.id != was.id:
            raise ValueError(f"an update must not change the id {was.id!r} to {stored.id!r}")
        if update.now:
            # If the clock goes back, the document must not move down in lists.
            stored.updated_at = max(update.now, was.updated_at)
        return after

    def _add_labels(self, transaction: Transaction, document: M) -> None:
        if labels := self._labels(document):
            id = row_id(stored_fields(document).id)
            transaction.execute_many(ADD_LABEL, label_rows(self._kind.table.name, id, labels))

    def _checked(self, document: M) -> str:
        """Returns the JSON of a document; UserMistake if an engine cannot hold it."""
        check(document)
        text = self._text(document)
        check_limits(self._kind.table, document, text, extra=self._kind.extra)
        return text

    def _checked_change(self, before: M, after: M) -> str:
        """Refuses a change that makes a document invalid; one that was so already may change."""
        try:
            return self._checked(after)
        except UserMistake as mistake:
            try:
                self._checked(before)
            except UserMistake as earlier:
                if earlier.message == mistake.message:
                    return self._text(after)
            raise

    def _text(self, document: M) -> str:
        return to_json(document, extra=getattr(document, self._kind.extra))

    def _labels(self, document: M) -> Mapping[str, str]:
        return cast("Any", document).labels if self._kind.labelled else NO_LABELS


def label_rows(kind: str, id: bytes, labels: Mapping[str, str]) -> list[Values]:
    """Returns the rows of the label index for one document."""
    return [
        {"kind": kind, "id": id, "key": label_text(key), "value": label_text(value)}
        for key, value in labels.items()
    ]
