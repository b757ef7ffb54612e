# SPDX-License-Identifier: Apache-2.0
"""Regular expressions match as Go's do, whatever they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.regex import Regex, RegexSyntaxError


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        pytest.param("a*", "baac", "xbxcx", id="no empty match after another match"),
        pytest.param("", "é", "xéx", id="empty matches lie between characters"),
        pytest.param("a", "bab", "bxb", id="a match within the text"),
        pytest.param("^a", "aa", "xa", id="the beginning is that of the text"),
        pytest.param(".", "a\n\udcff", "x\n\udcff", id="a byte that is no UTF-8 stays"),
    ],
)
def test_every_match_is_replaced_once(pattern: str, text: str, expected: str) -> None:
    assert Regex(pattern).replace_all(text, lambda _: "x") == expected


# The results are those of Go 1.24.
@pytest.mark.parametrize(
    ("pattern", "text", "count", "expected"),
    [
        ("a", "banana", -1, ["b", "n", "n", ""]),
        ("a", "banana", 0, []),
        ("a", "banana", 1, ["banana"]),
        ("a", "banana", 2, ["b", "nana"]),
        ("z+", "pizza", -1, ["pi", "a"]),
        ("", "abc", -1, ["a", "b", "c"]),
        ("x*", "abc", 2, ["a", "bc"]),
        ("a", "", -1, [""]),
    ],
)
def test_a_text_is_split_as_go_splits_it(
    pattern: str, text: str, count: int, expected: list[str]
) -> None:
    assert Regex(pattern).split(text, count) == expected


def test_a_name_that_is_not_utf8_matches_as_in_go() -> None:
    assert Regex("^docs/[^/]*$").matches("docs/\udcff")


def test_a_group_is_read_by_number_or_name() -> None:
    match = Regex("(?P<first>a)(b)?").search("xa")
    assert match is not None
    assert [match.text(g) for g in (0, 1, "first", 2, 3, "other")] == ["a", "a", "a", "", "", ""]


@pytest.mark.parametrize("pattern", ["(", r"\Z", "(?=a)", "a{2000}", r"(\pL{900}){9}", "a**"])
def test_what_is_no_expression_of_go_is_refused(pattern: str) -> None:
    with pytest.raises(RegexSyntaxError):
        Regex(pattern)


@given(st.text(max_size=20), st.text(max_size=20))
def test_replacing_matches_by_themselves_changes_nothing(pattern: str, text: str) -> None:
    try:
        regex = Regex(pattern)
    except RegexSyntaxError:
        return
    assert regex.replace_all(text, lambda match: match.text()) == text
