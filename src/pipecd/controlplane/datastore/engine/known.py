# SPDX-License-Identifier: Apache-2.0
"""Documents that this process has met lately.

A document is known by its text, so that what is known of it is always right; whether the text is
still the one that is stored is for the database to say.
"""

from collections import OrderedDict
from threading import Lock
from typing import Generic, TypeVar

from google.protobuf.message import Message

from pipecd.model.document import from_json

M = TypeVar("M", bound=Message)

# Of the texts; their parsed forms take about as much again.
MOST_CHARACTERS = 1_000_000
MOST_ROWS = 1000


class Known(Generic[M]):
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
            found = self._by_text.get(text)
            if found is not None:
                self._by_text.move_to_end(text)
        if found is None:
            found = from_json(text, self._message)
            self._keep(text, found)
        return self._copy(found)

    def written(self, row: bytes, text: str, document: M) -> None:
        """Remembers what a row holds now, or soon."""
        self._keep(text, self._copy(document))
        with self._lock:
            self._latest[row] = text
            self._latest.move_to_end(row)
            if len(self._latest) > MOST_ROWS:
                self._latest.popitem(last=False)

    def latest(self, row: bytes) -> str | None:
        """The text that the row most likely has."""
        return self._latest.get(row)

    def _copy(self, document: M) -> M:
        copy = self._message()
        copy.CopyFrom(document)
        return copy

    def _keep(self, text: str, document: M) -> None:
        with self._lock:
            if text not in self._by_text:
                self._characters += len(text)
            self._by_text[text] = document
            self._by_text.move_to_end(text)
            while self._characters > MOST_CHARACTERS:
                dropped, _ = self._by_text.popitem(last=False)
                self._characters -= len(dropped)
