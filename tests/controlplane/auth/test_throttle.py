# SPDX-License-Identifier: Apache-2.0
"""How often something may fail."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from pipecd.controlplane.auth import throttle
from pipecd.controlplane.auth.remembered import Remembered
from pipecd.controlplane.auth.throttle import Throttle
from pipecd.model.clock import Now
from pipecd.model.errors import Unavailable


def test_a_name_waits_after_its_last_failure_and_others_do_not(
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


def test_a_success_makes_failures_forgotten(now: Now) -> None:
    limit = Throttle(1, now=now)
    limit.attempt("a", "too often")
    limit.succeeded("a")
    limit.attempt("a", "too often")


def test_the_number_of_names_is_bounded(monkeypatch: pytest.MonkeyPatch, now: Now) -> None:
    monkeypatch.setattr(throttle, "MOST_NAMES", 3)
    limit = Throttle(1, now=now)
    for name in "abcd":
        limit.attempt(name, "too often")
    with pytest.raises(Unavailable):
        limit.attempt("d", "too often")
    limit.attempt("a", "too often")


def test_answers_end_and_the_oldest_make_room(now: Now, advance: Callable[[float], None]) -> None:
    kept: Remembered[int] = Remembered(timedelta(seconds=10), most=2, now=now)
    kept.put("a", 1)
    kept.put("b", 2)
    kept.put("c", 3)
    assert [kept.get(name) for name in "abc"] == [None, 2, 3]
    kept.forget(lambda answer: answer == 3)
    advance(9)
    assert [kept.get(name) for name in "bc"] == [2, None]
    advance(1)
    assert kept.get("b") is None
