# SPDX-License-Identifier: Apache-2.0
"""The record of the encryption key: the first one of servers that start at once counts."""

import asyncio

import pytest

from pipecd.controlplane.datastore.stores import Stores


@pytest.mark.usefixtures("row_locks")
async def test_servers_that_start_at_once_agree_on_the_first_record(stores: Stores) -> None:
    key = stores.encryption_key
    assert await key.recorded() == ""
    records = await asyncio.gather(*(key.recorded_or(str(n)) for n in range(8)))
    assert len(set(records)) == 1
    assert await key.recorded() == records[0]


async def test_a_record_is_replaced(stores: Stores) -> None:
    await stores.encryption_key.record("a")
    await stores.encryption_key.record("b")
    assert await stores.encryption_key.recorded() == "b"
    assert await stores.encryption_key.recorded_or("c") == "b"
