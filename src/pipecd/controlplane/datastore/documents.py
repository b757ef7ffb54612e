# SPDX-License-Identifier: Apache-2.0
"""A table of documents: what all nine of them have in common."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar, cast

from google.protobuf.message import Message
from sqlalchemy import Table, delete, insert, select, update

from pipecd.controlplane.datastore.cursor import Position, decode_cursor, encode_cursor
from pipecd.controlplane.datastore.database import Database, Duplicate, OutcomeUnknown, Transaction
from pipecd.controlplane.datastore.expressions import Row, SameDocument, Values, given
from pipecd.controlplane.datastore.limits import check_limits, label_text
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    OLDEST,
    Condition,
    Order,
    Selection,
    any_of,
    at_least,
)
from pipecd.controlplane.datastore.rowid import row_id
from pipecd.controlplane.datastore.schema import EXT_LABEL
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import AlreadyExists, NotFound, PipecdError, UserMistake
from pipecd.wire.validation import check

M = TypeVar("M", bound=Message)

# Longer lists are parsed on a thread, so that the event loop is not held up.
MAX_PARSED_ON_LOOP = 100
# How many documents are read at a time when all of them are requested.
BATCH_SIZE = 500
# Some engines take very long to make a plan for a long list.
IDS_PER_QUERY = 512
# As many documents with a label are better looked at one by one.
RARE_LABEL_LIMIT = 1024
# The fields behind the columns of times.
TIMES = {"CreatedAt": "created_at", "CompletedAt": "completed_at"}

# Of the texts; their parsed forms take about as much again.
MAX_CACHED_CHARACTERS = 1_000_000
MAX_CACHED_ROWS = 1000

ADD_LABEL = insert(EXT_LABEL).values(
    Kind=given("kind"),
    DocumentId=given("id"),
    LabelKey=given("key"),
    LabelValue=given("value"),
)
LABELLED = (
    select(EXT_LABEL.c.DocumentId)
    .where(
        EXT_LABEL.c.Kind == given("kind"),
        EXT_LABEL.c.LabelKey == given("key"),
        EXT_LABEL.c.LabelValue == given("value"),
    )
    .limit(given("limit"))
)
REMOVE_LABELS = delete(EXT_LABEL).where(
    EXT_LABEL.c.Kind == given("kind"), EXT_LABEL.c.DocumentId == given("id")
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
class Page(Generic[M]):
    """One page of a list; an empty `cursor` means that nothing follows."""

    items: tuple[M, ...]
    cursor: str = ""


class Stored(Protocol):
    """What every stored message has; generated types share no such class."""

    id: str
    created_at: int
    updated_at: int


@dataclass(frozen=True)
class Kind(Generic[M]):
    """A table and its message; `extra` is the field copied to upstream's `_extra`."""

    table: Table
    message: type[M]
    extra: str = "id"
    labelled: bool = False


@dataclass
class _Update(Generic[M]):
    """A change to make, and the text that may be stored already since its answer was lost."""

    id: str
    change: Callable[[M], None]
    now: int
    unconfirmed: str = ""


@dataclass(frozen=True)
class _CompareAndSwap(Generic[M]):
    """The text a document should have, the one that replaces it, and the document of that."""

    expected: str
    text: str
    after: M


class DocumentCache(Generic[M]):
    """Parses a text once, and remembers which text a row was last seen with here."""

    def __init__(self, message: type[M]) -> None:
        self._message = message
        self._by_text: OrderedDict[str, M] = OrderedDict()
        self._characters = 0
        self._latest: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def parsed(self, text: str) -> M:
        """The document of a text, for the caller to keep and to change."""
        with self._lock:
            document = self._by_text.get(text)
            if document is not None:
                self._by_text.move_to_end(text)
        if document is None:
            document = from_json(text, self._message)
            self._store(text, document)
        return self._copy(document)

    def written(self, row: bytes, text: str, document: M) -> None:
        """Remembers what a row holds now, or soon."""
        self._store(text, self._copy(document))
        with self._lock:
            self._latest[row] = text
            self._latest.move_to_end(row)
            if len(self._latest) > MAX_CACHED_ROWS:
                self._latest.popitem(last=False)

    def latest(self, row: bytes) -> str | None:
        """The text that the row most likely has."""
        return self._latest.get(row)

    def _copy(self, document: M) -> M:
        copy = self._message()
        copy.CopyFrom(document)
        return copy

    def _store(self, text: str, document: M) -> None:
        with self._lock:
            if text not in self._by_text:
                self._characters += len(text)
            self._by_text[text] = document
            self._by_text.move_to_end(text)
            while self._characters > MAX_CACHED_CHARACTERS:
                dropped, _ = self._by_text.popitem(last=False)
                self._characters -= len(dropped)


