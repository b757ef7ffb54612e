# SPDX-License-Identifier: Apache-2.0
"""The router relays TCP connections."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from pipecd.plugins.process.router import Backend, RouteProtocol, Share
from pipecd.plugins.process.router_route import Limits
from plugins.process.router_rig import Rig, closed_port, routing
from servers.polling import eventually


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    # A backend that refused is not tried again within a test, however slow the machine is.
    async with routing(Limits(skip=60)) as rig:
        rig.port = await rig.router.listen("db", "127.0.0.1", 0, RouteProtocol.TCP)
        yield rig


class Echo:
    def __init__(self, name: bytes) -> None:
        self.name = name

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.name)
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def exchange(rig: Rig, sent: bytes) -> bytes:
    """Sends, ends its side, and reads until the other side has ended too."""
    client = await rig.connect()
    reading = asyncio.create_task(client.reader.read())
    client.writer.write(sent)
    client.writer.write_eof()
    return await reading


async def test_connections_are_distributed_by_weight(rig: Rig) -> None:
    one, other = await rig.serve(Echo(b"1")), await rig.serve(Echo(b"2"))
    rig.router.route("db", {"primary": Share(3, (one,)), "canary": Share(1, (other,))})
    got = Counter([await exchange(rig, b"hello") for _ in range(40)])
    assert got == {b"1hello": 30, b"2hello": 10}
    stats = rig.router.stats("db").variants
    assert (stats["primary"].requests, stats["canary"].requests) == (30, 10)
    assert stats["primary"].in_flight == 0


async def test_much_data_arrives_whole(rig: Rig) -> None:
    rig.router.route("db", {"primary": (1, [await rig.serve(Echo(b""))])})
    sent = bytes(range(256)) * 16 * 1024
    assert await exchange(rig, sent) == sent


async def test_the_next_backend_serves_when_one_refuses(rig: Rig) -> None:
    gone, here = Backend("127.0.0.1", closed_port()), await rig.serve(Echo(b"1"))
    rig.router.route("db", {"primary": (1, [here]), "canary": (1, [gone])})
    assert [await exchange(rig, b"") for _ in range(6)] == [b"1"] * 6
    assert rig.router.stats("db").variants["canary"].errors == 1


async def test_without_a_backend_a_connection_is_closed(rig: Rig) -> None:
    with pytest.raises(ConnectionError):
        await (await rig.connect()).raw(b"")
    rig.router.route("db", {"primary": (1, [Backend("127.0.0.1", closed_port())])})
    with pytest.raises(ConnectionError):
        await (await rig.connect()).raw(b"")


async def test_a_drained_backend_keeps_its_connections(rig: Rig) -> None:
    backend = await rig.serve(Echo(b"1"))
    rig.router.route("db", {"primary": (1, [backend])})
    client = await rig.connect()
    assert await client.reader.readexactly(1) == b"1"
    assert await rig.router.drain("db", backend, 0.01) == 1
    client.writer.write(b"still here")
    assert await client.reader.readexactly(10) == b"still here"
    client.close()
    assert await rig.router.drain("db", backend, 5) == 0


@pytest.mark.parametrize("is_client_first", [True, False])
async def test_a_client_that_does_not_read_is_cut_off_after_the_backend_has_ended(
    is_client_first: bool,
) -> None:
    async def say_much(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_client_first:
            await reader.read()
        writer.write(b"x" * 60_000)

    async with routing(Limits(flush=0.1)) as rig:
        rig.port = await rig.router.listen("db", "127.0.0.1", 0, RouteProtocol.TCP)
        rig.router.route("db", {"primary": (1, [await rig.serve(say_much)])})
        await rig.send_without_reading("db", b"hello", is_last=True)

        def has_been_served() -> bool:
            stats = rig.router.stats("db").variants["primary"]
            return bool(stats.requests) and not stats.in_flight

        await eventually(has_been_served, 10)
        # It counts as long as it is open, so that such clients cannot take all files.
        assert rig.router.stats("db").connections == 1

        await eventually(lambda: not rig.router.stats("db").connections, 10)
