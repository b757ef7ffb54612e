# SPDX-License-Identifier: Apache-2.0
"""The first group of an expression is replaced wherever the expression matches."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.regex import replace_regex


@pytest.mark.parametrize(
    ("text", "pattern", "after"),
    [
        pytest.param("image: shop:v1 # c\r\n", "image: shop:(v[0-9]+)", "image: shop:NEW # c\r\n", id="the group only"),
        pytest.param("a=1\na=2\n", "a=([0-9])", "a=NEW\na=NEW\n", id="every match"),
        pytest.param("v1.2", "(v.*)", "NEW", id="an expression that is one group"),
        pytest.param("x1 y2", "x(1) y(2)", "xNEW y2", id="the first of several groups"),
        pytest.param("a1 b2", "a(1)|b2", "aNEW b2", id="matches without the group stay"),
        pytest.param("tag: ", "tag: (.*)", "tag: NEW", id="a group that matched nothing"),
        pytest.param("a\nb\n", "(?m)^(b)$", "a\nNEW\n", id="lines, where the flag says so"),
        pytest.param("b\nb", "(b)$", "b\nNEW", id="the end is the end of the file"),
        pytest.param("Ab", "(?i)a(B)", "ANEW", id="capitals do not matter, where the flag says so"),
        pytest.param("x1", r"x([[:digit:]]+)\z", "xNEW", id="the syntax of RE2"),
        pytest.param("a.b+c", r"a\Q.b+\E(c)", "a.b+NEW", id="a quotation of RE2"),
        pytest.param("٣3", r"(\d)", "٣NEW", id="digits are those of ASCII"),
        pytest.param("k]x", "k[]](x)", "k]NEW", id="a bracket that comes first in a set"),
        pytest.param("name: é v1", "(?P<tag>v1)", "name: é NEW", id="a group with a name"),
        pytest.param("é1", r"(\pL)", "NEW1", id="a property of Unicode"),
        pytest.param("a1", "([[:^alpha:]])", "aNEW", id="a class that is turned round"),
        pytest.param("aab", "(?U)(a+)", "NEWNEWb", id="the shortest match, where the flag says so"),
        pytest.param("aB", "a(?i)(b)", "aNEW", id="a flag in the middle"),
        pytest.param("a" * 60 + "!", "(a+)+!", "NEW!", id="repetitions inside of repetitions"),
    ],
)  # fmt: skip
def test_only_the_group_changes(text: str, pattern: str, after: str) -> None:
    assert replace_regex(text, pattern, "NEW") == after


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        pytest.param("nowhere(x)", "doesn't match nowhere(x)", id="no match"),
        pytest.param("some", "capturing group not found", id="no group"),
        pytest.param("(some", "is not a regular expression", id="no expression"),
        pytest.param("(?=some)(x)", "is not a regular expression", id="what only Python matches"),
        pytest.param(r"(some)\1", "is not a regular expression", id="a backreference"),
        pytest.param("(a{1001})", "is not a regular expression", id="too many repetitions"),
    ],
)
def test_a_value_that_cannot_be_replaced_is_an_error(pattern: str, error: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(error)):
        replace_regex("some text", pattern, "NEW")


@given(st.text("ab()[]^$.*+?|\\dQE:{}1,", max_size=12))
def test_any_expression_is_used_or_refused(pattern: str) -> None:
    with contextlib.suppress(UserMistake):
        replace_regex("ab 1", pattern, "NEW")
