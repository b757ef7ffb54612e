# SPDX-License-Identifier: Apache-2.0
"""The one place where a Redis is connected to, for the cache and the bus."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pipecd.controlplane.cache import Cache
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.model.errors import NoDriver, Unavailable, UserMistake

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 2.0
MOST_CONNECTIONS = 64


@asynccontextmanager
async def open_redis(address: str) -> AsyncIterator[Any]:
    """A client for `host:port` or a `redis://` URL; it connects when it is first used."""
    try:
        from redis.asyncio import BlockingConnectionPool, Redis  # noqa: PLC0415 - an extra.
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("Redis", extra="redis") from e
    pools: Any = BlockingConnectionPool
    url = address if "://" in address else f"redis://{address}"
    try:
        pool = pools.from_url(
            url,
            max_connections=MOST_CONNECTIONS,
            timeout=ANSWER_SECONDS,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            health_check_interval=60,
            protocol=2,
            # A connection that Redis has closed meanwhile is replaced unseen.
            retry=Retry(NoBackoff(), 1),
        )
    except ValueError as e:
        raise UserMistake(
            f"the address of the cache is not understood: {e}",
            hint="write --cache-address as host:port",
        ) from e
    client = Redis(connection_pool=pool)
    try:
        yield client
    finally:
        await client.aclose()
        await pool.disconnect()


def pinged(redis: Any) -> Callable[[], Awaitable[None]]:
    """A question that fails with Unavailable while this Redis does not answer."""
    from redis.exceptions import RedisError  # noqa: PLC0415 - an extra.

    async def ask() -> None:
        try:
            await redis.ping()
        except (RedisError, OSError) as e:
            raise Unavailable(f"not reachable: {e}") from e

    return ask


def choose_cache(redis: Any | None) -> Cache:
    """The cache on Redis when there is one, else that of this process."""
    if redis is None:
        return MemoryCache()
    from pipecd.controlplane.cache.redis import RedisCache  # noqa: PLC0415 - an extra.

    return RedisCache(redis)
