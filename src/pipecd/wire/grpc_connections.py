# SPDX-License-Identifier: Apache-2.0
"""Limits the connections of gRPC ports that have no relay in front.

The gRPC library accepts connections itself and does not report them, so they are found among the
open sockets of this process. Relaying them as on the shared port would cost a quarter of the calls.
Where the system has no /proc there is no limit.
"""

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from stat import S_ISSOCK
from typing import Any
from urllib.parse import unquote

from pipecd.wire.admission import Admission
from pipecd.wire.table import RpcTable

_OPEN_FILES = Path("/proc/self/fd")
_SWEEP_SECONDS = 1.0
_PEER = re.compile(r"ipv[46]:\[?(?P<address>[^\]]+?)\]?:(?P<port>\d+)")
_MAPPED = "::ffff:"

Client = tuple[str, int]
"""The address and the port of a client."""


@asynccontextmanager
async def limited_connections(
    ports: Collection[int], admission: Admission, tables: Iterable[RpcTable[Any]]
) -> AsyncGenerator[None]:
    """Limits the connections of gRPC ports until the block ends; `tables` know who is who."""
    connections = GrpcConnections(admission, ports)
    for table in tables:
        table.report_authenticated(connections.authenticated)
    task = asyncio.create_task(connections.run(), name="connections of gRPC ports")
    try:
        yield
    finally:
        task.cancel()


class GrpcConnections:
    """Closes the connections of clients that have proven nothing, if there are too many."""

    def __init__(self, admission: Admission, ports: Collection[int]) -> None:
        self._admission, self._ports = admission, frozenset(ports)
        self._waiting: dict[Client, _Connection] = {}
        # By the peer in the words of the library, so that the calls after the first parse nothing.
        self._authenticated: dict[str, Client] = {}
        self._surplus: set[Client] = set()

    def authenticated(self, peer: str) -> None:
        """Ends the limits of the connection with this peer, on which a call was authenticated."""
        if peer in self._authenticated:
            return
        match = _PEER.fullmatch(unquote(peer))
        if match is not None:
            client = _normal(match["address"]), int(match["port"])
            self._authenticated[peer] = client
            if (connection := self._waiting.pop(client, None)) is not None:
                self._admission.authenticated(connection)

    async def run(self) -> None:
        """Enforces the limits until it is cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            await self.sweep()

    async def sweep(self) -> None:
        """Admits new connections; those that are too many are closed."""
        clients = await asyncio.to_thread(open_clients, self._ports)
        for peer in [p for p, client in self._authenticated.items() if client not in clients]:
            del self._authenticated[peer]
        for gone in self._waiting.keys() - clients:
            self._admission.remove(self._waiting.pop(gone))
        for client in clients - self._waiting.keys() - set(self._authenticated.values()):
            connection = _Connection(client, self._admission, self._surplus)
            self._waiting[client] = connection
            self._admission.add(connection, is_grpc=True)
        self._admission.enforce()
        if self._surplus:
            surplus, known = set(self._surplus), set(self._authenticated.values())
            self._surplus.clear()
            await asyncio.to_thread(shut_down, self._ports, surplus - known)


class _Connection:
    """A connection on which no call was authenticated yet."""

    # The library has deadlines of its own.
    deadline: float | None = None

    def __init__(self, client: Client, admission: Admission, surplus: set[Client]) -> None:
        self.address = client[0]
        self._client, self._admission, self._surplus = client, admission, surplus
        self._seen_at = time.monotonic()

    @property
    def is_waiting(self) -> bool:
        return self._admission.counts_since(self._seen_at)

    def close(self) -> None:
        self._surplus.add(self._client)


def open_clients(ports: Collection[int]) -> set[Client]:
    """Returns the clients with a connection to one of our ports."""
    return {client for client, _ in _visit(ports, frozenset())}


def shut_down(ports: Collection[int], clients: Collection[Client]) -> None:
    """Ends the connections of clients; the library then closes them."""
    for _ in _visit(ports, clients):
        pass


def _visit(ports: Collection[int], ended: Collection[Client]) -> list[tuple[Client, bool]]:
    visited = list[tuple[Client, bool]]()
    for path in _OPEN_FILES.iterdir() if _OPEN_FILES.is_dir() else ():
        with suppress(OSError):
            if not S_ISSOCK(os.fstat(int(path.name)).st_mode):
                continue
            # A copy refers to the same connection, whatever the number is used for meanwhile.
            with closing(socket.socket(fileno=os.dup(int(path.name)))) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                address, port = copy.getpeername()[:2]
                client = _normal(address), port
                if copy.getsockname()[1] in ports:
                    if client in ended:
                        copy.shutdown(socket.SHUT_RDWR)
                    visited.append((client, client in ended))
    return visited


def _normal(address: str) -> str:
    return address.partition("%")[0].removeprefix(_MAPPED)
