# SPDX-License-Identifier: Apache-2.0
"""The cache in memory expires values and stays within its limits."""

from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.cache.memory import MemoryCache


class ManualClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def test_a_value_expires_after_its_ttl() -> None:
    clock = ManualClock()
    cache = MemoryCache(clock=clock)
    await cache.put("k", b"v", ttl_seconds=10)
    clock.seconds = 9.9
    assert await cache.get("k") == b"v"
    clock.seconds = 10
    assert await cache.get("k") is None


async def test_a_value_without_a_ttl_stays() -> None:
    clock = ManualClock()
    cache = MemoryCache(clock=clock)
    await cache.put("k", b"old", ttl_seconds=1)
    await cache.put("k", b"v")
    clock.seconds = 1e9
    assert await cache.get("k") == b"v"


async def test_a_deleted_value_is_gone() -> None:
    cache = MemoryCache()
    await cache.put("k", b"v")
    await cache.delete("k")
    await cache.delete("never")
    assert await cache.get("k") is None


async def test_fields_of_a_hash() -> None:
    cache = MemoryCache()
    assert await cache.fields("h") == {}
    await cache.put_field("h", "a", b"1")
    await cache.put_field("h", "b", b"2")
    await cache.put_field("h", "a", b"3")
    await cache.put_field("other", "a", b"4")
    assert await cache.fields("h") == {"a": b"3", "b": b"2"}
    assert await cache.get_field("h", "a") == b"3"
    assert await cache.get_field("h", "c") is None
    await cache.delete_field("h", "a")
    await cache.delete_field("h", "a")
    assert await cache.fields("h") == {"b": b"2"}
    await cache.delete("h")
    assert await cache.fields("h") == {}
    assert await cache.fields("other") == {"a": b"4"}


async def test_the_least_recently_used_value_is_evicted() -> None:
    cache = MemoryCache(max_entries=2)
    await cache.put("a", b"1")
    await cache.put("b", b"2")
    assert await cache.get("a") == b"1"
    await cache.put("c", b"3")
    assert await cache.get("b") is None
    assert await cache.get("a") == b"1"
    await cache.put_field("h", "f", b"4")
    assert await cache.get("c") is None
    assert await cache.fields("h") == {"f": b"4"}


async def test_the_size_in_bytes_is_limited() -> None:
    cache = MemoryCache(max_bytes=100)
    await cache.put("a", b"x" * 60)
    await cache.put("b", b"x" * 60)
    assert await cache.get("a") is None
    assert await cache.get("b") == b"x" * 60
    await cache.put("too big", b"x" * 200)
    assert await cache.get("too big") is None


Actions = st.lists(
    st.tuples(
        st.sampled_from(["put", "get", "delete", "put_field", "delete_field", "fields"]),
        st.sampled_from("abc"),
        st.binary(max_size=12),
    ),
    max_size=40,
)


@given(Actions)
async def test_the_limits_hold_after_any_operations(actions: list[tuple[str, str, bytes]]) -> None:
    cache = MemoryCache(max_entries=4, max_bytes=40)
    for action, key, value in actions:
        field = value[:1].hex()
        match action:
            case "put":
                await cache.put(key, value)
            case "get":
                await cache.get(key)
            case "delete":
                await cache.delete(key)
            case "put_field":
                await cache.put_field(key, field, value)
            case "delete_field":
                await cache.delete_field(key, field)
            case _:
                await cache.fields(key)
    values = [await cache.get(key) for key in "abc"]
    hashes = [await cache.fields(key) for key in "abc"]
    stored = [v for v in values if v is not None] + [v for h in hashes for v in h.values()]
    assert len(stored) <= 4
    assert sum(len(v) for v in stored) <= 40
    assert len(cache._entries) == len(stored)
    assert sum(len(f) for f in cache._fields.values()) == sum(len(h) for h in hashes)
