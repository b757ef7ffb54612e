# SPDX-License-Identifier: Apache-2.0
"""A lease has one holder at a time."""

import asyncio
from datetime import timedelta
from typing import Any

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.stores import Stores


async def test_a_lease_has_one_holder_until_it_expires(stores: Stores, clock: Any) -> None:
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


async def test_a_lease_of_a_holder_whose_clock_was_ahead_ends_when_it_is_not_renewed(
    database: Database, stores: Stores, clock: Any
) -> None:
    ahead = Leases(database, now=lambda: clock() + timedelta(hours=2))
    assert await ahead.acquire("chains", "a", seconds=10)
    for _ in range(3):
        # While its holder renews it, nobody else gets it.
        assert not await stores.leases.acquire("chains", "b", seconds=10)
        clock.seconds += 9
        assert await ahead.acquire("chains", "a", seconds=10)
    assert not await stores.leases.acquire("chains", "b", seconds=10)
    clock.seconds += 9.9
    assert not await stores.leases.acquire("chains", "b", seconds=10)
    clock.seconds += 0.1
    assert await stores.leases.acquire("chains", "b", seconds=10)


async def test_only_the_holder_can_release_a_lease(stores: Stores) -> None:
    assert await stores.leases.acquire("insights", "a", seconds=10)
    await stores.leases.release("insights", "b")
    assert not await stores.leases.acquire("insights", "b", seconds=10)
    await stores.leases.release("insights", "a")
    assert await stores.leases.acquire("insights", "b", seconds=10)


async def test_leases_with_different_names_are_independent(stores: Stores) -> None:
    assert await stores.leases.acquire("insights", "a", seconds=10)
    assert await stores.leases.acquire("chains", "b", seconds=10)


async def test_only_one_of_many_concurrent_callers_acquires_a_lease(stores: Stores) -> None:
    tries = [stores.leases.acquire("insights", f"holder-{i}", seconds=10) for i in range(30)]
    assert sum(await asyncio.gather(*tries)) == 1
