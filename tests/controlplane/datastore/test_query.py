# SPDX-License-Identifier: Apache-2.0
"""Conditions of a selection and the statement that is built from them."""

from pipecd.controlplane.datastore.cursor import Position
from pipecd.controlplane.datastore.database import compile_statement
from pipecd.controlplane.datastore.engines.sqlite import DIALECT
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
    Comparison,
    Condition,
    Selection,
    any_member_of,
    any_of,
    equal,
)
from pipecd.model.application import ApplicationKind


def test_all_values_of_an_enum_do_not_restrict() -> None:
    every = [int(kind) for kind in ApplicationKind]
    assert tuple(any_member_of("Kind", [*every, every[0]], ApplicationKind)) == ()
    assert tuple(any_member_of("Kind", (), ApplicationKind)) == ()


def test_some_values_of_an_enum_restrict() -> None:
    few = Condition("Kind", Comparison.ONE_OF, (0, 1))
    assert tuple(any_member_of("Kind", (0, 1, 0), ApplicationKind)) == (few,)


def test_a_long_list_is_padded_with_nulls() -> None:
    selection = Selection("Deployment", tuple(any_of("PipedId", *"abcdefghi")), NEWEST_UPDATE)
    values = list(selection.values.values())
    assert values == [*"abcdefghi", *[None] * 7]


def test_the_statement_of_a_list_equals_that_of_upstream() -> None:
    selection = Selection(
        "Deployment",
        (equal("ProjectId", "p"), *any_of("Status", 0, 1, 2, 3)),
        NEWEST_UPDATE,
        Position("f47ac10b-58cc-4372-a567-0e02b2c3d479", 1_700_000_100),
        30,
    )
    compiled = compile_statement(selection.statement, DIALECT)
    plain = " ".join(compiled.text.replace('"Deployment".', "").replace('"', "").split())
    assert plain == (
        "SELECT Data FROM Deployment WHERE ProjectId = ? AND Status IN (?, ?, ?, ?) AND "
        "UpdatedAt <= ? AND NOT (UpdatedAt = ? AND Id <= ?) "
        "ORDER BY UpdatedAt DESC, Id ASC LIMIT ? OFFSET ?"
    )
    assert list(compiled.names)[5:9] == ["after_value", "after_value", "after_id", "limit"]
    assert selection.values["after_id"] == bytes.fromhex("437258ccf47ac10ba5670e02b2c3d479")
