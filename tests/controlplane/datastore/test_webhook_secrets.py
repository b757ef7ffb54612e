# SPDX-License-Identifier: Apache-2.0
"""The table of webhook secrets: get, update under a lock, and remove."""

import asyncio
from dataclasses import replace

import pytest

from pipecd.controlplane.datastore.projects import EncryptedSecret
from pipecd.controlplane.datastore.stores import Stores

FIRST = EncryptedSecret("encrypted-1", 1_700_000_000)


async def test_a_secret_is_stored_by_project(stores: Stores) -> None:
    assert await stores.webhook_secrets.get("shop") is None
    await stores.webhook_secrets.update("shop", lambda _: FIRST)
    assert await stores.webhook_secrets.get("shop") == FIRST
    assert await stores.webhook_secrets.get("Shop") is None


async def test_all_secrets_are_listed_by_project(stores: Stores) -> None:
    for project in ("shop", "blog"):
        await stores.webhook_secrets.update(project, lambda _: FIRST)
    assert await stores.webhook_secrets.list() == (("blog", FIRST), ("shop", FIRST))


async def test_an_update_gets_the_current_secret(stores: Stores) -> None:
    await stores.webhook_secrets.update("shop", lambda _: FIRST)
    second = EncryptedSecret("encrypted-2", 1_700_000_001, "encrypted-1", 1_700_086_401)

    def change(before: EncryptedSecret | None) -> EncryptedSecret:
        assert before == FIRST
        return second

    await stores.webhook_secrets.update("shop", change)
    assert await stores.webhook_secrets.get("shop") == second


async def test_a_removed_secret_can_be_added_again(stores: Stores) -> None:
    await stores.webhook_secrets.remove("shop")
    await stores.webhook_secrets.update("shop", lambda _: FIRST)
    await stores.webhook_secrets.remove("shop")
    assert await stores.webhook_secrets.get("shop") is None
    await stores.webhook_secrets.update("shop", lambda before: before or FIRST)
    assert await stores.webhook_secrets.get("shop") == FIRST


@pytest.mark.usefixtures("row_locks")
async def test_no_concurrent_update_is_lost(stores: Stores) -> None:
    def counted(before: EncryptedSecret | None) -> EncryptedSecret:
        return replace(before, created_at=before.created_at + 1) if before else replace(FIRST)

    await asyncio.gather(*(stores.webhook_secrets.update("shop", counted) for _ in range(10)))
    stored = await stores.webhook_secrets.get("shop")
    assert stored is not None
    assert stored.created_at == FIRST.created_at + 9
