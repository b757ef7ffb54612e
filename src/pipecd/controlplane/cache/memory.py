# SPDX-License-Identifier: Apache-2.0
"""The cache of a control plane that is one process."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pipecd.controlplane.cache import OnRead

# A plain value has no field; a field of a hash has its name.
Slot = tuple[str, str | None]


@dataclass(frozen=True)
class CacheEntry:
    """A value and when it expires, if it does."""

    value: bytes
    expires_at: float | None


class MemoryCache:
    """Values and hashes in memory; evicts the least recently used ones when it is full.

    `on_read` is called after each read.
    """

    def __init__(
        self,
        *,
        max_entries: int = 100_000,
        max_bytes: int = 128 * 1024 * 1024,
        on_read: OnRead | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._on_read = on_read
        self._clock = clock
        self._entries: OrderedDict[Slot, CacheEntry] = OrderedDict()
        self._fields: dict[str, set[str]] = {}
        self._bytes = 0

    async def get(self, key: str) -> bytes | None:
        return self._read((key, None))

    async def put(self, key: str, value: bytes, *, ttl_seconds: float | None = None) -> None:
        expires_at = None if ttl_seconds is None else self._clock() + ttl_seconds
        self._put((key, None), CacheEntry(value, expires_at))

    async def delete(self, key: str) -> None:
        self._drop((key, None))
        for field in tuple(self._fields.get(key, ())):
            self._drop((key, field))

    async def put_field(self, key: str, field: str, value: bytes) -> None:
        self._put((key, field), CacheEntry(value, None))

    async def get_field(self, key: str, field: str) -> bytes | None:
        return self._read((key, field))

    async def fields(self, key: str) -> dict[str, bytes]:
        values = {field: self._get((key, field)) for field in sorted(self._fields.get(key, ()))}
        fields = {field: value for field, value in values.items() if value is not None}
        if self._on_read is not None:
            self._on_read(bool(fields))
        return fields

    async def delete_field(self, key: str, field: str) -> None:
        self._drop((key, field))

    def _read(self, slot: Slot) -> bytes | None:
        value = self._get(slot)
        if self._on_read is not None:
            self._on_read(value is not None)
        return value

    def _get(self, slot: Slot) -> bytes | None:
        entry = self._entries.get(slot)
        if entry is None:
            return None
        if entry.expires_at is not None and entry.expires_at <= self._clock():
            self._drop(slot)
            return None
        self._entries.move_to_end(slot)
        return entry.value

    def _put(self, slot: Slot, entry: CacheEntry) -> None:
        self._drop(slot)
        self._entries[slot] = entry
        self._bytes += _size(slot, entry)
        key, field = slot
        if field is not None:
            self._fields.setdefault(key, set()).add(field)
        while len(self._entries) > self._max_entries or self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, slot: Slot) -> None:
        entry = self._entries.pop(slot, None)
        if entry is None:
            return
        self._bytes -= _size(slot, entry)
        key, field = slot
        if field is not None:
            fields = self._fields[key]
            fields.discard(field)
            if not fields:
                del self._fields[key]


def _size(slot: Slot, entry: CacheEntry) -> int:
    return len(slot[0]) + len(slot[1] or "") + len(entry.value)
