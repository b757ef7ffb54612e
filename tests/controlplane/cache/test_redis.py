# SPDX-License-Identifier: Apache-2.0
"""Both caches behave the same; the one on Redis survives an outage of its server."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from pipecd.controlplane.cache import Cache
from pipecd.controlplane.cache import redis as module
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.cache.redis import RedisCache, open_redis
from pipecd.model.errors import Unavailable, UserMistake
from servers.databases import Redis


@pytest.fixture
async def client(redis: Redis) -> AsyncIterator[Any]:
    async with open_redis(f"127.0.0.1:{redis.port}") as client:
        await client.flushall()
        yield client


@pytest.fixture(params=["memory", "redis"])
def cache(request: pytest.FixtureRequest) -> Cache:
    if request.param == "memory":
        return MemoryCache()
    return RedisCache(request.getfixturevalue("client"))


async def test_a_value_expires_after_its_ttl(cache: Cache) -> None:
    await cache.put("k", b"\xff\x00v", ttl_seconds=0.03)
    assert await cache.get("k") == b"\xff\x00v"
    await asyncio.sleep(0.04)
    assert await cache.get("k") is None


async def test_a_value_without_a_ttl_stays_and_is_replaced(cache: Cache) -> None:
    await cache.put("k", b"old", ttl_seconds=0.02)
    await cache.put("k", b"new")
    await asyncio.sleep(0.03)
    assert await cache.get("k") == b"new"
    await cache.delete("k")
    await cache.delete("never")
    assert await cache.get("k") is None


async def test_fields_of_a_hash(cache: Cache) -> None:
    assert await cache.fields("h") == {}
    await cache.put_field("h", "é", b"1")
    await cache.put_field("h", "b", b"2")
    await cache.put_field("h", "é", b"3")
    await cache.put_field("other", "b", b"4")
    assert await cache.fields("h") == {"é": b"3", "b": b"2"}
    assert await cache.get_field("h", "é") == b"3"
    assert await cache.get_field("h", "c") is None
    await cache.delete_field("h", "é")
    await cache.delete_field("h", "é")
    assert await cache.fields("h") == {"b": b"2"}
    await cache.delete("h")
    assert await cache.fields("h") == {}
    assert await cache.fields("other") == {"b": b"4"}


async def test_reads_are_reported_as_hit_or_miss(redis: Redis) -> None:
    async with open_redis(f"127.0.0.1:{redis.port}") as client:
        await client.flushall()
        for kind in ("memory", "redis"):
            hits: list[bool] = []
            cache: Cache = MemoryCache(on_read=hits.append)
            if kind == "redis":
                cache = RedisCache(client, on_read=hits.append)
            await cache.get("k")
            await cache.put("k", b"v", ttl_seconds=60)
            await cache.get("k")
            await cache.get_field("h", "f")
            await cache.fields("h")
            await cache.put_field("h", "f", b"w")
            await cache.get_field("h", "f")
            await cache.fields("h")
            await cache.delete_field("h", "f")
            await cache.delete("k")
            assert hits == [False, True, False, False, True, True], kind


async def test_a_ping_fails_without_a_server(client: Any) -> None:
    await RedisCache(client).ping()
    async with open_redis("127.0.0.1:1") as unreachable:
        with pytest.raises(Unavailable, match="not reachable"):
            await RedisCache(unreachable).ping()


async def test_keys_and_expiry_are_those_of_upstream(client: Any) -> None:
    cache = RedisCache(client)
    await cache.put("command:1", b"{}", ttl_seconds=300)
    await cache.put_field("HASHKEY:PIPED:STATS", "piped", b"{}")
    assert await client.get("command:1") == b"{}"
    assert 295 < await client.ttl("command:1") <= 300
    assert await client.hgetall("HASHKEY:PIPED:STATS") == {b"piped": b"{}"}
    assert await client.ttl("HASHKEY:PIPED:STATS") == -1


async def test_during_an_outage_reads_miss_and_nothing_blocks(
    redis: Redis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_AFTER_SECONDS", 0.05)
    cache = RedisCache(client)
    await cache.put("k", b"v")
    await asyncio.to_thread(redis.stop)
    try:
        began = time.monotonic()
        for _ in range(50):
            assert await cache.get("k") is None
            await cache.put("k", b"w")
            await cache.put_field("h", "f", b"w")
            assert await cache.fields("h") == {}
            await cache.delete("x")
        assert time.monotonic() - began < 3
    finally:
        await asyncio.to_thread(redis.start)
    await asyncio.sleep(0.05)
    await cache.put("k", b"again")
    assert await cache.get("k") == b"again"


async def test_values_outdated_during_an_outage_are_not_read_after_it(
    redis: Redis, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_AFTER_SECONDS", 0.0)
    async with open_redis(f"127.0.0.1:{redis.port}?socket_timeout=0.1") as client_with_timeout:
        cache = RedisCache(client_with_timeout)
        await cache.put("state", b"old")
        await cache.put("gone", b"old")
        await cache.put_field("stats", "a", b"old")
        await cache.put_field("stats", "b", b"old")
        redis.signal(signal.SIGSTOP)
        try:
            # Redis applies these writes later or never.
            await asyncio.gather(
                cache.put("state", b"new"),
                cache.delete("gone"),
                cache.put_field("stats", "a", b"new"),
            )
            assert await cache.get("state") is None
        finally:
            redis.signal(signal.SIGCONT)
        await asyncio.sleep(0.05)
        assert await cache.get("state") in (None, b"new")
        assert await cache.get("gone") is None
        assert await cache.get_field("stats", "a") in (None, b"new")
        assert await cache.get_field("stats", "b") == b"old"


async def test_the_list_of_outdated_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_OUTDATED", 10)
    async with open_redis("127.0.0.1:1") as unreachable:
        cache = RedisCache(unreachable)
        for i in range(50):
            await cache.put(f"k{i}", b"")
        assert len(cache._outdated) == 10


async def test_a_connection_closed_by_redis_is_replaced(client: Any) -> None:
    cache = RedisCache(client)
    await cache.put("k", b"v")
    async with open_redis(f"127.0.0.1:{client.connection_pool.connection_kwargs['port']}") as other:
        await other.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert await cache.get("k") == b"v"


async def test_a_key_of_another_type_is_a_miss(client: Any) -> None:
    await client.hset("k", "f", b"v")
    cache = RedisCache(client)
    assert await cache.get("k") is None


@pytest.mark.parametrize("address", ["http://redis:6379", "redis://host:port"])
async def test_an_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(UserMistake, match="invalid cache address"):
        async with open_redis(address):
            pass
