# SPDX-License-Identifier: Apache-2.0
"""Documents are compared by the rules of upstream."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.sdk.diff import MISSING, Node, Options, compare, find, scalar_text

DRIFT = Options(equate_empty=True, subset=True, numeric_strings=True)

documents = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2) | st.text("ab1", max_size=3),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text("abc", max_size=2), below, max_size=3)
    ),
    max_leaves=12,
)


def rows_of(nodes: list[Node]) -> list[tuple[str, Any, Any]]:
    """Returns path, old and new value of every node."""
    return [(node.where, node.old, node.new) for node in nodes]


@pytest.mark.parametrize(
    ("old", "new", "options", "rows"),
    [
        pytest.param({"a": 1}, {"a": 1.0}, Options(), [], id="numbers are compared by value"),
        pytest.param(
            {"a": 1}, {"a": True}, Options(), [("a", 1, True)], id="a boolean is no number"
        ),
        pytest.param({"a": "1"}, {"a": 1}, Options(), [("a", "1", 1)], id="a text is no number"),
        pytest.param({"a": "1.50"}, {"a": 1.5}, DRIFT, [], id="unless numeric texts are read"),
        pytest.param({"a": "2"}, {"a": 1}, DRIFT, [("a", 2.0, 1)], id="and then shown as numbers"),
        pytest.param(
            {"a": "t"},
            {"a": True},
            Options(boolean_strings=True),
            [],
            id="a text may mean a boolean",
        ),
        pytest.param({"a": ""}, {"a": 0}, Options(), [], id="two empty values are equal"),
        pytest.param({"a": {}}, {"a": None}, Options(), [], id="an empty map and a null too"),
        pytest.param(
            {},
            {"a": None},
            Options(),
            [("a", MISSING, None)],
            id="but a missing value is not a null",
        ),
        pytest.param({}, {"a": []}, DRIFT, [], id="unless emptiness is equated"),
        pytest.param({"a": 1}, {}, DRIFT, [], id="fields that servers add are left out"),
        pytest.param(
            {"a": [1, 2]}, {"a": [1]}, DRIFT, [("a.1", 2, MISSING)], id="elements they add are not"
        ),
        pytest.param(
            {"a": list(range(12))},
            {"a": [*range(1, 13)]},
            Options(),
            sorted((f"a.{i}", i, i + 1) for i in range(12)),
            id="paths are in the order of texts",
        ),
        pytest.param(
            {"a": {"b": {"c": 1}}},
            {"a": {"b": {"c": 2}}},
            Options(ignored=frozenset({"a.b"})),
            [],
            id="an ignored path hides all below it",
        ),
        pytest.param(
            {},
            {"a": {"b": 1, "c": [1, 2]}},
            Options(ignored=frozenset({"a.b", "a.c.0"})),
            [("a", MISSING, {"c": [2]})],
            id="ignored parts are taken out of a larger difference",
        ),
    ],
)
def test_the_differences_of_two_documents(
    old: Any, new: Any, options: Options, rows: list[tuple[str, Any, Any]]
) -> None:
    assert rows_of(compare(old, new, options)) == rows


@given(documents)
def test_a_document_equals_itself(document: Any) -> None:
    assert compare(document, document) == []


@given(documents, documents)
def test_both_directions_have_the_same_paths(old: Any, new: Any) -> None:
    paths = {node.where for node in compare(old, new)}
    assert paths == {node.where for node in compare(new, old)}


@given(documents, documents)
def test_a_drift_comparison_has_a_subset_of_the_differences(old: Any, new: Any) -> None:
    strict = {node.where for node in compare(old, new)}
    assert {node.where for node in compare(old, new, DRIFT)} <= strict


def test_find_matches_paths_by_a_pattern() -> None:
    nodes = compare({"spec": {"a": 1, "b": 1}}, {"spec": {"a": 2, "b": 2}})
    assert [node.where for node in find(nodes, r"^spec\.b$")] == ["spec.b"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (1.50, "1.5"),
        (1e-7, "0.0000001"),
        (1.25e-7, "0.000000125"),
        (1e22, "10000000000000000000000"),
        (True, "true"),
        (None, "null"),
        ("x", "x"),
    ],
)
def test_a_scalar_is_written_without_exponent_and_quotes(value: Any, text: str) -> None:
    assert scalar_text(value) == text
