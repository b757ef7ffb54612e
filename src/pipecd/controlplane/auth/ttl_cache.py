# SPDX-License-Identifier: Apache-2.0
"""A cache in memory whose entries expire."""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Generic, TypeVar

from pipecd.model.clock import Now, utc_now

V = TypeVar("V")


class TtlCache(Generic[V]):
    """At most `most` values by key, each for `ttl` at most; a full cache evicts the oldest."""

    def __init__(self, ttl: timedelta, *, most: int = 10_000, now: Now = utc_now) -> None:
        self._ttl, self._most, self._now = ttl, most, now
        self._entries: OrderedDict[str, tuple[datetime, V]] = OrderedDict()

    def get(self, key: str) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires_at, value = entry
        if expires_at <= self._now():
            del self._entries[key]
            return None
        return value

    def put(self, key: str, value: V, *, ttl: timedelta | None = None) -> None:
        self._entries[key] = (self._now() + (self._ttl if ttl is None else ttl), value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._most:
            self._entries.popitem(last=False)

    def invalidate(self, matches: Callable[[V], bool]) -> None:
        """Drops every value that matches."""
        for key in [key for key, (_, value) in self._entries.items() if matches(value)]:
            del self._entries[key]

    def clear(self) -> None:
        self._entries.clear()
