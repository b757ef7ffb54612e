# SPDX-License-Identifier: Apache-2.0
"""The cache on Redis that all replicas of a control plane share.

Keys and values are those of upstream, so that both may use one Redis. The stores have everything
that is in the cache: while Redis is unavailable, reads miss, writes are skipped, and no caller gets
an error.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, cast

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from pipecd.controlplane.cache import OnRead
from pipecd.model.errors import Unavailable, UserMistake

T = TypeVar("T")

log = structlog.get_logger()

CONNECT_TIMEOUT_SECONDS = 3.0
RESPONSE_TIMEOUT_SECONDS = 2.0
MAX_CONNECTIONS = 64
# How long Redis is not called after it failed.
RETRY_AFTER_SECONDS = 1.0
MAX_OUTDATED = 10_000

# A plain value has no field; a field of a hash has its name.
Slot = tuple[str, str | None]


@asynccontextmanager
async def open_redis(address: str) -> AsyncIterator[Any]:
    """A client for `host:port` or a `redis://` URL; it connects when it is first used."""
    pools: Any = BlockingConnectionPool
    url = address if "://" in address else f"redis://{address}"
    try:
        pool = pools.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=RESPONSE_TIMEOUT_SECONDS,
            socket_connect_timeout=CONNECT_TIMEOUT_SECONDS,
            socket_timeout=RESPONSE_TIMEOUT_SECONDS,
            health_check_interval=60,
            protocol=2,
            # The retry replaces a connection that Redis has closed in the meantime.
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as e:
        raise UserMistake(
            f"invalid cache address: {e}", hint="write --cache-address as host:port"
        ) from e
    client = Redis(connection_pool=pool)
    try:
        yield client
    finally:
        await client.aclose()
        await pool.disconnect()


class RedisCache:
    """Values and hashes on Redis; the caller closes `client`. `on_read` is called after each read.

    A value that could not be replaced or deleted during an outage is outdated. It is deleted before
    the next read.
    """

    def __init__(
        self,
        client: "Redis",
        *,
        on_read: OnRead | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = cast("Any", client)
        self._on_read, self._clock = on_read, clock
        self._retry_at = 0.0
        self._outdated: dict[Slot, None] = {}

    async def get(self, key: str) -> bytes | None:
        return await self._read(lambda: self._client.get(key), None)

    async def put(self, key: str, value: bytes, *, ttl_seconds: float | None = None) -> None:
        millis = None if ttl_seconds is None else max(int(ttl_seconds * 1000), 1)
        await self._write((key, None), lambda: self._client.set(key, value, px=millis))

    async def delete(self, key: str) -> None:
        await self._write((key, None), lambda: self._client.delete(key))

    async def put_field(self, key: str, field: str, value: bytes) -> None:
        await self._write((key, field), lambda: self._client.hset(key, field, value))

    async def get_field(self, key: str, field: str) -> bytes | None:
        return await self._read(lambda: self._client.hget(key, field), None)

    async def fields(self, key: str) -> dict[str, bytes]:
        empty: dict[bytes, bytes] = {}
        fields = await self._read(lambda: self._client.hgetall(key), empty)
        return {name.decode(errors="replace"): fields[name] for name in sorted(fields)}

    async def delete_field(self, key: str, field: str) -> None:
        await self._write((key, field), lambda: self._client.hdel(key, field))

    async def ping(self) -> None:
        """Raises Unavailable while Redis does not respond."""
        try:
            await self._client.ping()
        except (RedisError, OSError) as e:
            raise Unavailable(f"not reachable: {e}") from e

    async def _read(self, read: Callable[[], Awaitable[T]], default: T) -> T:
        value = default
        if self._clock() >= self._retry_at:
            try:
                await self._delete_outdated()
                value = await read()
            except (RedisError, OSError) as e:
                self._failed(e)
        if self._on_read is not None:
            self._on_read(value != default)
        return value

    async def _write(self, slot: Slot, write: Callable[[], Awaitable[object]]) -> None:
        if self._clock() >= self._retry_at:
            try:
                await self._delete_outdated()
                await write()
            except (RedisError, OSError) as e:
                self._failed(e)
            else:
                return
        self._outdated[slot] = None
        if len(self._outdated) > MAX_OUTDATED:
            del self._outdated[next(iter(self._outdated))]

    async def _delete_outdated(self) -> None:
        if not self._outdated:
            return
        outdated = tuple(self._outdated)
        async with self._client.pipeline(transaction=False) as pipeline:
            for key, field in outdated:
                if field is None:
                    pipeline.delete(key)
                else:
                    pipeline.hdel(key, field)
            # Another program may have stored a value of another type under the key; it stays.
            await pipeline.execute(raise_on_error=False)
        for slot in outdated:
            self._outdated.pop(slot, None)

    def _failed(self, error: Exception) -> None:
        if self._clock() >= self._retry_at:
            log.warning("cache unavailable, continuing without it", error=str(error))
        self._retry_at = self._clock() + RETRY_AFTER_SECONDS
