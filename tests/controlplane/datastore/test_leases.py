# SPDX-License-Identifier: Apache-2.0
"""A lease has one holder at a time."""

import asyncio
from typing import Any

from pipecd.controlplane.datastore.stores import Stores


async def test_a_lease_is_taken_by_one_until_it_expires(stores: Stores, clock: Any) -> None:
    assert await stores.leases.acquire("insights", "a", seconds=10)
    assert not await stores.leases.acquire("insights", "b", seconds=10)
    clock.seconds += 9.9
    assert not await stores.leases.acquire("insights", "b", seconds=10)
    clock.seconds += 0.1
    assert await stores.leases.acquire("insights", "b", seconds=10)
    assert not await stores.leases.acquire("insights", "a", seconds=10)


async def test_the_holder_renews_its_lease(stores: Stores, clock: Any) -> None:
    assert await stores.leases.acquire("insights", "a", seconds=10)
    clock.seconds += 9
    assert await stores.leases.acquire("insights", "a", seconds=10)
    clock.seconds += 9
    assert not await stores.leases.acquire("insights", "b", seconds=10)


async def test_a_lease_is_given_back_by_its_holder_only(stores: Stores) -> None:
    assert await stores.leases.acquire("insights", "a", seconds=10)
    await stores.leases.release("insights", "b")
    assert not await stores.leases.acquire("insights", "b", seconds=10)
    await stores.leases.release("insights", "a")
    assert await stores.leases.acquire("insights", "b", seconds=10)


async def test_leases_of_other_names_are_free(stores: Stores) -> None:
    assert await stores.leases.acquire("insights", "a", seconds=10)
    assert await stores.leases.acquire("chains", "b", seconds=10)


async def test_of_many_at_once_one_wins(stores: Stores) -> None:
    tries = [stores.leases.acquire("insights", f"holder-{i}", seconds=10) for i in range(30)]
    assert sum(await asyncio.gather(*tries)) == 1
