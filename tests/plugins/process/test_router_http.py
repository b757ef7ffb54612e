# SPDX-License-Identifier: Apache-2.0
"""The router forwards HTTP/1.1 as a client and a backend mean it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from pipecd.plugins.process.router import Backend, Limits, Share
from plugins.process.router_rig import Message, Rig, Service, closed_port, routing
from servers.polling import eventually


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with routing() as rig:
        yield rig


async def test_requests_are_distributed_by_weight_on_few_connections(rig: Rig) -> None:
    primary, canary = Service(b"primary"), Service(b"canary")
    backends = [await rig.serve(primary), await rig.serve(canary)]
    rig.router.route("web", {"primary": Share(90, (backends[0],)), "canary": (10, [backends[1]])})
    client = await rig.connect()
    got = Counter([(await client.get()).body for _ in range(200)])
    assert got == {b"primary": 180, b"canary": 20}
    assert (primary.connections, canary.connections) == (1, 1)
    stats = rig.router.stats("web").variants
    assert (stats["primary"].requests, stats["canary"].requests) == (180, 20)
    assert stats["canary"].statuses == {"2xx": 20}
    assert sum(stats["canary"].latency.counts) == 20


async def test_replicas_take_turns(rig: Rig) -> None:
    backends = tuple([await rig.serve(Service(b"%d" % n)) for n in range(3)])
    rig.router.route("web", {"primary": Share(100, backends)})
    client = await rig.connect()
    got = Counter([(await client.get()).body for _ in range(9)])
    assert got == {b"0": 3, b"1": 3, b"2": 3}


async def test_a_backend_sees_who_asked(rig: Rig) -> None:
    service = Service()
    rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
    client = await rig.connect()
    client.writer.write(
        b"GET /a?b HTTP/1.1\r\nHost: shop.example\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
        b"X-Forwarded-For: 192.0.2.7\r\nX_Forwarded_For: 6.6.6.6\r\nX-Forwarded-Proto: https\r\n"
        b"Keep-Alive: timeout=5\r\nTE: trailers\r\nCookie: a=1\r\nUpgrade: h2c\r\n\r\n"
    )
    await client.reader.readuntil(b"\r\n\r\nweb")
    assert service.requests == [
        Message(
            b"GET /a?b",
            [
                (b"host", b"shop.example"),
                (b"cookie", b"a=1"),
                (b"x-forwarded-for", b"192.0.2.7, 127.0.0.1"),
                (b"x-forwarded-proto", b"https"),
                (b"x-forwarded-host", b"shop.example"),
            ],
        )
    ]


async def test_what_a_stranger_says_about_others_is_replaced() -> None:
    async with routing(Limits(trusted_proxies=())) as rig:
        service = Service()
        rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
        client = await rig.connect()
        client.writer.write(
            b"GET / HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-For: 192.0.2.7\r\n"
            b"X-Forwarded-Proto: https\r\nX-Forwarded-Host: other\r\nForwarded: for=x\r\n\r\n"
        )
        await client.reader.readuntil(b"\r\n\r\nweb")
    assert service.requests[0].headers == [
        (b"host", b"shop.example"),
        (b"x-forwarded-for", b"127.0.0.1"),
        (b"x-forwarded-proto", b"http"),
        (b"x-forwarded-host", b"shop.example"),
    ]


async def test_a_chunked_request_and_answer_arrive_whole(rig: Rig) -> None:
    def answer(request: Message) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        return 200, [(b"Transfer-Encoding", b"chunked")], request.body[::-1]

    service = Service(answer=answer)
    rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
    client = await rig.connect()
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for piece in (
        head,
        b"3;ext=1\r\nab",
        b"c\r",
        b"\n2\r\nde\r\n0\r\nTrailer-",
        b"Field: 1\r\n\r\n",
    ):
        client.writer.write(piece)
        await asyncio.sleep(0.01)
    got = await client.reader.readuntil(b"0\r\n\r\n")
    assert service.requests[0].body == b"abcde"
    assert got.endswith(b"5\r\nedcba\r\n0\r\n\r\n")


async def test_a_large_body_streams_both_ways(rig: Rig) -> None:
    size = 8 * 1024 * 1024

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        left = size
        while left:
            data = await reader.read(65536)
            left -= len(data)
            writer.write(data)
            await writer.drain()
        await reader.read()

    rig.router.route("web", {"primary": (1, [await rig.serve(echo)])})
    client = await rig.connect()
    sent = bytes(range(256)) * (size // 256)

    async def send() -> None:
        client.writer.write(b"PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        client.writer.write(sent)
        await client.writer.drain()

    sending = asyncio.create_task(send())
    await client.reader.readuntil(b"\r\n\r\n")
    got = await client.reader.readexactly(size)
    await sending
    assert got == sent


async def test_a_client_that_does_not_read_slows_the_backend_down(rig: Rig) -> None:
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            await writer.drain()
            written += 65536

    rig.router.route("web", {"primary": (1, [await rig.serve(flood)])})
    client = await rig.connect()
    client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.reader.readuntil(b"\r\n\r\n")
    before = -1
    while before != written:
        before = written
        await asyncio.sleep(0.2)
    assert written < 64 * 1024 * 1024


async def test_a_connection_to_a_backend_is_usable_after_a_slow_client(rig: Rig) -> None:
    service = Service(bytes(4 * 1024 * 1024))
    rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
    client = await rig.connect()
    client.writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.sleep(0.1)
    await client.reader.readuntil(b"\r\n\r\n")
    await client.reader.readexactly(len(service.name))
    assert len((await (await rig.connect()).get()).body) == len(service.name)
    assert service.connections == 1


async def test_a_status_that_nobody_knows_is_forwarded(rig: Rig) -> None:
    service = Service(answer=lambda _: (799, [(b"Content-Length", b"0")], b""))
    rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
    assert (await (await rig.connect()).get()).status == 799


async def test_head_has_a_length_and_no_body(rig: Rig) -> None:
    rig.router.route("web", {"primary": (1, [await rig.serve(Service(b"12345"))])})
    client = await rig.connect()
    head = await client.get(method="HEAD")
    assert (head.value(b"content-length"), head.body) == (b"5", b"")
    assert (await client.get()).body == b"12345"


async def test_a_backend_of_http_1_0_is_understood(rig: Rig) -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\nServer: old\r\n\r\nuntil the end")

    rig.router.route("web", {"primary": (1, [await rig.serve(old)])})
    client = await rig.connect()
    for _ in range(2):
        assert (await client.get()).body == b"until the end"


async def test_a_client_of_http_1_0_gets_what_it_understands(rig: Rig) -> None:
    def answer(request: Message) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        return 200, [(b"Transfer-Encoding", b"chunked")], b"hello"

    service = Service(answer=answer)
    rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
    got = await rig.raw(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert got == b"HTTP/1.1 200 \r\nConnection: close\r\n\r\nhello"
    assert service.requests[0].value(b"host") == b"127.0.0.1:%d" % rig.port


async def test_pipelined_requests_are_answered_in_order(rig: Rig) -> None:
    def answer(request: Message) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        body = request.start
        return 200, [(b"Content-Length", b"%d" % len(body))], body

    rig.router.route("web", {"primary": (1, [await rig.serve(Service(answer=answer))])})
    requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(20))
    last = b"POST /last HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    got = await rig.raw(requests + last)
    at = [got.index(b"GET /%d" % n) for n in range(20)] + [got.index(b"POST /last")]
    assert at == sorted(at)


async def test_a_backend_may_ask_for_the_body_or_not(rig: Rig) -> None:
    async def picky(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if b"/large" in head:
            writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n")
            await reader.read()
            return
        assert b"Expect: 100-continue" in head
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\n" + body)

    rig.router.route("web", {"primary": (1, [await rig.serve(picky)])})
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    client = await rig.connect()
    client.writer.write(head % b"/")
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.writer.write(b"hello")
    assert (await client.reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
    refused = await rig.raw(head % b"/large")
    assert refused.startswith(b"HTTP/1.1 413 ")
    assert b"Connection: close\r\n" in refused


async def test_an_upgraded_connection_is_a_tunnel(rig: Rig) -> None:
    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in head
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n!"
        )
        while data := await reader.read(1000):
            writer.write(data.upper())

    backend = await rig.serve(shout)
    rig.router.route("web", {"primary": (1, [backend])})
    client = await rig.connect()
    client.writer.write(
        b"GET /chat HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n"
    )
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 Switching Protocols\r\n")
    assert b"Upgrade: websocket\r\n" in head
    assert await client.reader.readexactly(1) == b"!"
    client.writer.write(b"hello")
    assert await client.reader.readexactly(5) == b"HELLO"
    assert await rig.router.drain("web", backend, 0.01) == 1
    client.close()
    assert await rig.router.drain("web", backend, 5) == 0


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"nonsense\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\nContent-Length: 0\n\n\r\n\r\n", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 502),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 502),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", 502),
        (b"HTTP/1.1 200", 502),
        (b"", 502),
    ],
)
async def test_an_answer_that_makes_no_sense_is_an_error(
    rig: Rig, answer: bytes, status: int
) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    rig.router.route("web", {"primary": (1, [await rig.serve(broken)])})
    assert (await (await rig.connect()).get()).status == status
    stats = rig.router.stats("web").variants["primary"]
    assert (stats.requests, stats.errors) == (1, 1)
    assert rig.router.window("web", "primary", 60).error_rate == 1


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_an_answer_that_is_cut_off_is_cut_off_for_the_client(
    rig: Rig, version: bytes
) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc")

    rig.router.route("web", {"primary": (1, [await rig.serve(broken)])})
    with pytest.raises(ConnectionError):
        await rig.raw(b"GET / HTTP/%b\r\nHost: x\r\n\r\n" % version)
    assert rig.router.stats("web").variants["primary"].errors == 1


async def test_without_a_backend_the_answer_says_so(rig: Rig) -> None:
    client = await rig.connect()
    for _ in range(2):
        answer = await client.get()
        assert answer.status == 503
        assert (
            answer.body
            == b"503 Service Unavailable: no program serves this address at the moment\n"
        )
    rig.router.route("web", {"primary": (1, [Backend("127.0.0.1", closed_port())])})
    answer = await client.get()
    assert answer.body == b"503 Service Unavailable: no program accepted a connection\n"
    assert (await client.get(method="HEAD")).status == 503
    stats = rig.router.stats("web")
    assert (stats.unserved, stats.variants["primary"].failed_connections) == (2, 2)


async def test_slow_parties_meet_deadlines() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    short = Limits(head=0.1, idle=0.1, body=0.1, answer=0.1)
    async with routing(short) as rig:
        rig.router.route("web", {"primary": (1, [await rig.serve(silent)])})
        answers = await asyncio.gather(
            rig.raw(b"GET / HTTP/1.1\r\nHost"),
            rig.raw(b""),
            rig.raw(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc"),
            rig.raw(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
        )
    assert [answer[9:12] for answer in answers] == [b"408", b"", b"408", b"504"]


async def test_connections_beyond_the_limit_are_refused() -> None:
    async with routing(Limits(connections=2)) as rig:
        clients = [await rig.connect() for _ in range(2)]
        assert [(await client.get()).status for client in clients] == [503, 503]
        assert b"too many connections" in await rig.raw(b"")
        assert rig.router.stats("web").refused_connections == 1


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_client_that_does_not_read_its_answer_is_cut_off(connection: str) -> None:
    body = b"x" * 60_000
    length = [(b"Content-Length", b"%d" % len(body))]
    service = Service(answer=lambda _: (200, length, body))
    async with routing(Limits(idle=0.1, stream=0.1, linger=0.1)) as rig:
        rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
        request = f"GET / HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n\r\n"
        await rig.send_without_reading("web", request.encode())

        def is_gone() -> bool:
            stats = rig.router.stats("web")
            return stats.variants["primary"].requests == 1 and not stats.connections

        await eventually(is_gone, 10)
