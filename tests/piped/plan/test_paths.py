# SPDX-License-Identifier: Apache-2.0
"""Path patterns match as upstream's do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.errors import UserMistake
from pipecd.piped.plan.paths import path_patterns


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        pytest.param("docs", "docs/a/b.md", True, id="a directory takes what is below"),
        pytest.param("docs/", "docs/a/b.md", True, id="a trailing slash changes nothing"),
        pytest.param("./docs", "docs/a/b.md", True, id="a leading dot changes nothing"),
        pytest.param(
            "docs/*", "docs/a/b.md", True, id="a star matches the directory above the file"
        ),
        pytest.param("/docs", "docs/a.md", False, id="an absolute pattern never matches"),
        pytest.param("//docs", "docs/a.md", False, id="nor one with two slashes"),
        pytest.param("*", "a/b", True, id="a lone star matches every directory"),
        pytest.param("*.md", "docs/a.md", False, id="a star stays within its element"),
        pytest.param("**/*.md", "docs/x/a.md", True, id="two stars cross elements"),
        pytest.param("**/*.md", "a.md", True, id="two stars may stand for nothing"),
        pytest.param("docs/**", "docs", False, id="below does not include the directory itself"),
        pytest.param("docs/**", "docs/a/b", True, id="two stars at the end take the rest"),
        pytest.param("a.*b", "axxb", False, id="a dot is a dot"),
        pytest.param(r".*\.yaml", "x.yaml", False, id="this is no regular expression"),
        pytest.param("(foo|bar)/x", "foo/x", True, id="other special characters are not escaped"),
        pytest.param("foo|bar", "xbar", True, id="the anchors do not enclose alternatives"),
        pytest.param("app", "app2/x", False, id="a name is whole"),
        pytest.param("a?c", "abc", True, id="a question mark is one character"),
        pytest.param("a?c", "a/c", False, id="but no slash"),
        pytest.param(r"a\*", "a*", True, id="an escaped star is a star"),
        pytest.param(r"a\*", "ab", False, id="and nothing else"),
        pytest.param("[ab]x", "bx", True, id="a class"),
        pytest.param("[^ab]x", "cx", True, id="a negated class"),
        pytest.param("[[&&~~||]x", "&x", True, id="a class is what a shell takes it for"),
        pytest.param("a$", "a$", True, id="a dollar is a dollar"),
        pytest.param("a", "a\n", False, id="a line break is part of a name"),
        pytest.param("  docs  ", "docs/a", True, id="white space around is ignored"),
        pytest.param("x/../docs", "docs/a", True, id="dots are folded"),
        pytest.param("!docs", "docs/a", False, id="an exclusion alone includes nothing"),
    ],
)
def test_match(pattern: str, path: str, expected: bool) -> None:
    assert path_patterns([pattern]).match(path) is expected


def test_an_exclusion_beats_every_inclusion() -> None:
    patterns = path_patterns(["docs/**", "!docs/keep.md"])
    assert patterns.match("docs/other.md")
    assert not patterns.match("docs/keep.md")
    assert not patterns.match_all(["docs/other.md", "docs/keep.md"])


def test_blank_patterns_are_dropped() -> None:
    assert path_patterns(["", "  "]).patterns == ()
    assert not path_patterns([]).match("a")


@pytest.mark.parametrize(
    "pattern", ["[", "[]", "[a", "[a-", "[-a]", "[a-]", "a\\", "(", "*)", "[]a]"]
)
def test_a_malformed_pattern_is_an_error(pattern: str) -> None:
    with pytest.raises(UserMistake, match="syntax error in pattern"):
        path_patterns([pattern])


def test_an_exclamation_mark_alone_is_an_error() -> None:
    with pytest.raises(UserMistake, match="illegal exclusion pattern"):
        path_patterns(["!"])


NAMES = st.text("abc", min_size=1, max_size=3)


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_a_path_matches_itself_and_what_is_below_it(elements: list[str]) -> None:
    path = "/".join(elements)
    pattern = path_patterns([path])
    assert pattern.match(path)
    assert pattern.match(f"{path}/below/it")
    assert not pattern.match(f"{path}x")


@given(st.text(max_size=8))
def test_any_text_is_a_pattern_or_a_user_mistake(text: str) -> None:
    try:
        path_patterns([text]).match("a/b")
    except UserMistake as e:
        assert "pattern" in str(e)
