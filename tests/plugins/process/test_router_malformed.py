# SPDX-License-Identifier: Apache-2.0
"""Requests that could be understood in two ways reach no backend, and no bytes break the router."""

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.plugins.process.http_chunks import LAST_CHUNK, ChunkReader, chunk
from pipecd.plugins.process.http_head import CHUNKED, Malformed, Request, Sender, parse_request
from pipecd.plugins.process.router import Limits
from plugins.process.router_rig import Rig, Service, routing

SENDER = Sender(b"192.0.2.1", is_trusted=True, authority=b"127.0.0.1:80")
HOST = b"Host: x\r\n"


def post(*fields: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nHost: x\r\n" + b"".join(f + b"\r\n" for f in fields) + b"\r\n"


@pytest.mark.parametrize(
    ("offered", "forwarded"),
    [
        pytest.param(b"websocket", b"websocket", id="a web socket"),
        pytest.param(b"h2c", b"", id="HTTP/2"),
        pytest.param(b"websocket, h2c", b"websocket", id="HTTP/2 as the second choice"),
        pytest.param(b"H2C,\twebsocket", b"websocket", id="HTTP/2 as the first choice"),
        pytest.param(b"x\r\nUpgrade: h2c", b"x", id="HTTP/2 in a second field"),
        pytest.param(b"HTTP/2.0, x", b"x", id="HTTP/2 by its full name"),
        pytest.param(b", ,", b"", id="nothing"),
    ],
)
def test_an_upgrade_to(offered: bytes, forwarded: bytes) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: %b\r\n\r\n" % offered
    request = parse_request(head, SENDER)
    assert request.is_upgrade is bool(forwarded)
    assert (b"\r\nUpgrade: %b\r\n" % forwarded in request.head) is bool(forwarded)
    assert b"h2c" not in request.head.lower()


def test_what_a_trusted_proxy_says_is_kept() -> None:
    said = b"X-Real-IP: 192.0.2.7\r\nX-Forwarded-Port: 443\r\nX-Forwarded-Prefix: /shop\r\n"
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + said + b"Proxy: http://10.0.0.1\r\n\r\n"
    forwarded = parse_request(head, SENDER).head
    assert said in forwarded
    assert b"10.0.0.1" not in forwarded


REFUSED = {
    "a length and chunks": (post(b"Content-Length: 3", b"Transfer-Encoding: chunked"), 400),
    "chunks and a length": (post(b"Transfer-Encoding: chunked", b"Content-Length: 3"), 400),
    "two lengths": (post(b"Content-Length: 3", b"Content-Length: 4"), 400),
    "a length twice": (post(b"Content-Length: 3", b"content-length: 3"), 400),
    "a list of lengths": (post(b"Content-Length: 3, 3"), 400),
    "a signed length": (post(b"Content-Length: +3"), 400),
    "a hexadecimal length": (post(b"Content-Length: 0x3"), 400),
    "a length with an underscore": (post(b"Content-Length: 1_0"), 400),
    "an empty length": (post(b"Content-Length:"), 400),
    "a length without end": (post(b"Content-Length: " + b"9" * 30), 400),
    "a blank before the colon": (post(b"Content-Length : 3"), 400),
    "a tab before the colon": (post(b"Transfer-Encoding\t: chunked"), 400),
    "a folded line": (post(b"X: 1", b" Content-Length: 3"), 400),
    "a first line that is folded": (b"POST / HTTP/1.1\r\n Host: x\r\n\r\n", 400),
    "a name without a colon": (post(b"Content-Length"), 400),
    "an empty name": (post(b": 3"), 400),
    "a carriage return in a value": (post(b"X: 1\rContent-Length: 3"), 400),
    "a null byte in a value": (post(b"X: a\0b"), 400),
    "a null byte in a name": (post(b"Content-Length\0: 3"), 400),
    "bytes beyond ASCII in a name": (post(b"X\xff: 3"), 400),
    "a bare line feed in a line": (post(b"X: 1\nContent-Length: 3"), 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
    "chunks twice": (post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 400),
    "another coding": (post(b"Transfer-Encoding: gzip, chunked"), 501),
    "chunks in quotes": (post(b'Transfer-Encoding: "chunked"'), 501),
    "chunks of a vertical tab": (post(b"Transfer-Encoding: \x0bchunked"), 400),
    "chunks in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (post(b"Host: y"), 400),
    "a host with a path": (b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400),
    "two blanks": (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a tab between the words": (b"GET\t/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a method with a colon": (b"GE:T / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no version": (b"GET /\r\n" + HOST + b"\r\n", 400),
    "a version of lower case": (b"GET / http/1.1\r\n" + HOST + b"\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a target that is no path": (b"GET index.html HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a URL with a user": (b"GET http://a@b/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "CONNECT": (b"CONNECT x:443 HTTP/1.1\r\n" + HOST + b"\r\n", 405),
    "an unknown expectation": (post(b"Expect: tea"), 417),
    "too many fields": (post(*(b"X: %d" % n for n in range(200))), 431),
    "too long a head": (post(b"X: " + b"x" * 40_000), 431),
    "too long an unfinished head": (b"GET /" + b"x" * 40_000, 431),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
}  # fmt: skip
CHUNKS = {
    "no size": b"\r\nabc\r\n0\r\n\r\n",
    "a size with a prefix": b"0x3\r\nabc\r\n0\r\n\r\n",
    "a signed size": b"+3\r\nabc\r\n0\r\n\r\n",
    "a negative size": b"-3\r\nabc\r\n0\r\n\r\n",
    "a blank before a size": b" 3\r\nabc\r\n0\r\n\r\n",
    "a size with an underscore": b"1_0\r\nabc\r\n0\r\n\r\n",
    "a size without end": b"f" * 17 + b"\r\nabc\r\n0\r\n\r\n",
    "a size that ends with a bare line feed": b"3\nabc\r\n0\r\n\r\n",
    "a bare line feed in an extension": b"3;a\nabc\r\n0\r\n\r\n",
    "a carriage return in an extension": b"3;a\rb\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": b"2\r\nabc\r\n0\r\n\r\n",
    "a chunk that ends with a bare line feed": b"3\r\nabc\n0\r\n\r\n",
    "a trailer that is none": b"0\r\nGET / HTTP/1.1\r\n\r\n",
    "an endless extension": b"3;" + b"x" * 5000,
    "an endless trailer": b"0\r\n" + b"X: 1234567\r\n" * 5000,
}


@pytest.fixture
async def service() -> Service:
    return Service()


@pytest.fixture
async def rig(service: Service) -> AsyncIterator[Rig]:
    async with routing(Limits(head=0.2, body=0.2, answer=0.5, linger=0.05)) as rig:
        rig.router.route("web", {"primary": (1, [await rig.serve(service)])})
        yield rig


@pytest.mark.parametrize("what", REFUSED)
async def test_a_request_is_refused_that_has(what: str, rig: Rig, service: Service) -> None:
    sent, status = REFUSED[what]
    smuggled = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    got = await rig.raw(sent + smuggled)
    assert got.startswith(b"HTTP/1.1 %d " % status)
    assert got.count(b"HTTP/1.1 ") == 1
    assert b"Connection: close\r\n" in got
    assert service.requests == []
    assert rig.router.stats("web").malformed == 1


@pytest.mark.parametrize("what", CHUNKS)
async def test_a_body_is_refused_that_has(what: str, rig: Rig, service: Service) -> None:
    got = await rig.raw(post(b"Transfer-Encoding: chunked") + CHUNKS[what])
    assert got.startswith(b"HTTP/1.1 400 ")
    assert service.requests == []


async def test_a_refused_body_ends_the_request_at_the_backend(rig: Rig, service: Service) -> None:
    client = await rig.connect()
    client.writer.write(post(b"Transfer-Encoding: chunked") + b"3\r\nabc\r\n")
    await asyncio.sleep(0.05)
    assert (await client.raw(b"nonsense\r\n")).startswith(b"HTTP/1.1 400 ")
    assert service.requests == []
    assert rig.router.stats("web").variants["primary"].in_flight == 0


def parse(head: bytes) -> Request:
    return parse_request(head, SENDER)


def test_a_whole_url_is_a_path_and_a_host() -> None:
    request = parse(b"GET http://shop.example?a HTTP/1.1\r\nHost: other\r\n\r\n")
    assert request.head.startswith(b"GET /?a HTTP/1.1\r\nHost: shop.example\r\n")


NAMES = st.sampled_from(
    [
        b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"Upgrade",
        b"X", b"Cookie", b"content_length", b"TE",
    ]
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([b"", b"x", b"0", b"3", b"chunked", b"close", b"keep-alive, X", b"upgrade"]),
    st.sampled_from([b"websocket", b"100-continue", b"3, 3", b" 3 ", b"gzip", b"\xff", b"a\nb"]),
    st.binary(max_size=8),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=6), st.sampled_from([b"1.1", b"1.0", b"1.9"]))
def test_what_is_forwarded_has_one_meaning(
    fields: list[tuple[bytes, bytes]], version: bytes
) -> None:
    head = b"POST / HTTP/" + version + b"\r\n"
    head += b"".join(name + b": " + value + b"\r\n" for name, value in fields) + b"\r\n"
    try:
        request = parse(head)
    except Malformed as e:
        assert 400 <= e.status < 506
        return
    assert request.head.endswith(b"\r\n\r\n")
    assert request.head.count(b"\r\n\r\n") == 1
    assert request.head.count(b"\n") == request.head.count(b"\r\n") == request.head.count(b"\r")
    names = [line.partition(b":")[0].lower() for line in request.head.split(b"\r\n")[1:-2]]
    assert names.count(b"host") == 1
    assert names.count(b"transfer-encoding") == (request.length == CHUNKED)
    assert names.count(b"content-length") == any(n == b"Content-Length" for n, _ in fields)
    assert not (b"content-length" in names and b"transfer-encoding" in names)
    assert b"content_length" not in names
    # It means the same when it is read once more.
    again = parse(request.head)
    assert (again.length, again.is_upgrade) == (request.length, request.is_upgrade)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.data())
def test_a_chunked_body_is_read_from_any_pieces(pieces: list[bytes], data: st.DataObject) -> None:
    sent = b"".join(chunk(piece) for piece in pieces) + LAST_CHUNK + b"next"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=8)))
    reader, got, rest = ChunkReader(), b"", b""
    for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
        if reader.is_complete:
            rest += sent[start:end]
        else:
            body, left = reader.feed(sent[start:end])
            got, rest = got + body, rest + left
    assert (got, rest, reader.is_complete) == (b"".join(pieces), b"next", True)


def mutated(random: Random) -> bytes:
    """A valid request with a few wrong bytes."""
    valid = random.choice(
        [
            b"GET /a?b=c HTTP/1.1\r\nHost: web.example\r\nConnection: keep-alive\r\n\r\n",
            post(b"Content-Length: 11") + b"hello world",
            post(b"Transfer-Encoding: chunked") + b"5\r\nhello\r\n6;x=1\r\n world\r\n0\r\n\r\n",
            post(b"Expect: 100-continue", b"Content-Length: 2") + b"ab",
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00",
        ]
    )
    wrong = bytearray(valid)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(wrong))
        match random.randrange(3):
            case 0:
                wrong[at] = random.choice(b"\r\n\0 :\t,;09aA\xff")
            case 1:
                del wrong[at]
            case _:
                wrong.insert(at, random.choice(b"\r\n\0 :\t,;09aA\xff"))
    return bytes(wrong)


async def test_wrong_bytes_do_no_harm(rig: Rig) -> None:
    """The router goes on, and answers each with a valid response, by h11's word, or closes."""
    random = Random(15)

    async def send(sent: bytes) -> None:
        client = await rig.connect()
        for piece in (sent[: len(sent) // 2], sent[len(sent) // 2 :]):
            client.writer.write(piece)
            await asyncio.sleep(0)
        client.writer.write_eof()
        got = await client.reader.read()
        assert got == b"" or got.startswith(b"HTTP/1.1 ")

    for _ in range(10):
        await asyncio.gather(*(send(mutated(random)) for _ in range(30)))
    assert (await (await rig.connect()).get()).body == b"web"
    stats = rig.router.stats("web")
    assert stats.variants["primary"].in_flight == 0
    assert stats.malformed > 100
