# SPDX-License-Identifier: Apache-2.0
"""A value of a YAML file is replaced, and every other byte stays as it was."""

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.field_tree import replace_field
from pipecd.model.errors import UserMistake
from pipecd.piped.eventwatcher.yaml_field import parse_yaml

FILE = """\
# The shop.

apiVersion: v1   # two spaces, a comment
image: &image  registry/shop:v1  # the one
'quoted': 'it''s'
"double": "a\\tb"
app.kubernetes.io/name: shop
same: *image
number: 3
ratio: 1.5
flag: true
nothing:
flow: {tag: v1, ports: [80, "81"]}
list:
- name: a
  tag: !!str v1
-   name: b
    tag: v2
text: |   # as it is
    one
      two

folded: >-
    one
    two
last: end"""


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        pytest.param("$.apiVersion", "v2", "apiVersion: v1 ", "apiVersion: v2 ", id="a plain value stays plain"),
        pytest.param("$.image", "r/shop:v2", "registry/shop:v1  #", "r/shop:v2  #", id="an anchor and a comment stay"),
        pytest.param("$.quoted", "it's 'ours'", "'it''s'", "'it''s ''ours'''", id="single quotes stay"),
        pytest.param("$.double", 'say "x"\n', '"a\\tb"', '"say \\"x\\"\\n"', id="double quotes stay"),
        pytest.param("$.'app.kubernetes.io/name'", "x", "name: shop", "name: x", id="a name with dots is quoted in the path"),
        pytest.param("$['app.kubernetes.io/name']", "x", "name: shop", "name: x", id="brackets name it too"),
        pytest.param("$.same", "v3", "*image", "v3", id="a reference gets a value of its own"),
        pytest.param("$.number", "5", "number: 3", "number: 5", id="a number stays a number"),
        pytest.param("$.number", "many", "number: 3", "number: many", id="a number may become text"),
        pytest.param("$.apiVersion", "123", "apiVersion: v1", 'apiVersion: "123"', id="text that reads as a number stays text"),
        pytest.param("$.apiVersion", "on", "apiVersion: v1", 'apiVersion: "on"', id="text that reads as a boolean stays text"),
        pytest.param("$.apiVersion", "2026-11-15", "apiVersion: v1", 'apiVersion: "2026-11-15"', id="text that reads as a date stays text"),
        pytest.param("$.apiVersion", "a: b", "apiVersion: v1", 'apiVersion: "a: b"', id="a value that cannot be plain is quoted"),
        pytest.param("$.apiVersion", "", "apiVersion: v1", 'apiVersion: ""', id="an empty value is quoted"),
        pytest.param("$.flow.tag", "v2", "{tag: v1,", "{tag: v2,", id="within braces"),
        pytest.param("$.flow.tag", "a,b", "{tag: v1,", '{tag: "a,b",', id="a comma within braces is quoted"),
        pytest.param("$.flow.tag", "r/a:v2", "{tag: v1,", "{tag: r/a:v2,", id="a colon within braces is not"),
        pytest.param("$.flow.ports[1]", "82", '"81"', '"82"', id="within brackets"),
        pytest.param("$.list[0].tag", "v9", "!!str v1", "!!str v9", id="a tag stays"),
        pytest.param("$.list[1].tag", "v9", "tag: v2", "tag: v9", id="the second item"),
        pytest.param("$.list[*].tag", "v2", "!!str v1", "!!str v2", id="every item that differs"),
        pytest.param("$.list..tag", "v2", "!!str v1", "!!str v2", id="at any depth"),
        pytest.param("$.text", "three\n\n four", "    one\n      two\n", "    three\n\n     four\n", id="lines keep their indentation"),
        pytest.param("$.text", " odd", "|   # as it is\n    one\n      two\n", '" odd"   # as it is\n', id="a value that cannot be a block is quoted"),
        pytest.param("$.folded", "v9", "    one\n    two\n", "    v9\n", id="folded text"),
        pytest.param("$.folded", "a\nb", ">-\n    one\n    two\n", '"a\\nb"\n', id="lines cannot be folded"),
        pytest.param("$.last", "v9", "last: end", "last: v9", id="no line break is added at the end"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("line_break", ["\n", "\r\n"], ids=["lines of Unix", "lines of Windows"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["without a mark", "with a byte order mark"])
def test_only_the_value_changes(
    path: str, value: str, before: str, after: str, line_break: str, mark: str
) -> None:
    def as_written(text: str) -> str:
        return text.replace("\n", line_break)

    assert FILE.count(before) == 1
    text = mark + as_written(FILE)
    changed = replace_field(text, parse_yaml, path, value)
    assert changed == text.replace(as_written(before), as_written(after))
    # What is up to date is left alone.
    assert replace_field(changed, parse_yaml, path, value) == changed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("$.quoted", "it's", id="in quotes"),
        pytest.param("$.number", "3", id="a number"),
        pytest.param("$.text", "one\n  two", id="lines"),
        pytest.param("$.folded", "one two", id="folded text"),
        pytest.param("$.same", "registry/shop:v1", id="a reference"),
    ],
)
def test_a_value_that_is_there_already_changes_nothing(path: str, value: str) -> None:
    assert replace_field(FILE, parse_yaml, path, value) == FILE


