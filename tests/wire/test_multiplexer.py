# SPDX-License-Identifier: Apache-2.0
"""One port serves HTTP pages and gRPC."""

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import httpx2
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from pipecd.model.errors import UserMistake
from pipecd.wire.multiplexer import multiplexed_port, tls_context
from pipecd.wire.server import TlsFiles


class Hello(asyncio.Protocol):
    """A web server that returns the address of the client."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        body = self.transport.get_extra_info("peername")[0].encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.transport.write(head + body)


@asynccontextmanager
async def both(tmp_path: Path, tls: TlsFiles | None = None) -> AsyncGenerator[int, None]:
    server = grpc.aio.server()
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    await servicer.set("", health_pb2.HealthCheckResponse.SERVING)
    socket = tmp_path / "grpc.sock"
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        context = tls_context(tls) if tls else None
        async with multiplexed_port(Hello, socket, host="127.0.0.1", port=0, tls=context) as port:
            yield port
    finally:
        await server.stop(None)


async def test_http_and_grpc_share_the_port_and_pages_see_the_client(tmp_path: Path) -> None:
    async with both(tmp_path) as port:
        async with httpx2.AsyncClient() as http:
            assert (await http.get(f"http://127.0.0.1:{port}/")).text == "127.0.0.1"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answers = await asyncio.gather(
                *(stub.Check(health_pb2.HealthCheckRequest()) for _ in range(50))
            )
            assert {a.status for a in answers} == {health_pb2.HealthCheckResponse.SERVING}


async def test_an_open_stream_ends_with_the_listener(tmp_path: Path) -> None:
    async with both(tmp_path) as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await watch.read()


async def test_a_client_of_tls_that_goes_away_is_not_logged(
    tmp_path: Path, tls_files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    """TLS has no half-close; asyncio warns of protocols that keep the connection open for one."""
    trusting = ssl.create_default_context(cafile=tls_files.cert_file)
    trusting.set_alpn_protocols(["h2"])
    async with both(tmp_path, tls_files) as port:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")
        assert await reader.readexactly(9)
        writer.close()
        # The server may still be sending when the client closes.
        with suppress(ssl.SSLError):
            await writer.wait_closed()
        async with httpx2.AsyncClient(verify=trusting) as http:
            assert (await http.get(f"https://localhost:{port}/")).text == "127.0.0.1"
    assert caplog.messages == []


async def test_the_first_bytes_may_arrive_one_by_one(tmp_path: Path) -> None:
    async with both(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in b"PRO":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        await writer.wait_closed()


async def test_a_connection_to_a_missing_backend_is_dropped(tmp_path: Path) -> None:
    async with multiplexed_port(Hello, tmp_path / "nobody.sock", host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        await writer.wait_closed()


async def test_a_busy_port_is_reported(tmp_path: Path) -> None:
    async with both(tmp_path) as port:
        with pytest.raises(UserMistake, match=f"port {port}"):
            async with multiplexed_port(Hello, tmp_path / "x", host="127.0.0.1", port=port):
                pass


async def test_a_large_answer_reaches_a_slow_reader_whole(tmp_path: Path) -> None:
    size = 8_000_000

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(3)
        writer.write(b"x" * size)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    socket = tmp_path / "flood.sock"
    server = await asyncio.start_unix_server(flood, socket)
    async with server, multiplexed_port(Hello, socket, host="127.0.0.1", port=0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"PRI * HTTP/2.0\r\n\r\n")
        await asyncio.sleep(0.05)
        assert len(await reader.read(-1)) == size
        writer.close()
        await writer.wait_closed()
