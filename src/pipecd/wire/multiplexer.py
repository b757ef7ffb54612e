# SPDX-License-Identifier: Apache-2.0
"""Serves HTTP/1.1 and gRPC on one port, by the first bytes of each connection.

An HTTP/2 connection starts with `PRI`; grpcio cannot share a listener, so such a connection is
relayed to its Unix socket, with back-pressure and half-close. Everything else is HTTP/1.1 and goes
to the web server's own protocol in this process, which therefore sees the real client address.
"""

import asyncio
import itertools
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import cast

from pipecd.model.errors import UserMistake
from pipecd.wire.admission import Admission, ConnectionLimits
from pipecd.wire.listener import listening
from pipecd.wire.peer import client_host, relay_name, relay_number
from pipecd.wire.server import TlsFiles, cannot_listen

_PREFACE = b"PRI * HTTP/2.0"
_DETECTION_BYTES = 3
# In seconds.
_DETECTION_TIMEOUT = 10.0
_BUFFER_BYTES = 64 * 1024

HttpProtocol = Callable[[], asyncio.Protocol]


@asynccontextmanager
async def multiplexed_port(
    http: HttpProtocol,
    grpc_socket: Path,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
    admission: Admission | None = None,
    clients: "RelayedClients | None" = None,
) -> AsyncGenerator[int, None]:
    """Listens until the block ends; yields the bound port.

    `admission` also limits the connections of the web server; `clients` learns which of the relayed
    connections are authenticated.
    """
    connections = Connections(admission or Admission(ConnectionLimits()))
    if tls is not None:
        # Browsers offer both and use HTTP/1.1; gRPC clients offer only h2.
        tls.set_alpn_protocols(["http/1.1", "h2"])
    relays = clients or RelayedClients()
    listener = listening(
        lambda: ProtocolDetector(http, grpc_socket, connections, relays),
        connections.admission,
        host=host,
        port=port,
        tls=tls,
    )
    async with AsyncExitStack() as stack:
        try:
            bound = await stack.enter_async_context(listener)
        except OSError as e:
            raise cannot_listen(host, port, e) from e
        stack.push_async_callback(connections.close)
        yield bound


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Returns the TLS context of a server with this certificate and key."""
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
    """The open connections that the web server does not own."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self._open: set[ProtocolDetector | Relay] = set()
        # Received bytes are written to the other end at once, so all connections share one buffer.
        self.buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._all_closed = asyncio.Event()

    def add(self, connection: "ProtocolDetector | Relay") -> None:
        self._open.add(connection)

    def discard(self, connection: "ProtocolDetector | Relay") -> None:
        self._open.discard(connection)
        if not self._open:
            self._all_closed.set()

    async def close(self) -> None:
        """Aborts every connection and waits until all are closed."""
        if self._open:
            self._all_closed.clear()
            for connection in list(self._open):
                connection.close()
            await self._all_closed.wait()


class RelayedClients:
    """The relayed connections by the name that the gRPC server sees, and whose client it knows."""

    def __init__(self) -> None:
        self._unauthenticated: dict[int, ClientRelay] = {}
        self._authenticated: set[str] = set()
        self._numbers = itertools.count(1)

    def add(self, relay: "ClientRelay") -> int:
        """Adds a relayed connection; returns the number that its name has."""
        number = next(self._numbers)
        self._unauthenticated[number] = relay
        return number

    def remove(self, relay: "ClientRelay") -> None:
        self._unauthenticated.pop(relay.number, None)
        self._authenticated.discard(relay.peer)

    def authenticated(self, peer: str) -> None:
        """Ends the limits of the connection with this peer, on which a call was authenticated."""
        # This runs on every call, also of ports without a relay.
        if not self._unauthenticated or peer in self._authenticated:
            return
        relay = self._unauthenticated.pop(relay_number(peer), None)
        if relay is not None:
            relay.peer = peer
            self._authenticated.add(peer)
            relay.authenticated()


