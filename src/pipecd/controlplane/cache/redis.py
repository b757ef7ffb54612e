# SPDX-License-Identifier: Apache-2.0
"""The cache that all replicas of a control plane share.

Keys and values are those of upstream, so that both may use one Redis. Whatever is in it can be had
elsewhere: while Redis is away nothing is found in it and nothing is put into it, and no caller is
told.
"""

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

T = TypeVar("T")

log = structlog.get_logger()

# How long Redis is left alone after it failed.
PAUSE = 1.0
MOST_OWED = 10_000

# A plain value has no field; a field of a hash has its name.
Slot = tuple[str, str | None]


class RedisCache:
    """Values and hashes on Redis; `client` is not ours to close."""

    def __init__(self, client: "Redis", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = cast("Any", client)
        self._clock = clock
        self._away_until = 0.0
        # What could not be replaced or removed is outdated, and goes before anything is read.
        self._owed: dict[Slot, None] = {}

    async def get(self, key: str) -> bytes | None:
        return await self._ask(lambda: self._client.get(key), None)

    async def put(self, key: str, value: bytes, *, ttl_seconds: float | None = None) -> None:
        millis = None if ttl_seconds is None else max(int(ttl_seconds * 1000), 1)
        await self._change((key, None), lambda: self._client.set(key, value, px=millis))

    async def delete(self, key: str) -> None:
        await self._change((key, None), lambda: self._client.delete(key))

    async def put_field(self, key: str, field: str, value: bytes) -> None:
        await self._change((key, field), lambda: self._client.hset(key, field, value))

    async def get_field(self, key: str, field: str) -> bytes | None:
        return await self._ask(lambda: self._client.hget(key, field), None)

    async def fields(self, key: str) -> dict[str, bytes]:
        nothing: dict[bytes, bytes] = {}
        found = await self._ask(lambda: self._client.hgetall(key), nothing)
        return {name.decode(errors="replace"): found[name] for name in sorted(found)}

    async def delete_field(self, key: str, field: str) -> None:
        await self._change((key, field), lambda: self._client.hdel(key, field))

    async def _ask(self, question: Callable[[], Awaitable[T]], otherwise: T) -> T:
        if self._clock() < self._away_until:
            return otherwise
        try:
            await self._pay()
            return await question()
        except (RedisError, OSError) as e:
            self._failed(e)
            return otherwise

    async def _change(self, slot: Slot, change: Callable[[], Awaitable[object]]) -> None:
        if self._clock() >= self._away_until:
            try:
                await self._pay()
                await change()
            except (RedisError, OSError) as e:
                self._failed(e)
            else:
                return
        self._owed[slot] = None
        if len(self._owed) > MOST_OWED:
            del self._owed[next(iter(self._owed))]

    async def _pay(self) -> None:
        """Removes what became outdated while Redis was away."""
        if not self._owed:
            return
        owed = tuple(self._owed)
        async with self._client.pipeline(transaction=False) as pipeline:
            for key, field in owed:
                if field is None:
                    pipeline.delete(key)
                else:
                    pipeline.hdel(key, field)
            # A key of another kind than expected is left to whoever put it there.
            await pipeline.execute(raise_on_error=False)
        for slot in owed:
            self._owed.pop(slot, None)

    def _failed(self, error: Exception) -> None:
        if self._clock() >= self._away_until:
            log.warning("cache not reachable, going on without it", error=str(error))
        self._away_until = self._clock() + PAUSE
