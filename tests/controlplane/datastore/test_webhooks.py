# SPDX-License-Identifier: Apache-2.0
"""Every project has one secret for its webhooks, and the one before it for a while."""

import asyncio
from dataclasses import replace

import pytest

from pipecd.controlplane.datastore.projects import SealedSecret
from pipecd.controlplane.datastore.stores import Stores

FIRST = SealedSecret("sealed-1", 1_700_000_000)


async def test_a_secret_is_kept_for_its_project_only(stores: Stores) -> None:
    assert await stores.webhook_secrets.get("shop") is None
    await stores.webhook_secrets.update("shop", lambda _: FIRST)
    assert await stores.webhook_secrets.get("shop") == FIRST
    assert await stores.webhook_secrets.get("Shop") is None


async def test_a_change_sees_what_it_replaces(stores: Stores) -> None:
    await stores.webhook_secrets.update("shop", lambda _: FIRST)
    second = SealedSecret("sealed-2", 1_700_000_001, "sealed-1", 1_700_086_401)

    def change(before: SealedSecret | None) -> SealedSecret:
        assert before == FIRST
        return second

    await stores.webhook_secrets.update("shop", change)
    assert await stores.webhook_secrets.get("shop") == second


async def test_a_removed_secret_is_gone_and_may_come_back(stores: Stores) -> None:
    await stores.webhook_secrets.remove("shop")
    await stores.webhook_secrets.update("shop", lambda _: FIRST)
    await stores.webhook_secrets.remove("shop")
    assert await stores.webhook_secrets.get("shop") is None
    await stores.webhook_secrets.update("shop", lambda before: before or FIRST)
    assert await stores.webhook_secrets.get("shop") == FIRST


@pytest.mark.usefixtures("row_locks")
async def test_of_many_changes_at_once_none_is_lost(stores: Stores) -> None:
    def counted(before: SealedSecret | None) -> SealedSecret:
        return replace(before, created_at=before.created_at + 1) if before else replace(FIRST)

    await asyncio.gather(*(stores.webhook_secrets.update("shop", counted) for _ in range(10)))
    found = await stores.webhook_secrets.get("shop")
    assert found is not None
    assert found.created_at == FIRST.created_at + 9
