# SPDX-License-Identifier: Apache-2.0
"""The table of the leases of pipeds."""

import asyncio
from dataclasses import replace

import pytest

from pipecd.controlplane.datastore.piped_leases import PipedLease
from pipecd.controlplane.datastore.stores import Stores

FULL = PipedLease(
    epoch=2**40,
    instance="one",
    host="h" * 255,
    acquired_at=1_700_000_000,
    draining=True,
    stream="stream",
    candidate="two",
    candidate_host="g" * 255,
    requested_at=1_700_000_001,
    is_requested=True,
    requests=3,
    forwarded=2,
    taken_over_at=1_700_000_002,
    taken_over_from="f" * 255,
)


async def test_a_lease_is_stored_by_piped(stores: Stores) -> None:
    assert await stores.piped_leases.get("p1") == PipedLease()
    assert await stores.piped_leases.update("p1", lambda _: FULL) == FULL
    assert await stores.piped_leases.get("p1") == FULL
    assert await stores.piped_leases.get("P1") == PipedLease()
    assert await stores.piped_leases.update("p1", lambda _: PipedLease(epoch=1)) == PipedLease(
        epoch=1
    )
    assert await stores.piped_leases.get("p1") == PipedLease(epoch=1)


@pytest.mark.usefixtures("row_locks")
async def test_concurrent_updates_of_a_lease_are_serialized(stores: Stores) -> None:
    def next_epoch(lease: PipedLease) -> PipedLease:
        return replace(lease, epoch=lease.epoch + 1)

    await asyncio.gather(*(stores.piped_leases.update("p1", next_epoch) for _ in range(10)))
    assert (await stores.piped_leases.get("p1")).epoch == 10
