# SPDX-License-Identifier: Apache-2.0
"""One address for pages and gRPC: looks at the first bytes of a connection and hands it on.

An HTTP/2 connection opens with `PRI`; grpcio cannot share a listener, so such a connection is
relayed to its socket, with back-pressure and half-close. Everything else is HTTP/1.1 and goes to
the web server's own protocol in this process, which therefore sees the real client address.
"""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from pipecd.model.errors import UserMistake
from pipecd.wire.server import TlsFiles

_PREFACE = b"PRI * HTTP/2.0"
_ENOUGH = 3
_PATIENCE_SECONDS = 10.0
_MOST_AT_ONCE = 64 * 1024

HttpProtocol = Callable[[], asyncio.Protocol]


@asynccontextmanager
async def one_port(
    http: HttpProtocol,
    grpc_socket: Path,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[int, None]:
    """Listens until the block ends; yields the port that was bound."""
    connections = Connections()
    if tls is not None:
        # Browsers offer both and get HTTP/1.1; gRPC clients offer only h2.
        tls.set_alpn_protocols(["http/1.1", "h2"])
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: Undecided(http, grpc_socket, connections), host, port, ssl=tls
        )
    except OSError as e:
        raise UserMistake(
            f"cannot listen on port {port} of {host}: {e.strerror}",
            hint="stop the program that uses it or choose another port",
        ) from e
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await connections.drop()


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """The server side of TLS with this certificate and key."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(files.cert_file, files.key_file)
    except (OSError, ssl.SSLError) as e:
        raise UserMistake(
            f"cannot use the TLS files {files.cert_file} and {files.key_file}: {e}",
            hint="check --cert-file and --key-file",
        ) from e
    return context


class Connections:
    """The connections that are not in the hands of the web server."""

    def __init__(self) -> None:
        self._open: set[Undecided | Relay] = set()
        # What arrives is passed on at once, so that one place serves all of them.
        self.buffer = memoryview(bytearray(_MOST_AT_ONCE))
        self._none_left = asyncio.Event()

    def add(self, connection: "Undecided | Relay") -> None:
        self._open.add(connection)

    def discard(self, connection: "Undecided | Relay") -> None:
        self._open.discard(connection)
        if not self._open:
            self._none_left.set()

    async def drop(self) -> None:
        """Ends every connection and waits until each knows it."""
        if self._open:
            self._none_left.clear()
            for connection in list(self._open):
                connection.close()
            await self._none_left.wait()


class Undecided(asyncio.Protocol):
    """A new connection, until its first bytes say what it speaks."""

    def __init__(self, http: HttpProtocol, grpc_socket: Path, connections: "Connections") -> None:
        self._http, self._grpc_socket, self._connections = http, grpc_socket, connections
        self._seen = b""
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(_PATIENCE_SECONDS, self._transport.close)

    def data_received(self, data: bytes) -> None:
        if (transport := self._transport) is None:
            return
        self._seen += data
        if len(self._seen) < _ENOUGH and _PREFACE.startswith(self._seen):
            return
        self._cancel_deadline()
        if self._seen.startswith(_PREFACE[:_ENOUGH]):
            transport.pause_reading()
            self._dialling = asyncio.create_task(self._relay(transport))
            return
        self._connections.discard(self)
        protocol = self._http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._seen)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._connections.discard(self)
        if self._dialling is not None:
            self._dialling.cancel()

    def close(self) -> None:
        """Drops the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()

    async def _relay(self, client: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        inward = Relay(self._connections)
        try:
            await loop.create_unix_connection(lambda: inward, str(self._grpc_socket))
        except OSError:
            client.abort()
            return
        outward = Relay(self._connections)
        outward.join(inward)
        inward.join(outward)
        self._connections.discard(self)
        client.set_protocol(outward)
        outward.connection_made(client)
        inward.write(self._seen)
        client.resume_reading()


class Relay(asyncio.BufferedProtocol):
    """One end of a relayed connection; what it hears goes to the other end."""

    def __init__(self, connections: "Connections") -> None:
        self._connections = connections
        self._buffer = connections.buffer
        self._transport: asyncio.Transport | None = None
        self._other: Relay | None = None

    def join(self, other: "Relay") -> None:
        self._other = other

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to put what arrives: a new place each time would cost more than the copy."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._other is not None:
            self._other.write(bytes(self._buffer[:nbytes]))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def eof_received(self) -> bool:
        """Passes a half-close on and keeps the other direction open where the transport can."""
        other = self._other._transport if self._other is not None else None
        if other is not None and other.can_write_eof():
            other.write_eof()
            return True
        return False

    def pause_writing(self) -> None:
        """This end is slow: the other one stops reading."""
        if self._other is not None and self._other._transport is not None:
            self._other._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and self._other._transport is not None:
            self._other._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._other is not None and self._other._transport is not None:
            self._other._transport.close()

    def close(self) -> None:
        """Drops the connection at once."""
        if self._transport is not None:
            self._transport.abort()
