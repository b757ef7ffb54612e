# SPDX-License-Identifier: Apache-2.0
"""YAML is read in the dialect of upstream, with the position of every value."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.yaml_tree import List, Map, Scalar, YamlMistake, of_plain, read_yaml, to_plain

YES = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
NO = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
NULL = ("~", "null", "Null", "NULL")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(pytest.param(w, True, id=f"{w} is true") for w in YES),
        *(pytest.param(w, False, id=f"{w} is false") for w in NO),
        *(pytest.param(w, None, id=f"{w} is null") for w in NULL),
        pytest.param("tRue", "tRue", id="mixed case is text"),
        pytest.param("010", 8, id="a leading zero means octal"),
        pytest.param("0755", 493, id="file modes are octal"),
        pytest.param("08", 8, id="no octal number, so a decimal one"),
        pytest.param("0o14", 12, id="octal as in newer YAML"),
        pytest.param("0x1F", 31, id="hexadecimal"),
        pytest.param("-0x1F", -31, id="negative hexadecimal"),
        pytest.param("0b11", 3, id="binary"),
        pytest.param("1_000", 1000, id="underscores are skipped"),
        pytest.param("+1", 1, id="a plus sign"),
        pytest.param("0", 0, id="zero"),
        pytest.param("0x", "0x", id="a prefix without digits is text"),
        pytest.param("1.0", 1, id="a fraction that is whole"),
        pytest.param("1e3", 1000, id="an exponent without a sign"),
        pytest.param("1.50", 1.5, id="a fraction"),
        pytest.param(".5", 0.5, id="a fraction without its zero"),
        pytest.param("5.", 5, id="a fraction without digits"),
        pytest.param("1e400", "1e400", id="a number beyond all numbers is text"),
        pytest.param("9223372036854775808", 2**63, id="a number of 64 bits without a sign"),
        pytest.param("18446744073709551616", 18446744073709551616, id="beyond 64 bits"),
        pytest.param("9" * 5000, "9" * 5000, id="thousands of digits are text"),
        pytest.param("12:30:45", "12:30:45", id="base 60 is text"),
        pytest.param("1:30", "1:30", id="short base 60 is text"),
        pytest.param("2020-01-01", "2020-01-01", id="a date is text"),
        pytest.param("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00", id="a moment is text"),
        pytest.param("1.2.3", "1.2.3", id="a version is text"),
        pytest.param("'yes'", "yes", id="quoted words are text"),
        pytest.param('"5"', "5", id="quoted numbers are text"),
        pytest.param("!!str 5", "5", id="a tag makes text"),
        pytest.param("!!int '5'", 5, id="a tag makes a number"),
        pytest.param("!!float 5", 5, id="a whole number is a fraction too"),
        pytest.param("!!binary aGk=", "hi", id="base64 is decoded"),
        pytest.param("!mine 5", "5", id="an unknown tag makes text"),
        pytest.param("|\n  a\n  b\n", "a\nb\n", id="a block of text"),
    ],
)  # fmt: skip
def test_an_unquoted_word_has_the_value_of_upstream(text: str, value: object) -> None:
    read = to_plain(read_yaml(f"- {text}"))[0]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("", None, id="an empty file is null"),
        pytest.param("# nothing\n", None, id="a file of comments is null"),
        pytest.param("a: 1\na: 2", {"a": 2}, id="of equal keys the last wins"),
        pytest.param("a: 1\n---\na: [", {"a": 1}, id="only the first document is read"),
        pytest.param('{"a": [1, "x", null, {"b": true}]}', {"a": [1, "x", None, {"b": True}]}, id="JSON is YAML"),
        pytest.param("5: a\n1.5: b\non: c\nno: d", {"5": "a", "1.5": "b", "true": "c", "false": "d"}, id="keys become text"),
        pytest.param("a: &x [1]\nb: *x", {"a": [1], "b": [1]}, id="an alias repeats a value"),
        pytest.param("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}", {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}, id="<< fills in keys"),
        pytest.param("a: &x {q: 2}\nb: {q: 3, <<: *x}", {"a": {"q": 2}, "b": {"q": 3}}, id="own keys win wherever << stands"),
        pytest.param("<<: [{r: 1}, {r: 2, s: 3}]", {"r": 1, "s": 3}, id="the first of several << wins"),
        pytest.param('"<<": 1', {"<<": 1}, id="a quoted << is a key"),
        pytest.param("a:", {"a": None}, id="nothing after a key is null"),
        pytest.param("\ufeffa: 1".encode(), {"a": 1}, id="a byte order mark is skipped"),
        pytest.param("a: é".encode("utf-16"), {"a": "é"}, id="UTF-16 is read"),
    ],
)  # fmt: skip
def test_a_document_is_read(text: str | bytes, value: object) -> None:
    assert to_plain(read_yaml(text)) == value


@pytest.mark.parametrize(
    ("text", "message", "position"),
    [
        pytest.param("a: [", "not valid YAML", (2, 1), id="an open bracket"),
        pytest.param("a:\n\t- b", "indent with spaces", (2, 1), id="a tab"),
        pytest.param("a: 1\n  b: 2", "not valid YAML", (2, 4), id="a key in the wrong column"),
        pytest.param("a: *x", "no value before this alias has the anchor &x", (1, 4), id="an unknown alias"),
        pytest.param("&a [*a]", "contains itself", (1, 5), id="a value inside itself"),
        pytest.param("? [1]\n: 2", "a key must be a scalar", (1, 3), id="a list as a key"),
        pytest.param("~: 1", "a key must not be null", (1, 1), id="null as a key"),
        pytest.param("a: .inf", ".inf cannot be used", (1, 4), id="infinity"),
        pytest.param("a: .nan", ".nan cannot be used", (1, 4), id="not a number"),
        pytest.param("a: !!int x", "this is not a valid !!int", (1, 4), id="a tag that does not fit"),
        pytest.param("a: !!binary x", "not UTF-8 text in base64", (1, 4), id="invalid base64"),
        pytest.param("a:\n  <<: 1", "<< takes an object", (2, 3), id="a merge of a number"),
        pytest.param(b"a: \xc3(", "UTF-8", (1, 1), id="bytes that are not UTF-8"),
        pytest.param("a: \x01", "UTF-8", (1, 1), id="a control character"),
        pytest.param("a: \ud800", "UTF-8", (1, 1), id="half a character"),
        pytest.param("- " * 5000, "nested more than 100 deep", (1, 203), id="a list nested without end"),
        pytest.param("[" * 100_000, "nested more than 100 deep", (1, 102), id="brackets without end"),
    ],
)  # fmt: skip
def test_invalid_yaml_is_reported_with_its_position(
    text: str | bytes, message: str, position: tuple[int, int]
) -> None:
    with pytest.raises(YamlMistake, match=message) as caught:
        read_yaml(text)
    assert caught.value.mark == position


def test_nested_aliases_are_limited() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefghij", "abcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]")
    with pytest.raises(YamlMistake, match="more than 100000 values"):
        read_yaml("\n".join(lines))


def test_every_value_has_its_position() -> None:
    tree = read_yaml("a: 1\nb:\n  - x\n  - {c: d}\n")
    assert isinstance(tree, Map)
    b = tree.get("b")
    assert b is not None
    assert b.mark == (2, 1)
    assert isinstance(b.value, List)
    assert [item.mark for item in b.value.items] == [(3, 5), (4, 5)]
    inner = b.value.items[1]
    assert isinstance(inner, Map)
    assert inner.entries[0].mark == (4, 6)
    assert inner.entries[0].value == Scalar("d", inner.entries[0].value.mark)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8", exclude_categories=["C"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abcxyz-_", min_size=1), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
def test_json_is_read_as_json(value: Any) -> None:
    assert to_plain(read_yaml(json.dumps(value, ensure_ascii=False))) == value
    assert to_plain(of_plain(value)) == value


@given(st.text() | st.binary())
def test_any_text_is_read_or_raises_yaml_mistake(text: str | bytes) -> None:
    try:
        to_plain(read_yaml(text))
    except YamlMistake as e:
        assert e.mark.line >= 1


@given(st.text("-[]{}:,&*!|>'\"#%@ab<0.\n \t?~", max_size=40))
def test_any_yaml_like_text_is_read_or_raises_yaml_mistake(text: str) -> None:
    try:
        to_plain(read_yaml(text))
    except YamlMistake as e:
        assert e.mark.line >= 1
