# SPDX-License-Identifier: Apache-2.0
"""A cache that tells whether it knew the answer."""

from typing import Protocol

from pipecd.controlplane.cache import Cache


class Asked(Protocol):
    """Hears about every question."""

    def __call__(self, source: str, *, hit: bool) -> None: ...


class CountedCache:
    """Passes everything on and counts the questions; `source` names the kind of cache."""

    def __init__(self, cache: Cache, source: str, asked: Asked) -> None:
        self._cache, self._source, self._asked = cache, source, asked

    async def get(self, key: str) -> bytes | None:
        return self._counted(await self._cache.get(key))

    async def put(self, key: str, value: bytes, *, ttl_seconds: float | None = None) -> None:
        await self._cache.put(key, value, ttl_seconds=ttl_seconds)

    async def delete(self, key: str) -> None:
        await self._cache.delete(key)

    async def put_field(self, key: str, field: str, value: bytes) -> None:
        await self._cache.put_field(key, field, value)

    async def get_field(self, key: str, field: str) -> bytes | None:
        return self._counted(await self._cache.get_field(key, field))

    async def fields(self, key: str) -> dict[str, bytes]:
        found = await self._cache.fields(key)
        self._asked(self._source, hit=bool(found))
        return found

    async def delete_field(self, key: str, field: str) -> None:
        await self._cache.delete_field(key, field)

    def _counted(self, value: bytes | None) -> bytes | None:
        self._asked(self._source, hit=value is not None)
        return value
