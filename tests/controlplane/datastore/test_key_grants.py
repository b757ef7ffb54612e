# SPDX-License-Identifier: Apache-2.0
"""Which API keys have permissions of ours, on every engine."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.key_grants import KeyGrants
from pipecd.controlplane.datastore.schema import EXT_KEY_APPROVAL, EXT_SESSION_KEY
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.ids import new_id


@pytest.mark.parametrize(
    "grants_of",
    [
        pytest.param(lambda stores: stores.key_approvals, id="approving"),
        pytest.param(lambda stores: stores.session_keys, id="managing sessions"),
    ],
)
async def test_a_key_has_a_permission_between_grant_and_revocation(
    stores: Stores, grants_of: Callable[[Stores], KeyGrants]
) -> None:
    grants, key, other, project = grants_of(stores), new_id(), new_id(), new_id()
    assert await grants.is_granted(key) is False
    await grants.grant(key, project, by="ann")
    await grants.grant(key, project, by="bob")
    await grants.grant(other, new_id(), by="ann")
    assert await grants.is_granted(key) is True
    assert await grants.granted(project) == {key}
    await grants.revoke(key)
    await grants.revoke(key)
    assert await grants.is_granted(key) is False
    assert await grants.is_granted(other) is True


async def test_a_key_that_approves_does_not_manage_sessions(stores: Stores) -> None:
    key = new_id()
    await stores.key_approvals.grant(key, new_id(), by="ann")
    assert await stores.session_keys.is_granted(key) is False


# What the release before keys managed sessions created.
EARLIER_TABLE = """
CREATE TABLE IF NOT EXISTS "ExtKeyApproval" (
    "KeyId" VARCHAR(64) NOT NULL,
    "ProjectId" VARCHAR(128) NOT NULL,
    "GrantedBy" VARCHAR(255) NOT NULL,
    "GrantedAt" BIGINT NOT NULL,
    PRIMARY KEY ("KeyId")
);
CREATE INDEX ext_key_approval_project ON "ExtKeyApproval" ("ProjectId");
INSERT INTO "ExtKeyApproval" VALUES ('key-1', 'shop', 'ann', 1700000000);
"""


async def test_approvals_of_an_earlier_release_are_honoured(tmp_path: Path) -> None:
    file = tmp_path / "pipecd.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(EARLIER_TABLE)
    async with open_sqlite(file) as database:
        approvals = KeyGrants(database, EXT_KEY_APPROVAL)
        assert await approvals.granted("shop") == {"key-1"}
        sessions = KeyGrants(database, EXT_SESSION_KEY)
        assert await sessions.granted("shop") == frozenset()
        await sessions.grant("key-2", "shop", by="ann")
        await approvals.revoke("key-1")
        assert await approvals.is_granted("key-1") is False
        assert await sessions.is_granted("key-2") is True
