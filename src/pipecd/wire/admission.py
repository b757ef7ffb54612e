# SPDX-License-Identifier: Apache-2.0
"""Limits the connections of clients that have proven nothing, and the time they may take.

A connection waits while its client has not sent a whole request, and a gRPC connection until a call
on it is authenticated. Beyond the limits the oldest waiting connection is closed, so that those who
hold connections open lose their own, and a new client is always accepted. Connections with a
request that is being served, such as a stream of live updates, are not limited.
"""

import asyncio
import resource
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

from pipecd.model.address import Networks, is_in

# A relayed connection takes two files, and stores and programs need some too.
_FILES_PER_CONNECTION = 4
_SWEEP_SECONDS = 1.0


class ClientConnection(Protocol):
    """A connection whose client is limited."""

    address: str

    @property
    def is_waiting(self) -> bool:
        """Whether the server waits for the client."""
        ...

    @property
    def deadline(self) -> float | None:
        """The time of the event loop at which the client is too late."""
        ...

    def close(self) -> None:
        """Closes the connection at once."""
        ...


@dataclass(frozen=True)
class ConnectionLimits:
    """The most waiting connections, in all and of one address; `proxies` stand for many clients."""

    total: int = 1024
    per_address: int = 256
    proxies: Networks = ()


class Admission:
    """The open connections that are limited, the oldest first."""

    def __init__(self, limits: ConnectionLimits) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._total = max(min(limits.total, files // _FILES_PER_CONNECTION), 1)
        self._per_address = min(limits.per_address, self._total)
        self._proxies = limits.proxies
        self._open: dict[ClientConnection, None] = {}
        self._by_address = Counter[str]()

    def add(self, connection: ClientConnection) -> None:
        """Admits a connection; closes one that waits if there are too many."""
        self._open[connection] = None
        self._by_address[connection.address] += 1
        if self._by_address[connection.address] > self._per_address:
            self._close_surplus_of(connection.address)
        if len(self._open) > self._total:
            waiting = [each for each in self._open if each.is_waiting]
            if len(waiting) > self._total:
                self._close_one(waiting)

    def remove(self, connection: ClientConnection) -> None:
        """Ends the limits of a connection that is closed, or whose client is authenticated."""
        if connection in self._open:
            del self._open[connection]
            self._by_address[connection.address] -= 1
            if not self._by_address[connection.address]:
                del self._by_address[connection.address]

    def close_oldest(self) -> bool:
        """Closes a waiting connection to free its files; False if there is none."""
        waiting = [each for each in self._open if each.is_waiting]
        if waiting:
            self._close_one(waiting)
        return bool(waiting)

    @asynccontextmanager
    async def enforced(self) -> AsyncGenerator[None, None]:
        """Closes the connections of clients that are too late until the block ends."""
        task = asyncio.create_task(self._enforce_deadlines(), name="connection deadlines")
        try:
            yield
        finally:
            task.cancel()

    async def _enforce_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = loop.time()
            for connection in list(self._open):
                deadline = connection.deadline
                if deadline is not None and deadline <= now:
                    self._close(connection)

    def _close_surplus_of(self, address: str) -> None:
        waiting = [c for c in self._open if c.address == address and c.is_waiting]
        if len(waiting) > self._per_address and not self._is_proxy(address):
            self._close(waiting[0])

    def _close_one(self, waiting: list[ClientConnection]) -> None:
        """Closes the oldest connection of the address that has the most."""
        (address, _), *_ = Counter(each.address for each in waiting).most_common(1)
        self._close(next(each for each in waiting if each.address == address))

    def _close(self, connection: ClientConnection) -> None:
        self.remove(connection)
        connection.close()

    def _is_proxy(self, address: str) -> bool:
        try:
            return is_in(ip_address(address.partition("%")[0]), self._proxies)
        except ValueError:
            return False


def raise_file_limit() -> None:
    """Raises the limit of open files to the highest allowed, as programs in Go do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # Some systems report a limit that is higher than what they allow.
            return
