# SPDX-License-Identifier: Apache-2.0
"""Throttling of failed attempts, and the cache with expiry."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from pipecd.controlplane.auth import throttle
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.controlplane.auth.ttl_cache import TtlCache
from pipecd.model.clock import Now
from pipecd.model.errors import Unavailable


def test_only_the_key_that_failed_too_often_has_to_wait(
    now: Now, advance: Callable[[float], None]
) -> None:
    limit = Throttle(2, now=now)
    limit.attempt("a", "too often")
    advance(30)
    limit.attempt("a", "too often")
    with pytest.raises(Unavailable, match="too often"):
        limit.attempt("a", "too often")
    limit.attempt("b", "too often")
    advance(31)
    limit.attempt("a", "too often")
    with pytest.raises(Unavailable):
        limit.attempt("a", "too often")


def test_a_success_resets_the_failures(now: Now) -> None:
    limit = Throttle(1, now=now)
    limit.attempt("a", "too often")
    limit.succeeded("a")
    limit.attempt("a", "too often")


def test_the_number_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch, now: Now) -> None:
    monkeypatch.setattr(throttle, "MAX_KEYS", 3)
    limit = Throttle(1, now=now)
    for name in "abcd":
        limit.attempt(name, "too often")
    with pytest.raises(Unavailable):
        limit.attempt("d", "too often")
    limit.attempt("a", "too often")


def test_cached_values_expire_and_a_full_cache_evicts_the_oldest(
    now: Now, advance: Callable[[float], None]
) -> None:
    cache: TtlCache[int] = TtlCache(timedelta(seconds=10), most=2, now=now)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.put("c", 3)
    assert [cache.get(name) for name in "abc"] == [None, 2, 3]
    cache.invalidate(lambda value: value == 3)
    advance(9)
    assert [cache.get(name) for name in "bc"] == [2, None]
    advance(1)
    assert cache.get("b") is None
