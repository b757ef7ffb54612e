# SPDX-License-Identifier: Apache-2.0
"""Throttling of failed attempts."""

from collections.abc import Callable

import pytest

from pipecd.controlplane.auth import throttle
from pipecd.controlplane.auth.throttle import Throttle
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
