# SPDX-License-Identifier: Apache-2.0
"""Inputs that broke a worker or the process itself; they are refused for a day.

Without this, a bomb in a repository would cost a worker at every poll, and one that takes the
whole process down would do so again after each restart.
"""

import json
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from pipecd.program.limits import LimitExceeded

_DAY = 86_400.0
# An input may have run by chance when the process was killed, but hardly twice.
_FATAL_RUNS = 2
_MAX_ENTRIES = 1000


@dataclass(frozen=True)
class BrokenInput:
    """Why an input is refused, if it is; `runs` counts processes that ended while it ran."""

    at: float
    error: str = ""
    runs: int = 0


class BrokenInputs:
    """Refuses inputs by their digest; `save` stores them for the next process."""

    def __init__(
        self,
        stored: dict[str, BrokenInput] | None = None,
        *,
        save: Callable[[bytes], object] = lambda _: None,
    ) -> None:
        self._entries, self._save = dict(stored or {}), save

    @staticmethod
    def parse(content: bytes) -> dict[str, BrokenInput]:
        """Parses what an earlier process stored; raises ValueError for anything else."""
        try:
            entries: dict[str, Any] = json.loads(content)
            return {digest: BrokenInput(**entry) for digest, entry in entries.items()}
        except (AttributeError, TypeError) as e:
            raise ValueError(f"not a list of broken inputs: {e}") from e

    @contextmanager
    def guard(self, digest: str) -> Generator[None, None, None]:
        """Refuses an input that broke before, and records that it breaks in the block."""
        if refusal := self.refusal(digest):
            raise LimitExceeded(refusal, hint="change it; it is tried again after a day")
        try:
            yield
        except LimitExceeded as e:
            self.broke(digest, e.message)
            raise

    def refusal(self, digest: str) -> str:
        """Returns why an input is refused, or an empty text."""
        entry = self._entries.get(digest)
        if entry is None or not 0 <= time.time() - entry.at < _DAY:
            return ""
        if entry.error:
            return entry.error
        if entry.runs >= _FATAL_RUNS:
            return f"piped ended {entry.runs} times while it was evaluated"
        return ""

    def started(self, digest: str) -> None:
        """Records that an input takes long, in case the whole process ends with it."""
        before = self._entries.get(digest)
        self._put(digest, BrokenInput(time.time(), runs=(before.runs if before else 0) + 1))

    def broke(self, digest: str, error: str) -> None:
        """Records that an input broke a worker."""
        self._put(digest, BrokenInput(time.time(), error))

    def finished(self, digest: str) -> None:
        """Forgets an input whose evaluation ended."""
        if self._entries.pop(digest, None) is not None:
            self._store()

    def _put(self, digest: str, entry: BrokenInput) -> None:
        self._entries.pop(digest, None)
        self._entries[digest] = entry
        while len(self._entries) > _MAX_ENTRIES:
            del self._entries[next(iter(self._entries))]
        self._store()

    def _store(self) -> None:
        self._save(json.dumps({d: asdict(e) for d, e in self._entries.items()}).encode())
