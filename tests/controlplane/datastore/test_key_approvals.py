# SPDX-License-Identifier: Apache-2.0
"""Which API keys may approve, on every engine."""

from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.ids import new_id


async def test_a_key_may_approve_between_grant_and_revocation(stores: Stores) -> None:
    grants, key, other, project = stores.key_approvals, new_id(), new_id(), new_id()
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
