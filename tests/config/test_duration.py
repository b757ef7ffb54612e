# SPDX-License-Identifier: Apache-2.0
"""Durations are read and written as Go does."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.spec import Spec
from pipecd.config.units import Duration

UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}  # fmt: skip


class Holder(Spec):
    """A spec with a duration."""

    wait: Duration = Duration(7)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        pytest.param("1h30m", 5400, id="several units add up"),
        pytest.param("1.5h", 5400, id="a unit may have a fraction"),
        pytest.param(".5s", 0.5, id="the whole part may be left out"),
        pytest.param("5.s", 5, id="the fraction may be left out after its point"),
        pytest.param("0", 0, id="zero needs no unit"),
        pytest.param("-5m", -300, id="a duration may be negative"),
        pytest.param("+5m", 300, id="a plus sign is allowed"),
        pytest.param("300ms", 0.3, id="milliseconds are known"),
        pytest.param("2µs", 2e-6, id="microseconds may be written with the micro sign"),
        pytest.param("2us", 2e-6, id="microseconds may be written with a u"),
        pytest.param("1m1h", 3660, id="units come in any order"),
        pytest.param("1.0000000000000000000000001s", 1, id="digits below a nanosecond are dropped"),
        pytest.param("000000000000000000000000001s", 1, id="leading zeros are ignored"),
    ],
)
def test_a_duration_is_parsed(text: str, seconds: float) -> None:
    assert Duration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param("10", "missing unit", id="a number needs a unit"),
        pytest.param("1h2", "missing unit", id="the last number needs a unit too"),
        pytest.param("1d", 'unknown unit "d"', id="there are no days"),
        pytest.param("1 s", 'unknown unit " s"', id="spaces are not allowed"),
        pytest.param("", "invalid duration", id="an empty string is not a duration"),
        pytest.param("-", "invalid duration", id="a sign alone is not a duration"),
        pytest.param("s", "invalid duration", id="a unit alone is not a duration"),
        pytest.param(".s", "invalid duration", id="a point alone is not a number"),
        pytest.param("1.2.3s", "missing unit", id="a number has one point"),
        pytest.param("2562048h", "the longest", id="more than 64 bits of nanoseconds"),
        pytest.param("9" * 5000 + "h", "the longest", id="a number of thousands of digits"),
        pytest.param("\u0661s", "invalid duration", id="digits of other scripts are not digits"),
    ],
)
def test_an_invalid_duration_is_explained(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        pytest.param(Duration(21600), "6h0m0s", id="hours show minutes and seconds"),
        pytest.param(Duration(60), "1m0s", id="minutes show seconds"),
        pytest.param(Duration(1.5), "1.5s", id="fractions of seconds"),
        pytest.param(Duration(0.1), "100ms", id="under a second in milliseconds"),
        pytest.param(Duration.of_nanoseconds(1500), "1.5µs", id="microseconds with the micro sign"),
        pytest.param(Duration.of_nanoseconds(10), "10ns", id="nanoseconds"),
        pytest.param(Duration(0), "0s", id="zero is zero seconds"),
        pytest.param(Duration(-300), "-5m0s", id="negative"),
    ],
)
def test_a_duration_prints_as_in_go(duration: Duration, text: str) -> None:
    assert str(duration) == text


@given(st.integers(-(2**50), 2**50))
def test_printing_and_parsing_are_inverse(nanoseconds: int) -> None:
    duration = Duration.of_nanoseconds(nanoseconds)
    assert Duration.parse(str(duration)).nanoseconds == nanoseconds


@given(
    st.lists(
        st.tuples(st.integers(0, 75), st.text("0123456789", max_size=6), st.sampled_from([*UNITS])),
        min_size=1,
        max_size=4,
    )
)
def test_a_duration_is_the_sum_of_its_parts(parts: list[tuple[int, str, str]]) -> None:
    text = "".join(f"{whole}.{fraction}{unit}" for whole, fraction, unit in parts)
    expected = sum(
        int(Fraction(f"{whole}.{fraction or 0}") * UNITS[u]) for whole, fraction, u in parts
    )
    assert Duration.parse(text).nanoseconds == expected


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        pytest.param("5m", 300, id="text"),
        pytest.param(10, 1e-8, id="a number counts nanoseconds"),
        pytest.param(10.9, 1e-8, id="a fraction of a nanosecond is cut off"),
        pytest.param("0s", 7, id="zero means the default"),
        pytest.param(0, 7, id="the number zero means the default"),
        pytest.param("-1s", -1, id="a negative duration is allowed"),
    ],
)
def test_a_field_takes_a_string_or_nanoseconds(written: object, seconds: float) -> None:
    assert decode_plain({"wait": written}, Holder, what="x").wait == pytest.approx(seconds)


@pytest.mark.parametrize("written", [None, True, [], {}, "soon", 1e30], ids=repr)
def test_a_field_refuses_an_invalid_duration(written: object) -> None:
    with pytest.raises(ConfigMistake, match="x: wait: invalid duration"):
        decode_plain({"wait": written}, Holder, what="x")
