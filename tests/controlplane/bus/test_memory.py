# SPDX-License-Identifier: Apache-2.0
"""Signals reach whoever wants them; a slow subscriber costs nobody anything."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Bus, Signal, Topic


def deployment(id: str, project: str = "p", piped: str = "") -> Signal:
    return Signal(Topic.DEPLOYMENT, id, project, piped)


async def taken(signals: AsyncIterator[Signal]) -> list[Signal]:
    """What waits for a subscriber now."""
    found: list[Signal] = []
    while True:
        try:
            async with asyncio.timeout(0.01):
                found.append(await anext(signals))
        except TimeoutError:
            return found


async def test_every_subscriber_gets_every_signal_in_order() -> None:
    bus: Bus = MemoryBus()
    async with bus.subscribe() as one, bus.subscribe() as two:
        for i in range(3):
            await bus.publish(deployment(str(i)))
        assert await taken(one) == await taken(two) == [deployment(str(i)) for i in range(3)]


async def test_a_signal_wakes_a_subscriber_that_waits() -> None:
    bus = MemoryBus()
    async with bus.subscribe() as signals:
        waiting = asyncio.ensure_future(anext(signals))
        await asyncio.sleep(0)
        await bus.publish(deployment("d"))
        async with asyncio.timeout(5):
            assert await waiting == deployment("d")


async def test_signals_of_before_are_not_told() -> None:
    bus = MemoryBus()
    await bus.publish(deployment("d"))
    async with bus.subscribe() as signals:
        assert await taken(signals) == []


@pytest.mark.parametrize(
    ("project", "piped", "heard"),
    [
        pytest.param("", "", ["1", "2", "3", "4"], id="everyone's"),
        pytest.param("p", "", ["1", "2", "3"], id="those of a project"),
        pytest.param("p", "a", ["2"], id="those of a piped"),
        pytest.param("", "a", ["2", "4"], id="those of a piped of any project"),
    ],
)
async def test_a_subscriber_hears_what_concerns_it(
    project: str, piped: str, heard: list[str]
) -> None:
    bus = MemoryBus()
    async with bus.subscribe(project=project, piped=piped) as signals:
        await bus.publish(deployment("1"))
        await bus.publish(deployment("2", piped="a"))
        await bus.publish(deployment("3", piped="b"))
        await bus.publish(deployment("4", project="q", piped="a"))
        assert [s.id for s in await taken(signals)] == heard


async def test_a_piped_hears_the_shared_topics_of_its_project_and_nothing_else_of_others() -> None:
    bus = MemoryBus()
    shared = frozenset({Topic.EVENT})
    async with bus.subscribe(project="p", piped="a", shared=shared) as signals:
        wanted = [Signal(Topic.EVENT, "1", "p"), Signal(Topic.EVENT, "2", "p", "b")]
        for signal in (
            *wanted,
            Signal(Topic.EVENT, "3", "q"),
            Signal(Topic.STAGE_LOG, "4", "p"),
            deployment("5", piped="b"),
        ):
            await bus.publish(signal)
        assert await taken(signals) == wanted


@pytest.mark.parametrize(
    ("project", "heard"),
    [
        pytest.param("", ["1", "2", "4"], id="of every project"),
        pytest.param("p", ["1", "2"], id="of one project"),
    ],
)
async def test_a_subscriber_of_some_topics_is_not_woken_for_others(
    project: str, heard: list[str]
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
        assert [s.id for s in await taken(signals)] == heard
        await bus.publish(Signal(Topic.EVERYTHING, "", ""))
        assert [s.topic for s in await taken(signals)] == [Topic.EVERYTHING]


async def test_too_many_signals_become_one_that_says_everything() -> None:
    bus = MemoryBus(most_waiting=3)
    async with bus.subscribe(project="p", piped="a") as slow, bus.subscribe() as other:
        for i in range(3):
            await bus.publish(deployment(str(i), piped="a"))
        assert len(await taken(other)) == 3
        for i in range(3, 10):
            await bus.publish(deployment(str(i), piped="a"))
        assert await taken(slow) == [Signal(Topic.EVERYTHING, "", "p", "a")]
        await bus.publish(deployment("next", piped="a"))
        assert await taken(slow) == [deployment("next", piped="a")]


async def test_the_same_signal_waits_once() -> None:
    bus = MemoryBus(most_waiting=3)
    async with bus.subscribe() as signals:
        for _ in range(10):
            await bus.publish(deployment("d"))
        assert await taken(signals) == [deployment("d")]
        await bus.publish(deployment("d"))
        assert await taken(signals) == [deployment("d")]


async def test_everything_is_heard_by_everyone() -> None:
    bus = MemoryBus()
    async with bus.subscribe(project="p", piped="a") as signals:
        await bus.publish(deployment("d", piped="a"))
        await bus.publish(Signal(Topic.EVERYTHING, "", ""))
        assert await taken(signals) == [Signal(Topic.EVERYTHING, "", "p", "a")]


async def test_a_subscription_ends_with_its_context() -> None:
    bus = MemoryBus()
    async with bus.subscribe() as signals:
        waiting = asyncio.ensure_future(anext(signals, None))
        await asyncio.sleep(0)
    assert await waiting is None
    await bus.publish(deployment("d"))
    assert [s async for s in signals] == []
    assert not bus._listeners


async def test_a_subscriber_may_come_and_go_while_signals_are_published() -> None:
    bus = MemoryBus()

    async def visit() -> None:
        async with bus.subscribe() as signals:
            await anext(signals)

    async with asyncio.TaskGroup() as group:
        visits = [group.create_task(visit()) for _ in range(20)]
        await asyncio.sleep(0)
        await bus.publish(deployment("d"))
    assert all(v.done() for v in visits)
    assert not bus._listeners
