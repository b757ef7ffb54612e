# SPDX-License-Identifier: Apache-2.0
"""Subscribers receive the signals they subscribed to; a slow one does not block the others."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Bus, Signal, Topic


def deployment(id: str, project: str = "p", piped: str = "") -> Signal:
    return Signal(Topic.DEPLOYMENT, id, project, piped)


async def pending(signals: AsyncIterator[Signal]) -> list[Signal]:
    """The signals that are pending for a subscriber."""
    received: list[Signal] = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                received.append(await anext(signals))
        except TimeoutError:
            return received


async def test_every_subscriber_gets_every_signal_in_order() -> None:
    bus: Bus = MemoryBus()
    async with bus.subscribe() as one, bus.subscribe() as two:
        for i in range(3):
            await bus.publish(deployment(str(i)))
        assert await pending(one) == await pending(two) == [deployment(str(i)) for i in range(3)]


async def test_a_signal_wakes_a_subscriber_that_waits() -> None:
    bus = MemoryBus()
    async with bus.subscribe() as signals:
        waiting = asyncio.ensure_future(anext(signals))
        await asyncio.sleep(0)
        await bus.publish(deployment("d"))
        async with asyncio.timeout(5):
            assert await waiting == deployment("d")


async def test_earlier_signals_are_not_delivered() -> None:
    bus = MemoryBus()
    await bus.publish(deployment("d"))
    async with bus.subscribe() as signals:
        assert await pending(signals) == []


@pytest.mark.parametrize(
    ("project", "piped", "received"),
    [
        pytest.param("", "", ["1", "2", "3", "4"], id="all"),
        pytest.param("p", "", ["1", "2", "3"], id="of a project"),
        pytest.param("p", "a", ["2"], id="of a piped"),
        pytest.param("", "a", ["2", "4"], id="of a piped of any project"),
    ],
)
async def test_a_subscriber_receives_the_signals_of_its_project_and_piped(
    project: str, piped: str, received: list[str]
) -> None:
    bus = MemoryBus()
    async with bus.subscribe(project=project, piped=piped) as signals:
        await bus.publish(deployment("1"))
        await bus.publish(deployment("2", piped="a"))
        await bus.publish(deployment("3", piped="b"))
        await bus.publish(deployment("4", project="q", piped="a"))
        assert [s.id for s in await pending(signals)] == received


async def test_a_piped_receives_the_shared_topics_of_its_project_only() -> None:
    bus = MemoryBus()
    shared = frozenset({Topic.EVENT})
    async with bus.subscribe(project="p", piped="a", shared=shared) as signals:
        shared_signals = [Signal(Topic.EVENT, "1", "p"), Signal(Topic.EVENT, "2", "p", "b")]
        for signal in (
            *shared_signals,
            Signal(Topic.EVENT, "3", "q"),
            Signal(Topic.STAGE_LOG, "4", "p"),
            deployment("5", piped="b"),
        ):
            await bus.publish(signal)
        assert await pending(signals) == shared_signals


@pytest.mark.parametrize(
    ("project", "received"),
    [
        pytest.param("", ["1", "2", "4"], id="of every project"),
        pytest.param("p", ["1", "2"], id="of one project"),
    ],
)
async def test_a_subscriber_of_some_topics_is_not_woken_for_others(
    project: str, received: list[str]
) -> None:
    bus = MemoryBus()
    only = frozenset({Topic.CHAIN, Topic.PIPED})
    async with bus.subscribe(project=project, only=only) as signals:
        for signal in (
            Signal(Topic.CHAIN, "1", "p"),
            Signal(Topic.PIPED, "2", "p", "a"),
            Signal(Topic.EVENT, "3", "p"),
            Signal(Topic.CHAIN, "4", "q"),
            deployment("5", piped="a"),
        ):
            await bus.publish(signal)
        assert [s.id for s in await pending(signals)] == received
        await bus.publish(Signal(Topic.EVERYTHING, "", ""))
        assert [s.topic for s in await pending(signals)] == [Topic.EVERYTHING]


async def test_too_many_pending_signals_become_everything() -> None:
    bus = MemoryBus(max_pending=3)
    async with bus.subscribe(project="p", piped="a") as slow, bus.subscribe() as other:
        for i in range(3):
            await bus.publish(deployment(str(i), piped="a"))
        assert len(await pending(other)) == 3
        for i in range(3, 10):
            await bus.publish(deployment(str(i), piped="a"))
        assert await pending(slow) == [Signal(Topic.EVERYTHING, "", "p", "a")]
        await bus.publish(deployment("next", piped="a"))
        assert await pending(slow) == [deployment("next", piped="a")]


async def test_equal_pending_signals_are_merged() -> None:
    bus = MemoryBus(max_pending=3)
    async with bus.subscribe() as signals:
        for _ in range(10):
            await bus.publish(deployment("d"))
        assert await pending(signals) == [deployment("d")]
        await bus.publish(deployment("d"))
        assert await pending(signals) == [deployment("d")]


async def test_everything_replaces_the_pending_signals() -> None:
    bus = MemoryBus()
    async with bus.subscribe(project="p", piped="a") as signals:
        await bus.publish(deployment("d", piped="a"))
        await bus.publish(Signal(Topic.EVERYTHING, "", ""))
        assert await pending(signals) == [Signal(Topic.EVERYTHING, "", "p", "a")]


async def test_a_subscription_ends_with_its_context() -> None:
    bus = MemoryBus()
    async with bus.subscribe() as signals:
        waiting = asyncio.ensure_future(anext(signals, None))
        await asyncio.sleep(0)
    assert await waiting is None
    await bus.publish(deployment("d"))
    assert [s async for s in signals] == []
    assert not bus._subscriptions


async def test_subscribers_come_and_go_while_signals_are_published() -> None:
    bus = MemoryBus()

    async def receive_one() -> None:
        async with bus.subscribe() as signals:
            await anext(signals)

    async with asyncio.TaskGroup() as group:
        receivers = [group.create_task(receive_one()) for _ in range(20)]
        await asyncio.sleep(0)
        await bus.publish(deployment("d"))
    assert all(receiver.done() for receiver in receivers)
    assert not bus._subscriptions
