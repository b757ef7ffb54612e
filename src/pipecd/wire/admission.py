# SPDX-License-Identifier: Apache-2.0
"""Limits the connections of clients that have proven nothing, and the time they may take.

A connection waits while its client has not sent a whole request, and a gRPC connection until a call
on it is authenticated. Beyond the limits the oldest waiting connection is closed, so that those who
hold connections open lose their own, and a new client is always accepted. Connections with a
request that is being served, such as a stream of live updates, are not limited.

After a restart thousands of pipeds connect at once, and it takes seconds to authenticate them all.
So a new gRPC connection counts after a moment only, and later as long as others are authenticated.
"""

import asyncio
import resource
import time
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
# How old a gRPC connection is before it counts: at least, and at most while others are
# authenticated at least this often.
_MOMENT_SECONDS, _QUEUE_SECONDS, _PROGRESS_SECONDS = 2.0, 10.0, 1.5
# How many gRPC connections there may be that count or not, as a multiple of those that may wait.
_MAX_NEW = 4


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
        # The gRPC connections on which no call was authenticated yet.
        self._strangers: dict[ClientConnection, None] = {}
        self._authenticated_at = float("-inf")

    def add(self, connection: ClientConnection, *, is_grpc: bool = False) -> None:
        """Admits a connection; closes one that waits if there are too many."""
        self._open[connection] = None
        if is_grpc:
            self._strangers[connection] = None
        self._by_address[connection.address] += 1
        if len(self._strangers) > _MAX_NEW * self._total:
            self._close_one(list(self._strangers))
        # A connection that does not count yet is left to the next sweep, with all others.
        elif connection.is_waiting:
            self._close_surplus_of(connection.address)
            self._close_surplus()

    def authenticated(self, connection: ClientConnection) -> None:
        """Ends the limits of a connection on which a call was authenticated."""
        self._authenticated_at = time.monotonic()
        self.remove(connection)

    def counts_since(self, connected_at: float) -> bool:
        """Whether a gRPC connection counts by now that was made at this monotonic time."""
        now = time.monotonic()
        is_queue_moving = now - self._authenticated_at < _PROGRESS_SECONDS
        return now - connected_at >= (_QUEUE_SECONDS if is_queue_moving else _MOMENT_SECONDS)

    def enforce(self) -> None:
        """Closes the connections that are too many by now."""
        for address in [a for a, n in self._by_address.items() if n > self._per_address]:
            self._close_surplus_of(address)
        self._close_surplus()

    def remove(self, connection: ClientConnection) -> None:
        """Ends the limits of a connection that is closed, or whose client is authenticated."""
        if connection in self._open:
            del self._open[connection]
            self._strangers.pop(connection, None)
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
            self.enforce()
            now = loop.time()
            for connection in list(self._open):
                deadline = connection.deadline
                if deadline is not None and deadline <= now:
                    self._close(connection)

    def _close_surplus_of(self, address: str) -> None:
        if self._by_address[address] <= self._per_address or self._is_proxy(address):
            return
        waiting = [c for c in self._open if c.address == address and c.is_waiting]
        for oldest in waiting[: max(len(waiting) - self._per_address, 0)]:
            self._close(oldest)

    def _close_surplus(self) -> None:
        if len(self._open) <= self._total:
            return
        waiting = [each for each in self._open if each.is_waiting]
        while len(waiting) > self._total:
            waiting.remove(self._close_one(waiting))

    def _close_one(self, waiting: list[ClientConnection]) -> ClientConnection:
        """Closes the oldest connection of the address that has the most, and returns it."""
        (address, _), *_ = Counter(each.address for each in waiting).most_common(1)
        oldest = next(each for each in waiting if each.address == address)
        self._close(oldest)
        return oldest

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