class Documents(Generic[M]):
    """A table of documents of one kind, each with an id, on any engine.

    `created_at` and `updated_at` are filled in when they are 0; every update sets `updated_at` to
    now unless `touch` is false.
    """

    def __init__(self, database: Database, kind: Kind[M], *, now: Now = utc_now) -> None:
        self._database = database
        self._kind = kind
        self._now = now
        table, id = kind.table, given("id")
        self._get = select(table.c.Data).where(table.c.Id == id)
        self._get_locked = self._get.with_for_update()
        self._insert = insert(table).values(Id=id, Data=given("data"))
        # The name of a column may not serve as the name of a parameter here.
        self._update = update(table).where(table.c.Id == id).values(Data=given("data"))
        self._swap = self._update.where(SameDocument(table.c.Data, given("expected")))
        self._cache = DocumentCache(kind.message)

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
                documents[_stored(document).id] = document
        return documents

    async def add(self, document: M) -> None:
        """Stores a new document, or raises AlreadyExists; fills in its times if they are 0."""
        stored = _stored(document)
        now = to_unix(self._now())
        stored.created_at = stored.created_at or now
        stored.updated_at = stored.updated_at or now
        text = self._checked(document)
        await self._database.write(lambda transaction: self._add(transaction, document, text))

    async def update(self, id: str, change: Callable[[M], None], *, touch: bool = True) -> M:
        """Reads, changes in place and writes under a lock; an error of `change` undoes all of it.

        Returns the stored document. Concurrent updates are never lost. `change` may run on another
        thread and, after a failed transaction, again on a fresh copy: it must change nothing but
        the document.
        """
        update = _Update(id, change, to_unix(self._now()) if touch else 0)
        swap = self._swap_of(update)
        if swap is not None and await self._swapped(update, swap):
            return swap.after
        return await self._database.write(lambda transaction: self._change(transaction, update))

    async def all_of(self, conditions: Iterable[Condition], order: Order) -> tuple[M, ...]:
        """Every document that meets the conditions."""
        return await self._select(Selection(self._kind.table.name, tuple(conditions), order))

    async def lookup_of(self, selection: Selection) -> tuple[M, ...]:
        """Every document of a selection of which an index finds a few at once."""
        rows = await self._database.lookup(selection.statement, selection.values)
        return self._parsed(rows)

    async def page_of(self, conditions: Iterable[Condition], page: PageRequest) -> Page[M]:
        """One page of the documents that meet the conditions, newest update first."""
        order = NEWEST_UPDATE
        size = max(page.size, 0)
        selection = Selection(
            self._kind.table.name,
            (*conditions, *at_least("UpdatedAt", page.min_updated_at)),
            order,
            after=decode_cursor(page.cursor, order.column) if page.cursor else None,
            # One more than asked for tells whether anything follows.
            limit=size + 1 if size else 0,
        )
        documents = await self._select(selection)
        if not size or len(documents) <= size:
            return Page(documents)
        last = _stored(documents[size - 1])
        cursor = encode_cursor(Position(last.id, last.updated_at), order.column)
        return Page(documents[:size], cursor)

    async def batches_of(
        self, conditions: Iterable[Condition], order: Order, *, size: int = BATCH_SIZE
    ) -> AsyncIterator[tuple[M, ...]]:
        """Every document that meets the conditions, some at a time, by a column of times."""
        selection = Selection(self._kind.table.name, tuple(conditions), order, limit=size)
        while documents := await self._select(selection):
            yield documents
            if len(documents) < size:
                return
            last = documents[-1]
            value: int = getattr(last, TIMES[order.column])
            selection = replace(selection, after=Position(_stored(last).id, value))

    async def first_of(self, conditions: Iterable[Condition], order: Order) -> M | None:
        """The first document that meets the conditions."""
        selection = Selection(self._kind.table.name, tuple(conditions), order, limit=1)
        documents = await self._select(selection)
        return documents[0] if documents else None

    async def _select(self, selection: Selection) -> tuple[M, ...]:
        if project := selection.project_by_label:
            await self._database.refresh_labels(self._kind.table.name, project)
        if (narrowed := await self._narrow_by_label(selection)) is None:
            return ()
        rows = await self._database.select(narrowed)
        if len(rows) > MAX_PARSED_ON_LOOP:
            return await asyncio.to_thread(self._parsed, rows)
        return self._parsed(rows)

    def _parsed(self, rows: Sequence[Row]) -> tuple[M, ...]:
        return tuple(self._cache.parsed(data) for (data,) in rows)

    async def _narrow_by_label(self, selection: Selection) -> Selection | None:
        """Names the documents with a rare label, since no engine knows which ones are rare.

        A list is walked in its order until a page is full. That is soon with a label that many
        have; with one of few it would take the whole table. None when no document has the label.
        """
        for key, value in selection.labels:
            values = {
                "kind": self._kind.table.name,
                "key": key,
                "value": value,
                "limit": RARE_LABEL_LIMIT + 1,
            }
            rows = await self._database.query(LABELLED, values)
            if not rows:
                return None
            if len(rows) <= RARE_LABEL_LIMIT:
                among = any_of("Id", *(id for (id,) in rows))
                return replace(selection, conditions=(*among, *selection.conditions))
        return selection

    def _only_text(self, rows: Sequence[Row]) -> str:
        if not rows:
            raise NotFound(f"{self._kind.table.name} is not found")
        return rows[0][0]

    def _add(self, transaction: Transaction, document: M, text: str) -> None:
        id = _stored(document).id
        try:
            transaction.execute(self._insert, {"id": row_id(id), "data": text})
        except Duplicate as e:
            raise AlreadyExists(f"{self._kind.table.name} {id!r} exists already") from e
        if self._kind.labelled:
            self._add_labels(transaction, id, _labels(document))

    def _change(self, transaction: Transaction, update: "_Update[M]") -> M:
        row = row_id(update.id)
        before = self._cache.parsed(
            self._only_text(transaction.query(self._get_locked, {"id": row}))
        )
        # Some engines store a text in a form of their own.
        if update.unconfirmed and before == self._cache.parsed(update.unconfirmed):
            return before
        after = self._changed(before, update)
        text = self._checked_change(before, after)
        transaction.execute(self._update, {"id": row, "data": text})
        if self._kind.labelled and _labels(before) != _labels(after):
            transaction.execute(REMOVE_LABELS, {"kind": self._kind.table.name, "id": row})
            self._add_labels(transaction, update.id, _labels(after))
        self._cache.written(row, text, after)
        return after

    def _swap_of(self, update: "_Update[M]") -> "_CompareAndSwap[M] | None":
        """A compare-and-swap against the cached document; None when there is nothing to compare.

        It loses as few updates as a lock does, and a document that is changed again and again, such
        as a running deployment, does not have to be read each time.
        """
        expected = self._cache.latest(row_id(update.id))
        if expected is None:
            return None
        before = self._cache.parsed(expected)
        try:
            after = self._changed(before, update)
            text = self._checked_change(before, after)
        except PipecdError:
            # Whether it is to be refused is judged by what is stored.
            return None
        if self._kind.labelled and _labels(before) != _labels(after):
            return None
        return _CompareAndSwap(expected, text, after)

    async def _swapped(self, update: "_Update[M]", swap: "_CompareAndSwap[M]") -> bool:
        row = row_id(update.id)
        values = {"id": row, "expected": swap.expected, "data": swap.text}
        try:
            done = await self._database.execute(self._swap, values) > 0
        except OutcomeUnknown:
            update.unconfirmed = swap.text
            return False
        if done:
            self._cache.written(row, swap.text, swap.after)
        return done

    def _changed(self, before: M, update: "_Update[M]") -> M:
        after = self._kind.message()
        after.CopyFrom(before)
        update.change(after)
        stored, was = _stored(after), _stored(before)
        if stored.id != was.id:
            raise ValueError(f"an update must not change the id {was.id!r} to {stored.id!r}")
        if update.now:
            # A clock that went back must not move a document down the pages of a list.
            stored.updated_at = max(update.now, was.updated_at)
        return after

    def _add_labels(self, transaction: Transaction, id: str, labels: Mapping[str, str]) -> None:
        if labels:
            transaction.execute_many(
                ADD_LABEL, label_rows(self._kind.table.name, row_id(id), labels)
            )

    def _checked(self, document: M) -> str:
        """The stored form of a document that is valid and that every engine can hold."""
        check(document)
        text = self._text(document)
        check_limits(self._kind.table, document, text, extra=self._kind.extra)
        return text

    def _checked_change(self, before: M, after: M) -> str:
        """Refuses a change that makes a document invalid; what was so already may be changed."""
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


def label_rows(kind: str, id: bytes, labels: Mapping[str, str]) -> list[Values]:
    """The rows of the label index for one document."""
    return [
        {"kind": kind, "id": id, "key": label_text(key), "value": label_text(value)}
        for key, value in labels.items()
    ]


def _stored(document: Message) -> Stored:
    return cast("Stored", document)


def _labels(document: Message) -> Mapping[str, str]:
    return cast("Any", document).labels
