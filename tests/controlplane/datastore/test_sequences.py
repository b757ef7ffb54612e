# SPDX-License-Identifier: Apache-2.0
"""Sequence numbers of deployments and events, on every engine and whatever the clock says."""

import asyncio
from collections.abc import Callable
from typing import Protocol

import pytest

from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import AlreadyExists, Conflict
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event


class ManualClock(Protocol):
    """The clock of the stores."""

    seconds: float


NewDeployment = Callable[..., Deployment]
NewEvent = Callable[..., Event]


async def test_deployments_of_an_application_are_numbered_as_they_are_stored(
    stores: Stores, deployment: NewDeployment
) -> None:
    newer = deployment(application_id="cart", created_at=100)
    # Stored later, although its clock says that it is older.
    newest = deployment(application_id="cart", created_at=50)
    other = deployment(application_id="shop")
    for each in (newer, newest, other):
        await stores.deployments.add(each)
    numbers = await stores.deployments.sequences([newer.id, newest.id, other.id, "unknown"])
    assert numbers == {newer.id: 1, newest.id: 2, other.id: 1}
    assert await stores.deployments.last_id("cart") == newest.id
    assert await stores.deployments.last_id("unknown") == ""


async def test_a_deployment_follows_only_the_last_one(
    stores: Stores, deployment: NewDeployment
) -> None:
    first, second, late = (deployment(application_id="cart") for _ in range(3))
    # Whatever was before the first one has no number.
    await stores.deployments.add(first, follows="from before")
    await stores.deployments.add(second, follows=first.id)
    with pytest.raises(Conflict):
        await stores.deployments.add(late, follows=first.id)
    assert late.id not in await stores.deployments.get_many((late.id,))
    with pytest.raises(AlreadyExists):
        await stores.deployments.add(second, follows=first.id)
    assert await stores.deployments.last_id("cart") == second.id


async def test_concurrent_events_get_different_numbers(stores: Stores, event: NewEvent) -> None:
    events = [event(project_id="shop") for _ in range(12)]
    await asyncio.gather(*(stores.events.add(each) for each in events))
    numbers = await stores.events.sequences([each.id for each in events])
    assert sorted(numbers.values()) == list(range(1, 13))
    assert await stores.events.last_sequence("shop") == 12
    listed = await stores.events.list_after("shop", 9)
    assert [number for _, number in listed.values()] == [10, 11, 12]


async def test_an_update_that_changes_nothing_is_not_written(
    stores: Stores, deployment: NewDeployment, clock: ManualClock
) -> None:
    stored = deployment()
    await stores.deployments.add(stored)

    def change(document: Deployment) -> None:
        document.summary = "new"

    clock.seconds += 10
    first = await stores.deployments.update(stored.id, change)
    clock.seconds += 10
    assert await stores.deployments.update(stored.id, change) == first
    assert await stores.deployments.get(stored.id) == first
