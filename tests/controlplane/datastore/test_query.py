# SPDX-License-Identifier: Apache-2.0
"""Questions as statements."""

import pytest

from pipecd.controlplane.datastore.cursor import Position
from pipecd.controlplane.datastore.postgres.database import STATEMENTS as POSTGRES
from pipecd.controlplane.datastore.query import (
    FEW_ENTRIES,
    NEWEST_UPDATE,
    NOT_DELETED,
    Condition,
    Is,
    Selection,
    equal,
    when_given,
    when_some,
)
from pipecd.controlplane.datastore.sqlite.connection import STATEMENTS
from pipecd.model.application import ApplicationKind


def test_who_names_every_value_asks_for_all() -> None:
    every = [int(kind) for kind in ApplicationKind]
    assert tuple(when_some("Kind", [*every, every[0]], ApplicationKind)) == ()
    assert tuple(when_some("Kind", (), ApplicationKind)) == ()


def test_who_names_most_values_names_the_rest_too() -> None:
    every = tuple(int(kind) for kind in ApplicationKind)
    most = Condition("Kind", Is.ONE_OF, every[1:], rest=every[:1])
    assert tuple(when_some("Kind", every[1:], ApplicationKind)) == (most,)
    few = Condition("Kind", Is.ONE_OF, every[:2])
    assert tuple(when_some("Kind", every[:2], ApplicationKind)) == (few,)


@pytest.mark.parametrize(
    ("weights", "first"),
    [
        pytest.param((FEW_ENTRIES, 700, 30), 2, id="the fewest documents are of one condition"),
        pytest.param((20, 20, FEW_ENTRIES), 0, id="as few are of two conditions"),
        pytest.param((FEW_ENTRIES,) * 3, None, id="every condition is met by many"),
        pytest.param((), None, id="the engine does not count"),
    ],
)
def test_a_page_begins_where_the_fewest_are(weights: tuple[int, ...], first: int | None) -> None:
    conditions = (equal("ProjectId", "p"), *when_given("Kind", 0, 1), *when_given("Status", 2, 3))
    selection = Selection("Deployment", conditions, NEWEST_UPDATE, limit=9)
    assert selection.weighed(weights).first == first


@pytest.mark.parametrize(
    ("conditions", "limit"),
    [
        pytest.param((equal("ProjectId", "p"), equal("Kind", 0)), 9, id="single values"),
        pytest.param(tuple(when_given("Kind", 0, 1)), 9, id="one column"),
        pytest.param((equal("ProjectId", "p"), *when_given("Kind", 0, 1)), 0, id="no page"),
        pytest.param(
            (equal("ProjectId", "p"), *when_given("Kind", 0, 1), NOT_DELETED),
            9,
            id="what no index holds",
        ),
        pytest.param(
            (
                *when_given("ApplicationId", *map(str, range(9))),
                *when_given("ApplicationName", *map(str, range(9))),
            ),
            9,
            id="two long lists",
        ),
    ],
)
def test_nothing_is_counted_where_it_would_not_help(
    conditions: tuple[Condition, ...], limit: int
) -> None:
    assert Selection("Deployment", conditions, NEWEST_UPDATE, limit=limit).weighing is None


def test_a_list_is_asked_for_as_upstream_asks() -> None:
    selection = Selection(
        "Deployment",
        (equal("ProjectId", "p"), *when_given("Status", 0, 1, 2, 3)),
        NEWEST_UPDATE,
        Position("f47ac10b-58cc-4372-a567-0e02b2c3d479", 1_700_000_100),
        30,
    )
    ready = STATEMENTS.ready(selection.statement)
    plain = " ".join(ready.text.replace('"Deployment".', "").replace('"', "").split())
    assert plain == (
        "SELECT Data FROM Deployment WHERE ProjectId = ? AND Status IN (?, ?, ?, ?) AND "
        "UpdatedAt <= ? AND NOT (UpdatedAt = ? AND Id <= ?) "
        "ORDER BY UpdatedAt DESC, Id ASC LIMIT ? OFFSET ?"
    )
    assert list(ready.names)[5:9] == ["after_value", "after_value", "after_id", "limit"]
    assert selection.values["after_id"] == bytes.fromhex("437258ccf47ac10ba5670e02b2c3d479")


@pytest.mark.parametrize(
    ("statuses", "is_spelled_out"),
    [
        pytest.param((2, 3), True, id="both columns are one of several values"),
        pytest.param((2,), False, id="only one column is"),
    ],
)
def test_postgresql_reads_an_index_for_one_list_of_values_at_a_time(
    statuses: tuple[int, ...], is_spelled_out: bool
) -> None:
    conditions = (
        equal("ProjectId", "p"),
        *when_given("Kind", 0, 1),
        *when_given("Status", *statuses),
    )
    selection = Selection("Deployment", conditions, NEWEST_UPDATE, limit=9)
    text = POSTGRES.ready(selection.statement).text
    assert '"Kind" IN (' in text
    assert (' OR "Deployment"."Status" = ' in text) is is_spelled_out
    assert " OR " not in STATEMENTS.ready(selection.statement).text
