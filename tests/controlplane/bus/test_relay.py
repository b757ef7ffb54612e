# SPDX-License-Identifier: Apache-2.0
"""Signals reach other processes; what is lost on the way is made good by EVERYTHING."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest

from pipecd.controlplane.bus import postgres, relay
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.open import RunningBus, choose_bus
from pipecd.controlplane.bus.relay import RelayBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.model.backoff import Backoff
from servers.databases import Postgres, Redis

OpenBus = Callable[[], AbstractAsyncContextManager[RunningBus]]
EVERYTHING = Signal(Topic.EVERYTHING, "", "")


def deployment(id: str, project: str = "p", piped: str = "") -> Signal:
    return Signal(Topic.DEPLOYMENT, id, project, piped)


async def heard(signals: AsyncIterator[Signal], count: int) -> list[Signal]:
    async with asyncio.timeout(10):
        return [await anext(signals) for _ in range(count)]


async def heard_until(signals: AsyncIterator[Signal], wanted: Signal) -> None:
    async with asyncio.timeout(20):
        async for signal in signals:
            if signal == wanted:
                return


async def comes_through(bus: RunningBus, signals: AsyncIterator[Signal]) -> None:
    """Signals flow; one that meets an EVERYTHING which still waits says no more than that."""
    wanted = deployment("after")
    hearing = asyncio.create_task(heard_until(signals, wanted))
    while not hearing.done():
        await bus.publish(wanted)
        await asyncio.wait({hearing}, timeout=0.05)
    await hearing


async def test_a_signal_reaches_every_process_once_and_in_order(open_bus: OpenBus) -> None:
    sent = [deployment(f"é {i}", piped="a") for i in range(20)]
    async with (
        open_bus() as one,
        open_bus() as two,
        open_bus() as three,
        one.subscribe() as here,
        two.subscribe() as there,
        three.subscribe() as far,
    ):
        for signal in sent:
            await one.publish(signal)
        await two.publish(deployment("last"))
        assert await heard(here, 21) == [*sent, deployment("last")]
        # Those of another process may overtake one's own, never each other.
        assert [s for s in await heard(there, 21) if s in sent] == sent
        assert [s for s in await heard(far, 21) if s in sent] == sent


async def test_a_subscriber_hears_what_concerns_it(open_bus: OpenBus) -> None:
    async with (
        open_bus() as one,
        open_bus() as two,
        two.subscribe(project="p", piped="a") as signals,
    ):
        await one.publish(deployment("1", project="q", piped="a"))
        await one.publish(deployment("2", piped="b"))
        await one.publish(deployment("3", piped="a"))
        assert await heard(signals, 1) == [deployment("3", piped="a")]


async def test_within_a_process_a_signal_needs_no_wire(wire: str) -> None:
    bus = RelayBus(postgres.PostgresWire("host=127.0.0.1 port=1 connect_timeout=1"))
    running = asyncio.create_task(bus.run())
    async with bus.subscribe() as signals:
        await bus.publish(deployment("d"))
        assert await heard(signals, 1) == [deployment("d")]
    running.cancel()


async def test_after_an_outage_everyone_hears_everything_and_signals_flow_again(
    open_bus: OpenBus, wire_server: Redis | Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "BACKOFF", Backoff(first=0.1, longest=0.1))
    async with (
        open_bus() as one,
        open_bus() as two,
        one.subscribe() as here,
        two.subscribe() as there,
    ):
        await asyncio.to_thread(wire_server.stop)
        await one.publish(deployment("during"))
        assert await heard(here, 1) == [deployment("during")]
        await asyncio.to_thread(wire_server.start)
        await heard_until(here, EVERYTHING)
        await heard_until(there, EVERYTHING)
        await comes_through(one, there)


async def test_a_cut_connection_is_noticed_by_both_ends(
    open_bus: OpenBus, wire_server: Redis | Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "BACKOFF", Backoff(first=0.1, longest=0.1))
    async with (
        open_bus() as one,
        open_bus() as two,
        one.subscribe() as here,
        two.subscribe() as there,
    ):
        await cut_all(wire_server)
        await heard_until(here, EVERYTHING)
        await heard_until(there, EVERYTHING)
        await comes_through(two, here)


async def cut_all(server: Redis | Postgres) -> None:
    if isinstance(server, Postgres):
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(cut)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"CLIENT KILL TYPE pubsub\r\nCLIENT KILL TYPE normal SKIPME yes\r\n")
        assert (await reader.readline()).startswith(b":")
        writer.close()


async def test_a_flood_becomes_everything(open_bus: OpenBus) -> None:
    async with open_bus() as one, open_bus() as two, two.subscribe(project="p") as signals:
        for i in range(relay.MOST_WAITING + 10):
            await one.publish(deployment(str(i)))
        await heard_until(signals, Signal(Topic.EVERYTHING, "", "p"))


async def test_a_signal_that_is_too_long_for_the_wire_means_everything(open_bus: OpenBus) -> None:
    async with open_bus() as one, open_bus() as two, two.subscribe() as signals:
        await one.publish(deployment("é" * 9000))
        first = (await heard(signals, 1))[0]
        assert first in (EVERYTHING, deployment("é" * 9000))
        await one.publish(deployment("next"))
        assert await heard(signals, 1) == [deployment("next")]


async def test_publishing_never_waits_for_a_broken_wire(wire: str) -> None:
    bus = RelayBus(postgres.PostgresWire("host=192.0.2.1 connect_timeout=2"))
    running = asyncio.create_task(bus.run())
    async with asyncio.timeout(1):
        for i in range(10_000):
            await bus.publish(deployment(str(i)))
    running.cancel()
    await asyncio.wait({running})


def test_without_a_server_the_bus_is_in_memory() -> None:
    assert isinstance(choose_bus(), MemoryBus)
