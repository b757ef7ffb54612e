# SPDX-License-Identifier: Apache-2.0
"""Operations of stores as metrics and traces observe them."""

from collections.abc import Callable, Sequence
from typing import Protocol

Ended = Callable[[BaseException | None], None]
# The metadata of a call: pairs of lower-case name and value.
Headers = Sequence[tuple[str, str | bytes]]


class OperationObserver(Protocol):
    """Is called when an operation of a store begins and ends."""

    def begun(self, store: str, operation: str) -> Ended:
        """Called at the start; the result is called at the end with the error, if there is one."""
        ...


class ObservedOperation:
    """A block that runs one operation of a store and reports it to every observer."""

    __slots__ = ("_ends", "_observers", "_operation", "_store")

    def __init__(self, observers: Sequence[OperationObserver], store: str, operation: str) -> None:
        self._observers, self._store, self._operation = observers, store, operation
        self._ends: list[Ended] = []

    def __enter__(self) -> None:
        self._ends = [observer.begun(self._store, self._operation) for observer in self._observers]

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for end in reversed(self._ends):
            end(error)
