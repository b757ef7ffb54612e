# SPDX-License-Identifier: Apache-2.0
"""A value of a JSON file is replaced, and every other byte stays as it was."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.field_tree import replace_field
from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.json_field import parse_json

FILE = """\
{
    "image" : "shop:v1",  // as it is allowed in some programs
\t"count": 3, /* two
    lines */
    "flag": true, "ratio": 1.50e3,
    "deep": [{"tag": "a\\u0041"}, {"tag": "b"}],
    "none": null,
}"""


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        pytest.param("$.image", 'v"2', '"shop:v1"', '"v\\"2"', id="text stays text"),
        pytest.param("$.image", "2", '"shop:v1"', '"2"', id="text of digits too"),
        pytest.param("$.count", "-4.5", '"count": 3', '"count": -4.5', id="a number stays a number"),
        pytest.param("$.flag", "false", '"flag": true', '"flag": false', id="a boolean"),
        pytest.param("$.deep[0].tag", "ü", '"a\\u0041"', '"ü"', id="an item of a list"),
        pytest.param("$.deep[*].tag", "b", '"a\\u0041"', '"b"', id="items that differ"),
    ],
)  # fmt: skip
def test_only_the_value_changes(path: str, value: str, before: str, after: str) -> None:
    assert FILE.count(before) == 1
    assert replace_field(FILE, parse_json, path, value) == FILE.replace(before, after)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("$.image", "shop:v1", id="text"),
        pytest.param("$.deep[0].tag", "aA", id="text that is spelled otherwise"),
        pytest.param("$.ratio", "1.50e3", id="a number"),
    ],
)
def test_a_value_that_is_there_already_changes_nothing(path: str, value: str) -> None:
    assert replace_field(FILE, parse_json, path, value) == FILE


@pytest.mark.parametrize(
    ("text", "path", "error"),
    [
        pytest.param('{"a": 1}', "$.b", "there is no $.b", id="a name that is not there"),
        pytest.param('{"a": 1}', "$.a", "is a number, and 'x' is not", id="text for a number"),
        pytest.param('{"a": true}', "$.a", "is true or false, and 'x' is not", id="text for a boolean"),
        pytest.param('{"a": null}', "$.a", "is null", id="null"),
        pytest.param('{"a": [1]}', "$.a", "is a list", id="a list"),
        pytest.param('{"a": 1', "$.a", "a comma or } is missing in line 1", id="an object without an end"),
        pytest.param('{\n"a" 1}', "$.a", "a colon is missing in line 2", id="no colon"),
        pytest.param("{a: 1}", "$.a", "a string is missing", id="a name without quotes"),
        pytest.param('{"a": 1} x', "$.a", "the end of the file is missing", id="more than one value"),
        pytest.param("", "$", "a value is missing", id="an empty file"),
        pytest.param("[" * 200, "$", "nested", id="values too deep to read"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_replaced_is_an_error(text: str, path: str, error: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(error)):
        replace_field(text, parse_json, path, "x")


trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)
signs = st.text(st.characters(exclude_categories=["Cs"]))


@given(tree=trees, value=signs, indent=st.sampled_from([None, 0, 3]))
def test_any_replaced_value_can_be_read_back(tree: object, value: str, indent: int | None) -> None:
    text = json.dumps({"before": tree, "a": "old", "after": tree}, indent=indent)
    changed = replace_field(text, parse_json, "$.a", value)
    assert json.loads(changed) == {"before": tree, "a": value, "after": tree}
    assert changed == text.replace('"a": "old"', f'"a": {json.dumps(value, ensure_ascii=False)}')
