# SPDX-License-Identifier: Apache-2.0
"""Percentages and replicas are parsed and printed."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.spec import Spec, plain
from pipecd.config.units import Percentage, Replicas


class Holder(Spec):
    """A spec with a percentage and replicas."""

    share: Percentage = Percentage(0)
    copies: Replicas = Replicas(0)


def percentage(written: object) -> Percentage:
    return decode_plain({"share": written}, Holder, what="x").share


def replicas(written: object) -> Replicas:
    return decode_plain({"copies": written}, Holder, what="x").copies


@pytest.mark.parametrize(
    ("written", "value"),
    [
        pytest.param(30, 30, id="a number"),
        pytest.param("30", 30, id="text"),
        pytest.param("30%", 30, id="with the sign"),
        pytest.param("-5%", -5, id="negative"),
        pytest.param("+5", 5, id="with a plus"),
        pytest.param(150, 150, id="more than all"),
        pytest.param(10.0, 10, id="a whole number written as a fraction"),
    ],
)
def test_a_percentage_is_read(written: object, value: int) -> None:
    assert percentage(written) == value


@pytest.mark.parametrize("written", [10.5, "10.5%", "", "%", " 5", "5%%", "٣", None, True, []], ids=repr)  # fmt: skip
def test_an_invalid_percentage_is_refused(written: object) -> None:
    with pytest.raises(ConfigMistake, match="x: share: invalid percentage"):
        percentage(written)


@pytest.mark.parametrize(("written", "text"), [("30%", "30%"), ("30", "30"), (30, "30")], ids=repr)
def test_a_percentage_prints_as_it_was_written(written: object, text: str) -> None:
    assert plain(decode_plain({"share": written}, Holder, what="x"))["share"] == text


@pytest.mark.parametrize(
    ("written", "value"),
    [
        pytest.param(2, Replicas(2), id="a number"),
        pytest.param(2.7, Replicas(2), id="a fraction is cut off"),
        pytest.param(-2.7, Replicas(-2), id="a negative fraction is cut towards zero"),
        pytest.param("3", Replicas(3), id="text"),
        pytest.param("50%", Replicas(50, is_share=True), id="a percentage"),
    ],
)
def test_replicas_are_read(written: object, value: Replicas) -> None:
    assert replicas(written) == value


@pytest.mark.parametrize("written", ["10.5%", "10.5", "", "%", "many", None, True, {}], ids=repr)
def test_invalid_replicas_are_refused(written: object) -> None:
    with pytest.raises(ConfigMistake, match="x: copies: invalid replicas"):
        replicas(written)


@pytest.mark.parametrize(
    ("replicas", "total", "expected"),
    [
        pytest.param(Replicas(3), 10, 3, id="a number is that number"),
        pytest.param(Replicas(10, is_share=True), 5, 1, id="a percentage is rounded up"),
        pytest.param(Replicas(50, is_share=True), 4, 2, id="a percentage that comes out even"),
        pytest.param(Replicas(0), 4, 1, id="0 means the default"),
        pytest.param(Replicas(0, is_share=True), 4, 1, id="a percentage of nothing is one"),
    ],
)
def test_replicas_of_a_workload(replicas: Replicas, total: int, expected: int) -> None:
    assert replicas.of(total) == expected


@given(st.integers(1, 1000), st.integers(0, 10**6))
def test_a_percentage_of_replicas_is_rounded_up(number: int, total: int) -> None:
    assert Replicas(number, is_share=True).of(total) == math.ceil(Fraction(number * total, 100))


@given(st.integers(-(10**17), 10**17), st.booleans())
def test_printing_and_parsing_are_inverse(number: int, with_sign: bool) -> None:
    replicas, percentage = Replicas(number, with_sign), Percentage(number, has_sign=with_sign)
    assert Replicas.parse(str(replicas)) == replicas
    assert Percentage.parse(str(percentage)) == percentage
    assert Percentage.parse(str(percentage)).has_sign is with_sign
