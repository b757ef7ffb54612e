# SPDX-License-Identifier: Apache-2.0
"""Pieces of work inside a program, told to whoever counts or traces them."""

from collections.abc import Callable, Sequence
from typing import Protocol

Ended = Callable[[BaseException | None], None]
# What came with a call: pairs of lower-case name and value.
Headers = Sequence[tuple[str, str | bytes]]


class Watcher(Protocol):
    """Hears of pieces of work as they begin and end."""

    def begun(self, part: str, operation: str) -> Ended:
        """Something began; what is returned is called with the error it ended with, if any."""
        ...


class Watched:
    """A block of work that watchers hear of; each of them is told in turn."""

    __slots__ = ("_ends", "_operation", "_part", "_watchers")

    def __init__(self, watchers: Sequence[Watcher], part: str, operation: str) -> None:
        self._watchers, self._part, self._operation = watchers, part, operation
        self._ends: list[Ended] = []

    def __enter__(self) -> None:
        self._ends = [watcher.begun(self._part, self._operation) for watcher in self._watchers]

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for end in reversed(self._ends):
            end(error)