@pytest.mark.parametrize(
    ("text", "path", "error"),
    [
        pytest.param("a: 1", "$.b", "there is no $.b", id="a name that is not there"),
        pytest.param("a: [1]", "$.a[1]", "there is no $.a[1]", id="an item that is not there"),
        pytest.param("a: {b: 1}", "$.a", "$.a is an object", id="an object"),
        pytest.param("a: [1]", "$.a", "$.a is a list", id="a list"),
        pytest.param("a:", "$.a", "$.a is null", id="null"),
        pytest.param("a: &x {b: 1}\nc: *x", "$.c.b", "there is no $.c.b", id="inside of a reference"),
        pytest.param("a: &x {b: 1}\nc: *x", "$.c", "is an alias of &x", id="a reference to an object"),
        pytest.param("a: [", "$.a", "not valid YAML", id="no YAML"),
        pytest.param("a: \0", "$.a", "not valid YAML", id="characters that YAML forbids"),
        pytest.param("a: 1", "a", "must begin with $", id="a path without a dollar sign"),
        pytest.param("a: 1", "$.a[", "cannot be parsed from '['", id="a path that is cut off"),
        pytest.param("[" * 200 + "]" * 200, "$.a", "nested", id="values too deep to read"),
        pytest.param("", "$.a", "there is no $.a", id="an empty file"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_replaced_is_an_error(text: str, path: str, error: str) -> None:
    with pytest.raises(UserMistake, match=re.escape(error)):
        replace_field(text, parse_yaml, path, "x")


def test_every_document_that_has_the_place_is_changed() -> None:
    text = "a: 1\n---\nb: 1\n---\na: 2\n...\n"
    assert replace_field(text, parse_yaml, "$.a", "3") == "a: 3\n---\nb: 1\n---\na: 3\n...\n"


printable = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
values = st.one_of(printable, st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
styles = st.sampled_from(["old", "3", "'old'", '"old"', "&a old", "!!str old", "|\n    old", ">-\n    old"])  # fmt: skip


@given(value=values, old=styles, before=printable, after=printable)
def test_any_replaced_value_can_be_read_back(value: str, old: str, before: str, after: str) -> None:
    head = yaml.safe_dump({"before": before}, allow_unicode=True)
    tail = yaml.safe_dump({"after": after}, allow_unicode=True)
    text = f"{head}a:\n  b: {old}\n{tail}"
    changed = replace_field(text, parse_yaml, "$.a.b", value)
    read: dict[str, Any] = yaml.load(changed, yaml.CBaseLoader)
    assert read["a"]["b"].removesuffix("\n") == value.removesuffix("\n")
    assert yaml.safe_load(changed)["before"] == before
    assert changed.startswith(f"{head}a:\n  b: ")
    assert changed.endswith(f"\n{tail}")


@given(value=values)
def test_any_value_in_a_flow_list_can_be_read_back(value: str) -> None:
    changed = replace_field("{a: [old, x], b: y}", parse_yaml, "$.a[0]", value)
    assert yaml.load(changed, yaml.CBaseLoader) == {"a": [value, "x"], "b": "y"}
    assert changed.startswith("{a: [") and changed.endswith(", x], b: y}")


doubtful = st.one_of(
    st.text("0123456789.:-_+eExoTZ", min_size=1, max_size=10),
    st.sampled_from(
        ["yes", "No", "on", "OFF", "y", "~", "null", "True", ".inf", "-.NaN", "=", "<<"]
    ),
)


@given(value=doubtful)
def test_text_stays_text(value: str) -> None:
    changed = replace_field("a: old\nb: 1", parse_yaml, "$.a", value)
    assert yaml.safe_load(changed) == {"a": value, "b": 1}


names = st.text("abcdé-_./ 0", min_size=1, max_size=5)
trees = st.recursive(
    printable,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.dictionaries(names, inner, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def leaves(tree: Any, path: str = "$") -> list[str]:
    """The paths of all texts in a tree."""
    if isinstance(tree, dict):
        return [p for key, child in tree.items() for p in leaves(child, f"{path}['{key}']")]
    if isinstance(tree, list):
        return [p for n, child in enumerate(tree) for p in leaves(child, f"{path}[{n}]")]
    return [path]


def at(tree: Any, path: str) -> Any:
    for key, number in re.findall(r"\['([^']*)'\]|\[(\d+)\]", path):
        tree = tree[int(number)] if number else tree[key]
    return tree


@given(data=st.data(), tree=st.dictionaries(names, trees, min_size=1, max_size=4), value=printable)
def test_in_any_file_one_value_changes_and_all_others_stay(
    data: st.DataObject, tree: dict[str, Any], value: str
) -> None:
    text = yaml.dump(
        tree,
        allow_unicode=data.draw(st.booleans()),
        default_flow_style=data.draw(st.sampled_from([None, True, False])),
        default_style=data.draw(st.sampled_from([None, '"', "'", "|", ">"])),
        width=data.draw(st.sampled_from([20, 1000])),
    )
    before = yaml.load(text, yaml.CBaseLoader)
    path = data.draw(st.sampled_from(leaves(tree)))
    if at(before, path) == "":
        return
    changed = replace_field(text, parse_yaml, path, value)
    after = yaml.load(changed, yaml.CBaseLoader)
    assert at(after, path).rstrip("\n") == value.rstrip("\n")
    for other in leaves(tree):
        if other != path:
            assert at(after, other) == at(before, other)
