# SPDX-License-Identifier: Apache-2.0
"""Signals reach other processes; after an outage subscribers receive EVERYTHING."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import psycopg
import pytest

from faults.network import LinkState, TcpProxy
from pipecd.controlplane.bus import postgres, redis, relay
from pipecd.controlplane.bus.relay import RelayBus
from pipecd.controlplane.bus.signal import EVERYTHING, Bus, Signal, Topic
from pipecd.model.backoff import Backoff
from servers.databases import Postgres, Redis

OpenBus = Callable[..., AbstractAsyncContextManager[Bus]]


def deployment(id: str, project: str = "p", piped: str = "") -> Signal:
    return Signal(Topic.DEPLOYMENT, id, project, piped)


async def receive(signals: AsyncIterator[Signal], count: int) -> list[Signal]:
    async with asyncio.timeout(10):
        return [await anext(signals) for _ in range(count)]


async def receive_until(signals: AsyncIterator[Signal], expected: Signal) -> None:
    async with asyncio.timeout(20):
        async for signal in signals:
            if signal == expected:
                return


async def wait_for_delivery(bus: Bus, signals: AsyncIterator[Signal]) -> None:
    """Publishes until a signal arrives; a pending EVERYTHING absorbs those before it."""
    signal = deployment("after")
    receiving = asyncio.create_task(receive_until(signals, signal))
    while not receiving.done():
        await bus.publish(signal)
        await asyncio.wait({receiving}, timeout=0.05)
    await receiving


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
        assert await receive(here, 21) == [*sent, deployment("last")]
        # Signals of one process stay in order; those of two processes may interleave.
        assert [s for s in await receive(there, 21) if s in sent] == sent
        assert [s for s in await receive(far, 21) if s in sent] == sent


async def test_a_subscriber_receives_the_signals_of_its_piped(open_bus: OpenBus) -> None:
    async with (
        open_bus() as one,
        open_bus() as two,
        two.subscribe(project="p", piped="a") as signals,
    ):
        await one.publish(deployment("1", project="q", piped="a"))
        await one.publish(deployment("2", piped="b"))
        await one.publish(deployment("3", piped="a"))
        assert await receive(signals, 1) == [deployment("3", piped="a")]


async def test_a_local_subscriber_needs_no_connection() -> None:
    bus = RelayBus(postgres.PostgresTransport("host=127.0.0.1 port=1 connect_timeout=1"))
    running = asyncio.create_task(bus.run())
    async with bus.subscribe() as signals:
        await bus.publish(deployment("d"))
        assert await receive(signals, 1) == [deployment("d")]
    running.cancel()


async def test_after_an_outage_subscribers_receive_everything_and_new_signals(
    open_bus: OpenBus, server: Redis | Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "BACKOFF", Backoff(first=0.1, longest=0.1))
    async with (
        open_bus() as one,
        open_bus() as two,
        one.subscribe() as here,
        two.subscribe() as there,
    ):
        await asyncio.to_thread(server.stop)
        await one.publish(deployment("during"))
        assert await receive(here, 1) == [deployment("during")]
        await asyncio.to_thread(server.start)
        await receive_until(here, EVERYTHING)
        await receive_until(there, EVERYTHING)
        await wait_for_delivery(one, there)


async def test_both_ends_detect_a_closed_connection(
    open_bus: OpenBus, server: Redis | Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "BACKOFF", Backoff(first=0.1, longest=0.1))
    async with (
        open_bus() as one,
        open_bus() as two,
        one.subscribe() as here,
        two.subscribe() as there,
    ):
        await close_connections(server)
        await receive_until(here, EVERYTHING)
        await receive_until(there, EVERYTHING)
        await wait_for_delivery(two, here)


async def close_connections(server: Redis | Postgres) -> None:
    if isinstance(server, Postgres):
        terminate = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        )
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute(terminate)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"CLIENT KILL TYPE pubsub\r\nCLIENT KILL TYPE normal SKIPME yes\r\n")
        assert (await reader.readline()).startswith(b":")
        writer.close()


@pytest.mark.parametrize("state", [LinkState.SILENT, LinkState.HALF_OPEN])
async def test_a_connection_that_falls_silent_is_replaced(
    open_bus: OpenBus,
    server: Redis | Postgres,
    state: LinkState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redis, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(postgres, "PROBE_SECONDS", 0.2)
    monkeypatch.setattr(postgres, "RESPONSE_TIMEOUT_SECONDS", 1.0)
    async with (
        TcpProxy([server.port]).serve() as proxy,
        open_bus(proxy.port) as bus,
        open_bus() as other,
        bus.subscribe() as signals,
    ):
        assert proxy.silence(state) > 0
        await receive_until(signals, EVERYTHING)
        await wait_for_delivery(other, signals)


@pytest.mark.parametrize(
    "ends_cleanly", [True, False], ids=["a process that ends", "a process that dies"]
)
async def test_subscribers_receive_everything_after_the_end_of(
    open_bus: OpenBus,
    server: Redis | Postgres,
    ends_cleanly: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay, "ALIVE_SECONDS", 0.1)
    monkeypatch.setattr(relay, "DEAD_SECONDS", 0.5)
    async with (
        TcpProxy([server.port]).serve() as proxy,
        open_bus() as survivor,
        survivor.subscribe() as signals,
    ):
        async with open_bus(proxy.port) as other:
            await other.publish(deployment("first"))
            assert await receive(signals, 1) == [deployment("first")]
            # Neither receives anything as long as both run.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(signals)
            if ends_cleanly:
                await other.publish(deployment("last"))
            else:
                # A machine without power closes nothing.
                proxy.silence()
                await other.publish(deployment("lost"))
                assert await receive(signals, 1) == [EVERYTHING]
        if ends_cleanly:
            # The signal of the last moment is sent, and nobody has to refresh anything.
            assert await receive(signals, 1) == [deployment("last")]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await anext(signals)


async def test_too_many_pending_signals_become_everything(open_bus: OpenBus) -> None:
    async with open_bus() as one, open_bus() as two, two.subscribe(project="p") as signals:
        for i in range(relay.MAX_PENDING + 10):
            await one.publish(deployment(str(i)))
        await receive_until(signals, Signal(Topic.EVERYTHING, "", "p"))


async def test_a_signal_too_long_for_the_transport_becomes_everything(open_bus: OpenBus) -> None:
    async with open_bus() as one, open_bus() as two, two.subscribe() as signals:
        await one.publish(deployment("é" * 9000))
        first = (await receive(signals, 1))[0]
        assert first in (EVERYTHING, deployment("é" * 9000))
        await one.publish(deployment("next"))
        assert await receive(signals, 1) == [deployment("next")]


async def test_publishing_does_not_wait_for_a_connection() -> None:
    bus = RelayBus(postgres.PostgresTransport("host=192.0.2.1 connect_timeout=2"))
    running = asyncio.create_task(bus.run())
    async with asyncio.timeout(1):
        for i in range(10_000):
            await bus.publish(deployment(str(i)))
    running.cancel()
    await asyncio.wait({running})
