# SPDX-License-Identifier: Apache-2.0
"""The first group of an expression is replaced wherever the expression matches."""

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.regex import replace_regex, translate


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
    ],
)  # fmt: skip
async def test_only_the_group_changes(text: str, pattern: str, after: str) -> None:
    assert await replace_regex(text, pattern, "NEW") == after


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        pytest.param("nowhere(x)", "doesn't match nowhere(x)", id="no match"),
        pytest.param("some", "capturing group not found", id="no group"),
        pytest.param("(some", "is not a regular expression", id="no expression"),
        pytest.param(r"(\pL)", r"\p is not supported", id="a property of Unicode"),
        pytest.param("([[:^alpha:]])", "is not supported", id="a class that is turned round"),
        pytest.param("(?U)(a)", "flags U are not supported", id="a flag that Python lacks"),
        pytest.param("a(?i)(b)", "flags not at the start", id="a flag in the middle"),
    ],
)
async def test_a_value_that_cannot_be_replaced_is_an_error(pattern: str, error: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(error)):
        await replace_regex("some text", pattern, "NEW")


async def test_an_expression_without_end_times_out() -> None:
    with pytest.raises(UserMistake, match="takes too long"):
        await replace_regex("a" * 60 + "!", "(a+)+$", "NEW", timeout_seconds=0.5)


@given(st.text("ab()[]^$.*+?|\\dQE:{}1,", max_size=12))
@settings(deadline=None)
def test_any_expression_is_translated_or_refused(pattern: str) -> None:
    with contextlib.suppress(UserMistake):
        re.compile(translate(pattern), re.ASCII)
