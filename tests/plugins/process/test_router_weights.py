# SPDX-License-Identifier: Apache-2.0
"""Turns are distributed exactly and evenly."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.plugins.process.router_weights import Turns


@given(st.lists(st.integers(1, 100), min_size=1, max_size=5), st.integers(1, 3))
def test_every_round_is_exact(weights: list[int], rounds: int) -> None:
    turns = Turns(weights)
    for _ in range(rounds):
        got = [turns.next() for _ in range(sum(weights))]
        assert [got.count(index) for index in range(len(weights))] == weights


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 400))
def test_two_variants_are_never_a_whole_turn_off(one: int, other: int, count: int) -> None:
    turns = Turns([one, other])
    got = [turns.next() for _ in range(count)]
    assert abs(got.count(0) - count * one / (one + other)) < 1


@given(st.integers(1, 99))
def test_the_turns_of_a_light_variant_lie_evenly(canary: int) -> None:
    turns = Turns([100 - canary, canary])
    at = [number for number in range(1000) if turns.next() == 1]
    gaps = {after - before for before, after in pairwise(at)}
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("weights", [[], [1, 0], [-1]])
def test_weights_are_positive(weights: list[int]) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Turns(weights)