class ProtocolDetector(asyncio.Protocol):
    """A new connection, until its first bytes show its protocol."""

    is_waiting = True

    def __init__(
        self,
        http: HttpProtocol,
        grpc_socket: Path,
        connections: "Connections",
        clients: RelayedClients,
    ) -> None:
        self._http, self._grpc_socket, self._connections = http, grpc_socket, connections
        self._clients = clients
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self.address = ""
        self.deadline: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.address = client_host(transport)
        self.deadline = asyncio.get_running_loop().time() + _DETECTION_TIMEOUT
        self._connections.add(self)
        self._connections.admission.add(self)

    def data_received(self, data: bytes) -> None:
        if (transport := self._transport) is None:
            return
        self._received += data
        if len(self._received) < _DETECTION_BYTES and _PREFACE.startswith(self._received):
            return
        self.deadline = None
        if self._received.startswith(_PREFACE[:_DETECTION_BYTES]):
            transport.pause_reading()
            self._connecting = asyncio.create_task(self._relay(transport))
            return
        self._leave()
        protocol = self._http()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(self._received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        if self._connecting is not None:
            self._connecting.cancel()

    def close(self) -> None:
        """Aborts the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self._connections.discard(self)
        self._connections.admission.remove(self)

    async def _relay(self, client: asyncio.Transport) -> None:
        inward = Relay(self._connections)
        outward = ClientRelay(self._connections, self._clients, self.address)
        try:
            await self._connect(inward, outward.number)
        except OSError:
            self._clients.remove(outward)
            client.abort()
            return
        outward.join(inward)
        inward.join(outward)
        self._leave()
        client.set_protocol(outward)
        outward.connection_made(client)
        inward.write(self._received)
        client.resume_reading()

    async def _connect(self, inward: "Relay", number: int) -> None:
        """Connects to the gRPC server from a name with the client's address."""
        loop = asyncio.get_running_loop()
        name = relay_name(self._grpc_socket.parent, number, self.address)
        connecting = socket.socket(socket.AF_UNIX)
        connecting.setblocking(False)
        try:
            # A name that is too long is left out, and the client counts as unknown.
            with suppress(OSError):
                connecting.bind(str(name))
            await loop.sock_connect(connecting, str(self._grpc_socket))
            await loop.create_unix_connection(lambda: inward, sock=connecting)
        except BaseException:
            connecting.close()
            raise
        finally:
            name.unlink(missing_ok=True)


class Relay(asyncio.BufferedProtocol):
    """One end of a relayed connection; writes what it receives to the other end."""

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
        """Returns the shared buffer; allocating one for each read would cost more than the copy."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._other is not None:
            self._other.write(bytes(self._buffer[:nbytes]))

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def eof_received(self) -> bool:
        """Forwards a half-close and keeps the other direction open if the transport can."""
        other = self._other._transport if self._other is not None else None
        if other is not None and other.can_write_eof():
            other.write_eof()
            # TLS has no half-close: the connection closes then, whatever is returned.
            return self._transport is not None and self._transport.can_write_eof()
        return False

    def pause_writing(self) -> None:
        """Stops reading from the other end while this one is slow."""
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
        """Aborts the connection."""
        if self._transport is not None:
            self._transport.abort()


class ClientRelay(Relay):
    """The end of a relayed connection at the client; limited until a call is authenticated."""

    deadline: float | None = None

    def __init__(self, connections: "Connections", clients: RelayedClients, address: str) -> None:
        super().__init__(connections)
        self.address = address
        self.peer = ""
        self._clients = clients
        self.number = clients.add(self)
        self._connected_at = time.monotonic()

    @property
    def is_waiting(self) -> bool:
        return self._connections.admission.counts_since(self._connected_at)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._connections.admission.add(self, is_grpc=True)

    def authenticated(self) -> None:
        """Ends the limits."""
        self._connections.admission.authenticated(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clients.remove(self)
        self._connections.admission.remove(self)
        super().connection_lost(exc)
