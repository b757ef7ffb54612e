# SPDX-License-Identifier: Apache-2.0
"""A cache of parsed documents, and of what lists of all documents need of each."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, Protocol, TypeVar, cast

from google.protobuf.message import Message

from pipecd.model.document import from_json

M = TypeVar("M", bound=Message)
D = TypeVar("D")

# A parsed document takes some 6 kB beside its text, and parsing it again 25 microseconds. So the
# cache has those that change right now; more of them would only fill it with the past.
MAX_CACHED_CHARACTERS = 100_000


class Stored(Protocol):
    """What every stored message has; generated types share no such class."""

    id: str
    created_at: int
    updated_at: int


@dataclass
class _Entry(Generic[M]):
    """A parsed document, and what a function has derived from it last.

    `row` is the row to which this process has written the document, if it has.
    """

    document: M
    derived: tuple[Callable[[M], object], object] | None = None
    row: bytes | None = None


class DocumentCache(Generic[M]):
    """Caches parsed documents by their text, and the last text written to each row.

    Of each document only the version that was read or written last is cached: applications change
    with every deployment, and their earlier versions would fill the cache of a small installation.
    """

    def __init__(self, message: type[M], max_characters: int = MAX_CACHED_CHARACTERS) -> None:
        self._message, self._max_characters = message, max_characters
        self._by_text: OrderedDict[str, _Entry[M]] = OrderedDict()
        self._text_of: dict[str, str] = {}
        self._characters = 0
        self._latest: dict[bytes, str] = {}
        self._lock = Lock()

    def parsed(self, text: str) -> M:
        """Returns a copy of the document of this text, which the caller may change."""
        with self._lock:
            entry = self._by_text.get(text)
            if entry is not None:
                self._by_text.move_to_end(text)
        return self._copy((entry or self._parse(text)).document)

    def shared(self, texts: Iterable[str]) -> tuple[M, ...]:
        """Returns the cached documents of these texts themselves, which nobody may change."""
        by_text = self._by_text
        return tuple((by_text.get(text) or self._parse(text)).document for text in texts)

    def derived(self, texts: Iterable[str], derive: Callable[[M], D]) -> tuple[D, ...]:
        """Returns what `derive` makes of the document of each text, from the cache if it can.

        A document has the result of one function at a time. The function must not change it.
        """
        results: list[D] = []
        by_text = self._by_text
        for text in texts:
            # A list reads all of them, so that none has to be moved to the end.
            entry = by_text.get(text) or self._parse(text)
            # Another thread may replace it at any time.
            derived = entry.derived
            if derived is None or derived[0] is not derive:
                derived = entry.derived = (derive, derive(entry.document))
            results.append(cast("D", derived[1]))
        return tuple(results)

    def written(self, row: bytes, text: str, document: M) -> None:
        """Caches the text that was written to a row, or is about to be committed."""
        self._store(text, _Entry(self._copy(document), row=row))

    def latest(self, row: bytes) -> str | None:
        """Returns the text that this process last wrote to the row, if it is cached."""
        return self._latest.get(row)

    def _parse(self, text: str) -> _Entry[M]:
        entry = _Entry(from_json(text, self._message))
        self._store(text, entry)
        return entry

    def _copy(self, document: M) -> M:
        copy = self._message()
        copy.CopyFrom(document)
        return copy

    def _store(self, text: str, entry: _Entry[M]) -> None:
        id = stored_fields(entry.document).id
        with self._lock:
            if (before := self._text_of.get(id)) is not None:
                self._drop(before)
            self._by_text[text] = entry
            self._text_of[id] = text
            self._characters += len(text)
            if entry.row is not None:
                self._latest[entry.row] = text
            while self._characters > self._max_characters:
                self._drop(next(iter(self._by_text)))

    def _drop(self, text: str) -> None:
        entry = self._by_text.pop(text)
        self._characters -= len(text)
        del self._text_of[stored_fields(entry.document).id]
        if entry.row is not None:
            self._latest.pop(entry.row, None)


def stored_fields(document: Message) -> Stored:
    """The fields of a document that every kind of them has."""
    return cast("Stored", document)
