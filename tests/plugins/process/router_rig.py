# SPDX-License-Identifier: Apache-2.0
"""Backends and clients on loopback, whose HTTP is h11's, to test the router between them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import h11

from pipecd.plugins.process.router import Backend, Limits, Router

# Of the buffers of a connection, in bytes.
SMALL = 4096

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Message:
    """A request as a backend got it, or an answer as a client got it."""

    start: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes = b""
    status: int = 0

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    def value(self, name: bytes) -> bytes | None:
        found = self.values(name)
        assert len(found) <= 1
        return found[0] if found else None


async def next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> h11.Event:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        else:
            assert not isinstance(event, type)
            return event


@dataclass
class Service:
    """Answers every request with its name, or as `answer` says."""

    name: bytes = b"web"
    answer: Callable[[Message], tuple[int, list[tuple[bytes, bytes]], bytes]] | None = None
    requests: list[Message] = field(default_factory=list[Message])
    connections: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except h11.RemoteProtocolError:
            # A request that the router gave up may be cut off, anything else must be right.
            if not reader.at_eof():
                raise

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        while isinstance(event := await next_event(connection, reader), h11.Request):
            body = b""
            while isinstance(part := await next_event(connection, reader), h11.Data):
                body += bytes(part.data)
            start = event.method + b" " + event.target
            request = Message(start, list(event.headers), body)
            self.requests.append(request)
            status, headers, answer = 200, [(b"Content-Length", b"%d" % len(self.name))], self.name
            if self.answer is not None:
                status, headers, answer = self.answer(request)
            writer.write(connection.send(h11.Response(status_code=status, headers=headers)) or b"")
            if event.method != b"HEAD" and answer:
                writer.write(connection.send(h11.Data(data=answer)) or b"")
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Backend]:
    """Runs a backend that treats every connection as the script says."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError
            ):
                await script(reader, writer)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Backend("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        server.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Client:
    """One connection to the router."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    connection: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def get(self, target: str = "/", method: str = "GET", *, body: bytes = b"") -> Message:
        """Sends a request and reads the answer to it."""
        headers = [(b"Host", b"web.example")]
        if body:
            headers.append((b"Content-Length", b"%d" % len(body)))
        if self.connection.our_state is not h11.IDLE:
            self.connection.start_next_cycle()
        send = self.connection.send
        self.writer.write(send(h11.Request(method=method, target=target, headers=headers)) or b"")
        if body:
            self.writer.write(send(h11.Data(data=body)) or b"")
        self.writer.write(send(h11.EndOfMessage()) or b"")
        return await self.read()

    async def read(self) -> Message:
        """Reads an answer."""
        while isinstance(
            event := await next_event(self.connection, self.reader), h11.InformationalResponse
        ):
            pass
        assert isinstance(event, h11.Response)
        body = b""
        while isinstance(part := await next_event(self.connection, self.reader), h11.Data):
            body += bytes(part.data)
        assert isinstance(part, h11.EndOfMessage)
        return Message(event.reason, list(event.headers), body, event.status_code)

    async def raw(self, sent: bytes) -> bytes:
        """Sends bytes and returns all that comes until the router closes."""
        self.writer.write(sent)
        return await self.reader.read()

    def close(self) -> None:
        self.writer.close()


@dataclass
class Rig:
    """A router with one listener `web`, and what is connected to it."""

    router: Router
    port: int
    lifetime: AsyncExitStack

    async def serve(self, script: Script) -> Backend:
        return await self.lifetime.enter_async_context(serving(script))

    async def connect(self, port: int = 0) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", port or self.port))
        self.lifetime.callback(client.close)
        return client

    async def raw(self, sent: bytes) -> bytes:
        return await (await self.connect()).raw(sent)

    async def send_without_reading(
        self, listener: str, sent: bytes, *, is_last: bool = False
    ) -> None:
        """Sends as a client that never reads, with hardly any room for an answer on its way."""
        # Accepted connections have the size of their listener.
        self.router.sockets()[listener].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        client = self.lifetime.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", self.port))
        await loop.sock_sendall(client, sent)
        if is_last:
            client.shutdown(socket.SHUT_WR)


@asynccontextmanager
async def routing(limits: Limits | None = None) -> AsyncIterator[Rig]:
    """Runs a router that listens for HTTP."""
    router = Router(limits)
    port = await router.listen("web", "127.0.0.1", 0)
    async with AsyncExitStack() as lifetime:
        lifetime.push_async_callback(router.close, 0)
        yield Rig(router, port, lifetime)


def closed_port() -> int:
    """Returns a port where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return opened.getsockname()[1]
