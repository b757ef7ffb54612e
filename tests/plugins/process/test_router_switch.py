# SPDX-License-Identifier: Apache-2.0
"""No request fails while backends, variants and routers change."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from pipecd.plugins.process.router import Backend, CannotListen, Limits, Router, Share
from plugins.process.router_rig import Client, Rig, Service, closed_port, routing


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with routing() as rig:
        yield rig


async def closes_after_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says that it keeps the connection and closes it without an answer to the second request."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await reader.readexactly(1)


async def test_a_request_is_sent_again_when_an_idle_connection_was_closed(rig: Rig) -> None:
    rig.router.route("web", {"primary": (1, [await rig.serve(closes_after_one)])})
    client = await rig.connect()
    for method in ("GET", "DELETE", "PUT"):
        assert (await client.get(method=method, body=b"x" * (method == "PUT"))).status == 200
    stats = rig.router.stats("web")
    assert (stats.retries, stats.variants["primary"].errors) == (2, 0)


async def test_a_request_is_sent_again_after_one_with_a_long_body(rig: Rig) -> None:
    async def takes_one_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"PUT"):
            await reader.readexactly(200_000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.readexactly(1)

    rig.router.route("web", {"primary": (1, [await rig.serve(takes_one_body)])})
    client = await rig.connect()
    assert (await client.get(method="PUT", body=bytes(200_000))).status == 200
    assert (await client.get()).status == 200
    assert rig.router.stats("web").retries == 1


async def test_a_request_that_may_have_had_an_effect_is_not_sent_again(rig: Rig) -> None:
    rig.router.route("web", {"primary": (1, [await rig.serve(closes_after_one)])})
    client = await rig.connect()
    assert (await client.get()).status == 200
    assert (await client.get(method="POST", body=b"x")).status == 502
    assert rig.router.stats("web").variants["primary"].errors == 1


async def test_a_request_that_must_not_be_sent_twice_avoids_connections_that_ended(
    rig: Rig,
) -> None:
    served = 0

    async def closes_when_idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        served += 1

    rig.router.route("web", {"primary": (1, [await rig.serve(closes_when_idle)])})
    client = await rig.connect()
    for _ in range(20):
        assert (await client.get(method="POST")).status == 200
    assert served == 20


async def test_a_backend_that_refuses_is_skipped(rig: Rig) -> None:
    gone, here = Backend("127.0.0.1", closed_port()), await rig.serve(Service(b"here"))
    rig.router.route("web", {"primary": Share(1, (gone, here))})
    client = await rig.connect()
    assert [(await client.get(method="POST")).body for _ in range(10)] == [b"here"] * 10
    assert rig.router.stats("web").variants["primary"].failed_connections == 1


async def test_another_variant_serves_when_one_is_gone(rig: Rig) -> None:
    gone, here = Backend("127.0.0.1", closed_port()), await rig.serve(Service(b"here"))
    rig.router.route("web", {"primary": Share(50, (here,)), "canary": Share(50, (gone,))})
    client = await rig.connect()
    assert [(await client.get()).body for _ in range(10)] == [b"here"] * 10
    canary = rig.router.window("web", "canary", 60)
    assert (canary.requests, canary.errors) == (1, 1)


async def test_a_variant_without_weight_serves_nothing(rig: Rig) -> None:
    gone, here = Backend("127.0.0.1", closed_port()), await rig.serve(Service(b"here"))
    rig.router.route("web", {"primary": Share(100, (gone,)), "canary": Share(0, (here,))})
    assert (await (await rig.connect()).get()).status == 503


async def test_a_drained_backend_finishes_and_gets_nothing_more(rig: Rig) -> None:
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.set()
        await release.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nold")

    old, new = await rig.serve(slow), await rig.serve(Service(b"new"))
    rig.router.route("web", {"primary": (1, [old])})
    running = asyncio.create_task((await rig.connect()).get())
    await asked.wait()
    rig.router.route("web", {"primary": (1, [new])})
    assert await rig.router.drain("web", old, 0.01) == 1
    assert (await (await rig.connect()).get()).body == b"new"
    draining = asyncio.create_task(rig.router.drain("web", old, 30))
    release.set()
    assert (await running).body == b"old"
    assert await draining == 0


class Load:
    """Clients that send one request after the other, and connect again when the router says so."""

    def __init__(self, rig: Rig) -> None:
        self.got: list[bytes] = []
        self._answers = asyncio.Semaphore(0)
        self._has_stopped = False
        self._clients = [asyncio.create_task(self._send(rig)) for _ in range(8)]

    async def _send(self, rig: Rig) -> None:
        client: Client | None = None
        while not self._has_stopped:
            client = client or await rig.connect()
            answer = await client.get()
            self.got.append(answer.body)
            self._answers.release()
            if answer.value(b"connection") == b"close":
                client.close()
                client = None

    async def wait_for(self, answers: int) -> None:
        for _ in range(answers):
            await self._answers.acquire()

    async def stop(self) -> set[bytes]:
        """Returns what was answered; raises what went wrong."""
        self._has_stopped = True
        await asyncio.gather(*self._clients)
        return set(self.got)


async def test_no_request_fails_while_backends_come_and_go(rig: Rig) -> None:
    current = await rig.serve(Service(b"0"))
    rig.router.route("web", {"primary": (100, [current])})
    load = Load(rig)
    for version in range(1, 6):
        fresh = await rig.serve(Service(b"%d" % version))
        for weight in (10, 50, 100):
            shares = {"primary": Share(100 - weight, (current,)), "canary": Share(weight, (fresh,))}
            rig.router.route("web", shares)
            await load.wait_for(40)
        rig.router.route("web", {"primary": (100, [fresh])})
        assert await rig.router.drain("web", current, 30) == 0
        current = fresh
    assert await load.stop() == {b"%d" % n for n in range(6)}
    assert sum(v.errors for v in rig.router.stats("web").variants.values()) == 0


async def test_no_request_fails_while_a_new_router_takes_over(rig: Rig) -> None:
    backend = await rig.serve(Service())
    rig.router.route("web", {"primary": (100, [backend])})
    load = Load(rig)
    await load.wait_for(100)
    after = Router()
    rig.lifetime.push_async_callback(after.close, 0)
    sock = rig.router.sockets()["web"].dup()
    assert await after.listen("web", "127.0.0.1", rig.port, sock=sock) == rig.port
    after.route("web", {"primary": (100, [backend])})
    await rig.router.close(30)
    already = len(load.got)
    await load.wait_for(already)
    assert await load.stop() == {b"web"}
    assert after.stats("web").variants["primary"].requests > 0


async def test_a_new_version_begins_a_new_window(rig: Rig) -> None:
    gone = (Backend("127.0.0.1", closed_port()),)
    rig.router.route("web", {"canary": Share(100, gone, version="bad")})
    assert (await (await rig.connect()).get()).status == 503
    assert rig.router.window("web", "canary", 60).errors == 1
    rig.router.route("web", {"canary": Share(50, gone, version="bad")})
    assert rig.router.window("web", "canary", 60).errors == 1
    rig.router.route("web", {"canary": Share(50, gone, version="good")})
    assert rig.router.window("web", "canary", 60).requests == 0
    assert rig.router.stats("web").variants["canary"].errors == 1


async def test_a_port_in_use_is_explained(rig: Rig) -> None:
    text = f"port {rig.port} of 127.0.0.1 is in use by another program: stop that program or choose another port"
    with pytest.raises(CannotListen, match=text):
        await rig.router.listen("other", "127.0.0.1", rig.port)
    with pytest.raises(CannotListen, match=r"192\.0\.2\.1 is no address of this machine"):
        await rig.router.listen("other", "192.0.2.1", 0)
    assert rig.router.listeners() == {"web"}


async def test_what_does_not_end_is_cut_off(rig: Rig) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    router = Router(Limits())
    port = await router.listen("web", "127.0.0.1", 0)
    router.route("web", {"primary": (1, [await rig.serve(silent)])})
    client = await rig.connect(port)
    client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0.05)
    await router.close(0.05)
    assert await client.raw(b"") == b""
