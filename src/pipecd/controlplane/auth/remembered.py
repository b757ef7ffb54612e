# SPDX-License-Identifier: Apache-2.0
"""Answers kept for a short while."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from pipecd.model.clock import Now, utc_now

V = TypeVar("V")


class Remembered(Generic[V]):
    """The last answers by name, each for `ttl` at most; too many push out the oldest."""

    def __init__(self, ttl: timedelta, *, most: int = 10_000, now: Now = utc_now) -> None:
        self._ttl, self._most, self._now = ttl, most, now
        self._answers: OrderedDict[str, tuple[datetime, V]] = OrderedDict()

    def get(self, name: str) -> V | None:
        found = self._answers.get(name)
        if found is None:
            return None
        until, answer = found
        if until <= self._now():
            del self._answers[name]
            return None
        return answer

    def put(self, name: str, answer: V) -> None:
        self._answers[name] = (self._now() + self._ttl, answer)
        self._answers.move_to_end(name)
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def forget(self, doubtful: Callable[[V], bool]) -> None:
        """Drops every answer that is in doubt."""
        for name in [name for name, (_, answer) in self._answers.items() if doubtful(answer)]:
            del self._answers[name]

    def clear(self) -> None:
        self._answers.clear()
