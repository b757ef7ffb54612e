# SPDX-License-Identifier: Apache-2.0
"""The in-memory cache of this code base: least recently used entries go first, TTL on request."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """Holds values up to a total size; the least recently used ones are evicted first.

    Every value counts as 1 unless `size_of` returns its size; the newest value is cached however
    large it is. With a `ttl` in seconds, a value expires that long after it was put; nobody has to
    ask for it again to free its memory. It is not safe to share between threads without a lock.
    """

    def __init__(
        self,
        max_size: int,
        *,
        ttl: float | None = None,
        size_of: Callable[[V], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_size, self._ttl, self._size_of, self._clock = max_size, ttl, size_of, clock
        self._entries: OrderedDict[K, tuple[V, float | None]] = OrderedDict()
        self._size = 0
        self._loading: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()
        self._invalidations = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        """Returns the cached value and marks it as used; None when absent or expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        value, expires_at = entry
        if expires_at is not None and expires_at <= self._clock():
            self._remove(key)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: K, value: V, *, ttl: float | None = None) -> None:
        """Caches a value, for `ttl` seconds if that differs from the TTL of the cache."""
        if key in self._entries:
            self._remove(key)
        ttl = self._ttl if ttl is None else ttl
        self._entries[key] = (value, None if ttl is None else self._clock() + ttl)
        self._size += 1 if self._size_of is None else self._size_of(value)
        self._evict()

    def limit(self, max_size: int) -> None:
        """Changes the total size, for example to that of what is used together."""
        self._max_size = max_size
        self._evict()

    async def get_or_load(self, key: K, load: Callable[[], Awaitable[V]]) -> V:
        """Returns the cached value, or loads it once however many callers ask at the same time.

        A value that was read before an invalidation is returned but not cached.
        """
        if (cached := self.get(key)) is not None:
            return cached
        async with self._loading.setdefault(key, asyncio.Lock()):
            if (cached := self.get(key)) is not None:
                return cached
            invalidations = self._invalidations
            value = await load()
            if invalidations == self._invalidations:
                self.put(key, value)
            return value

    def invalidate(self, is_stale: Callable[[V], bool]) -> None:
        """Removes every value for which `is_stale` returns true."""
        self._invalidations += 1
        for key in [key for key, (value, _) in self._entries.items() if is_stale(value)]:
            self._remove(key)

    def pop(self, key: K) -> V | None:
        """Removes a value and returns it; None when absent."""
        self._invalidations += 1
        return self._remove(key) if key in self._entries else None

    def clear(self) -> None:
        """Removes all values."""
        self._invalidations += 1
        self._entries.clear()
        self._size = 0

    def _evict(self) -> None:
        """Removes what is too much, and what has expired since it was used last."""
        while len(self._entries) > 1:
            oldest = next(iter(self._entries))
            _, expires_at = self._entries[oldest]
            has_expired = expires_at is not None and expires_at <= self._clock()
            if not has_expired and self._size <= self._max_size:
                return
            self._remove(oldest)

    def _remove(self, key: K) -> V:
        value, _ = self._entries.pop(key)
        self._size -= 1 if self._size_of is None else self._size_of(value)
        return value
