# SPDX-License-Identifier: Apache-2.0
"""gRPC services on loopback that answer only the processes of the user that serves them.

Every local user can connect to a port on loopback. Linux lists the owner of both ends of such a
connection, so that a server can refuse the calls of others and a client can recognise a program of
another user that took the port first.
"""

import asyncio
import ipaddress
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from google.protobuf.descriptor import ServiceDescriptor

from pipecd.model.errors import Denied
from pipecd.wire.credentials import Metadata
from pipecd.wire.status import to_status
from pipecd.wire.table import Context, RpcTable

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_ESTABLISHED, _LISTENING = "01", "0A"
_UNIX = "unix:"

Address = tuple[str, int]


class Connection(NamedTuple):
    """A row of the kernel's table of TCP sockets: a socket, its peer, its state and its owner."""

    local: Address
    remote: Address
    state: str
    user: int


class LocalRpcTable(RpcTable[None]):
    """Serves the processes of this user, through a Unix socket or on a port of loopback.

    Who may open a Unix socket is decided by the permissions of its directory. Callers on TCP must
    be connected from a process of the same user; where the owner of a connection is unknown, as on
    other systems than Linux, all of loopback is trusted.
    """

    def __init__(self, service: ServiceDescriptor, handler: object) -> None:
        async def no_authentication(metadata: Metadata) -> None:
            return None

        super().__init__(service, [handler], no_authentication)

    def _serve_unary(self, name: str) -> Any:
        respond = super()._serve_unary(name)

        async def serve(request: bytes, context: Context) -> bytes:
            peer: str = context.peer()
            if not peer.startswith(_UNIX) and not await asyncio.to_thread(self._is_own, peer):
                error = Denied("this port answers only the user that piped runs as")
                await context.abort(*to_status(error))
            return await respond(request, context)

        return serve

    def _is_own(self, peer: str) -> bool:
        """Whether the other end of the connection belongs to a process of this user."""
        sockets = read_connections()
        if not any(s.state == _LISTENING and s.local[1] == self.port for s in sockets):
            # The kernel, or a sandbox in its place, does not even list our own socket.
            return True
        caller = _peer_address(peer)
        return any(
            socket.user == os.geteuid()
            for socket in sockets
            # A socket that was closed by its process has no owner any more and looks like root's.
            if socket.state == _ESTABLISHED
            and socket.local == caller
            and socket.remote[1] == self.port
        )


def is_own_listener(port: int) -> bool:
    """Whether only processes of this user listen on the port; True where this is unknown."""
    return all(
        socket.user == os.geteuid()
        for socket in read_connections()
        if socket.state == _LISTENING and socket.local[1] == port
    )


def read_connections() -> list[Connection]:
    """Returns the TCP sockets of this network namespace; none where the kernel does not say."""
    found: list[Connection] = []
    for table in _TABLES:
        # A kernel without IPv6 has only the first table, other systems than Linux have neither.
        with suppress(FileNotFoundError), table.open(encoding="ascii") as lines:
            found += parse_connections(lines)
    return found


def parse_connections(lines: Iterable[str]) -> Iterator[Connection]:
    """Parses the format of /proc/net/tcp, whose first line names the columns."""
    rows = iter(lines)
    next(rows, None)
    for row in rows:
        _, local, remote, state, _, _, _, user, *_ = row.split()
        yield Connection(_kernel_address(local), _kernel_address(remote), state, int(user))


def _kernel_address(text: str) -> Address:
    """Decodes 32-bit words of this machine's byte order, and the port."""
    words, _, port = text.partition(":")
    packed = b"".join(
        int(words[start : start + 8], 16).to_bytes(4, "little") for start in range(0, len(words), 8)
    )
    return _plain(ipaddress.ip_address(packed)), int(port, 16)


def _peer_address(peer: str) -> Address:
    """Decodes gRPC's name of a peer, such as `ipv4:127.0.0.1:5000` or `ipv6:%5B::1%5D:5000`."""
    host, _, port = unquote(peer.partition(":")[2]).rpartition(":")
    return _plain(ipaddress.ip_address(host.strip("[]"))), int(port)


def _plain(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
