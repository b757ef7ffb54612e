# SPDX-License-Identifier: Apache-2.0
"""The in-memory cache: eviction, expiry, loading and invalidation."""

import asyncio
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.cache import LruCache


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_least_recently_used_value_is_evicted() -> None:
    cache = LruCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_a_value_expires_after_the_ttl() -> None:
    clock = Clock()
    cache = LruCache[str, int](10, ttl=10, clock=clock)
    cache.put("a", 1)
    cache.put("short", 2, ttl=5)
    clock.seconds = 5
    assert [cache.get("a"), cache.get("short")] == [1, None]
    clock.seconds = 10
    assert cache.get("a") is None
    assert len(cache) == 0


def test_reading_a_value_does_not_prolong_its_ttl_and_putting_it_again_does() -> None:
    clock = Clock()
    cache = LruCache[str, int](10, ttl=10, clock=clock)
    cache.put("a", 1)
    cache.put("b", 1)
    clock.seconds = 9
    assert cache.get("a") == 1
    cache.put("b", 2)
    clock.seconds = 11
    assert [cache.get("a"), cache.get("b")] == [None, 2]


def test_a_value_that_has_expired_is_removed_although_nobody_asks_for_it_again() -> None:
    clock = Clock()
    cache = LruCache[int, int](1000, ttl=10, clock=clock)
    for number in range(100):
        clock.seconds = number
        cache.put(number, number)
    assert len(cache) == 10


def test_a_limit_that_is_lowered_evicts_and_one_that_is_raised_makes_room() -> None:
    cache = LruCache[str, int](3)
    for number, key in enumerate("abc"):
        cache.put(key, number)
    cache.limit(1)
    assert [cache.get(key) for key in "abc"] == [None, None, 2]
    cache.limit(2)
    cache.put("d", 3)
    assert [cache.get(key) for key in "abcd"] == [None, None, 2, 3]


def test_sizes_count_and_the_newest_value_is_cached_however_large() -> None:
    cache = LruCache[str, str](5, size_of=len)
    cache.put("a", "aaa")
    cache.put("b", "bb")
    assert [cache.get(key) for key in "ab"] == ["aaa", "bb"]
    cache.put("c", "c")
    assert [cache.get(key) for key in "abc"] == [None, "bb", "c"]
    cache.put("d", "d" * 9)
    assert [cache.get(key) for key in "abcd"] == [None, None, None, "d" * 9]
    cache.put("d", "d")
    cache.put("e", "eeee")
    assert [cache.get(key) for key in "de"] == ["d", "eeee"]


def test_values_are_invalidated_by_a_predicate() -> None:
    cache = LruCache[str, int](10)
    for key, value in (("a", 1), ("b", 2), ("c", 1)):
        cache.put(key, value)
    cache.invalidate(lambda value: value == 1)
    assert [cache.get(key) for key in "abc"] == [None, 2, None]
    assert cache.pop("b") == 2
    assert cache.pop("b") is None
    cache.put("a", 1)
    cache.clear()
    assert cache.get("a") is None


async def test_concurrent_callers_load_a_value_once() -> None:
    cache, loads = LruCache[str, int](10), 0

    async def load() -> int:
        nonlocal loads
        loads += 1
        await asyncio.sleep(0)
        return 7

    assert await asyncio.gather(*(cache.get_or_load("a", load) for _ in range(5))) == [7] * 5
    assert await cache.get_or_load("a", load) == 7
    assert loads == 1


async def test_a_failed_load_is_repeated_by_the_next_caller() -> None:
    cache = LruCache[str, int](10)

    async def fail() -> int:
        raise ConnectionError

    async def load() -> int:
        return 1

    with pytest.raises(ConnectionError):
        await cache.get_or_load("a", fail)
    assert await cache.get_or_load("a", load) == 1


async def test_a_value_that_was_invalidated_while_it_was_loaded_is_not_cached() -> None:
    cache = LruCache[str, int](10)

    async def load() -> int:
        cache.invalidate(lambda _: False)
        return 1

    assert await cache.get_or_load("a", load) == 1
    assert cache.get("a") is None


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from(["get", "put", "pop"]), st.integers(0, 4), st.integers(1, 4))),
)  # fmt: skip
def test_it_behaves_like_a_bounded_ordered_dict(
    size: int, steps: list[tuple[str, int, int]]
) -> None:
    cache, model = LruCache[int, int](size, size_of=int), OrderedDict[int, int]()
    for step, key, value in steps:
        match step:
            case "get":
                assert cache.get(key) == model.get(key)
                if key in model:
                    model.move_to_end(key)
            case "put":
                cache.put(key, value)
                model.pop(key, None)
                model[key] = value
                while sum(model.values()) > size and len(model) > 1:
                    model.popitem(last=False)
            case _:
                assert cache.pop(key) == model.pop(key, None)
        assert len(cache) == len(model)
