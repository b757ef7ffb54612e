# SPDX-License-Identifier: Apache-2.0
"""The cache of a control plane that is one process."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# A plain value has no field; a field of a hash has its name.
Slot = tuple[str, str | None]


@dataclass(frozen=True)
class Entry:
    """A value and the moment it ends, if it does."""

    value: bytes
    ends_at: float | None


class MemoryCache:
    """Values and hashes in memory; what was not used for longest goes first when it is full."""

    def __init__(
        self,
        *,
        most_entries: int = 100_000,
        most_bytes: int = 128 * 1024 * 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._clock = clock
        self._entries: OrderedDict[Slot, Entry] = OrderedDict()
        self._fields: dict[str, set[str]] = {}
        self._bytes = 0

    async def get(self, key: str) -> bytes | None:
        return self._get((key, None))

    async def put(self, key: str, value: bytes, *, ttl_seconds: float | None = None) -> None:
        ends_at = None if ttl_seconds is None else self._clock() + ttl_seconds
        self._put((key, None), Entry(value, ends_at))

    async def delete(self, key: str) -> None:
        self._drop((key, None))
        for field in tuple(self._fields.get(key, ())):
            self._drop((key, field))

    async def put_field(self, key: str, field: str, value: bytes) -> None:
        self._put((key, field), Entry(value, None))

    async def get_field(self, key: str, field: str) -> bytes | None:
        return self._get((key, field))

    async def fields(self, key: str) -> dict[str, bytes]:
        found = {field: self._get((key, field)) for field in sorted(self._fields.get(key, ()))}
        return {field: value for field, value in found.items() if value is not None}

    async def delete_field(self, key: str, field: str) -> None:
        self._drop((key, field))

    def _get(self, slot: Slot) -> bytes | None:
        entry = self._entries.get(slot)
        if entry is None:
            return None
        if entry.ends_at is not None and entry.ends_at <= self._clock():
            self._drop(slot)
            return None
        self._entries.move_to_end(slot)
        return entry.value

    def _put(self, slot: Slot, entry: Entry) -> None:
        self._drop(slot)
        self._entries[slot] = entry
        self._bytes += _size(slot, entry)
        key, field = slot
        if field is not None:
            self._fields.setdefault(key, set()).add(field)
        while len(self._entries) > self._most_entries or self._bytes > self._most_bytes:
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


def _size(slot: Slot, entry: Entry) -> int:
    return len(slot[0]) + len(slot[1] or "") + len(entry.value)
