# SPDX-License-Identifier: Apache-2.0
"""Questions as statements."""

from pipecd.controlplane.datastore.cursor import Position
from pipecd.controlplane.datastore.query import (
    NEWEST_UPDATE,
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
    assert tuple(when_some("Kind", every[1:], ApplicationKind)) == tuple(
        when_given("Kind", *every[1:])
    )


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
