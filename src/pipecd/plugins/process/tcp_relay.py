# SPDX-License-Identifier: Apache-2.0
"""Relays TCP connections between clients and backends."""

import asyncio
import socket
import struct
from typing import cast

from pipecd.plugins.process.router_route import Choice, Route, Target


def peer_address(transport: asyncio.BaseTransport) -> str:
    """Returns the address of a client; "" if it has already left."""
    peer = transport.get_extra_info("peername")
    return peer[0].removeprefix("::ffff:") if peer else ""


def reset(transport: asyncio.Transport) -> None:
    """Ends a connection at once, and lets the other side know that something is missing."""
    without_waiting = struct.pack("ii", 1, 0)
    transport.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, without_waiting
    )
    transport.abort()


class _Side(asyncio.Protocol):
    """One of the two connections of a relay."""

    transport: asyncio.Transport

    def __init__(self, relay: "TcpRelay") -> None:
        self.other: _Side | None = None
        self.has_ended = False
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._relay.progress()
        if self.other is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """Passes on that this side will say no more; the other one may still speak."""
        self.has_ended = True
        if self.other is None or not self.other.transport.can_write_eof():
            return False
        if self.other.has_ended:
            # Both are closed at once: one must not wait for what the other one does not read.
            self.other.transport.close()
            return False
        self.other.transport.write_eof()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self.other is not None:
            other, self.other = self.other, None
            other.other = None
            if exc is None:
                other.transport.close()
            else:
                reset(other.transport)
        self._relay.lose(self)

    def pause_writing(self) -> None:
        if self.other is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None:
            self.other.transport.resume_reading()


class TcpRelay(_Side):
    """A client's connection, which is relayed to one backend for as long as it lasts."""

    _choice: Choice

    def __init__(self, route: Route) -> None:
        super().__init__(self)
        self.deadline = float("inf")
        self._route = route
        self._loop = asyncio.get_running_loop()
        self._started = self._loop.time()
        self._is_assigned = False
        self._tried: list[Target] = []
        self._connecting: asyncio.Task[None] | None = None
        self._open: set[_Side] = {self}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._route.admit(self, peer_address(transport)):
            self.transport.abort()
            return
        self.transport.pause_reading()
        self._assign(self._route.choose(self._started))

    def _assign(self, choice: Choice | None) -> None:
        if choice is None:
            self._route.unserved += 1
            reset(self.transport)
            return
        self._choice = choice
        variant, target = choice
        self._is_assigned = True
        target.begin()
        variant.meter.in_flight += 1
        self._connecting = self._loop.create_task(self._connect(target))

    def _release(self) -> None:
        if self._is_assigned:
            self._is_assigned = False
            variant, target = self._choice
            target.end()
            variant.meter.in_flight -= 1

    async def _connect(self, target: Target) -> None:
        backend, variant = target.backend, self._choice[0]
        try:
            async with asyncio.timeout(self._route.limits.connect):
                _, side = await self._loop.create_connection(
                    lambda: _Side(self), backend.host, backend.port
                )
        except OSError as e:
            now = self._loop.time()
            cause = f"refused a connection: {e.strerror or 'it took too long'}"
            variant.meter.failed_to_connect(now, f"{backend} {cause}")
            self._route.skip(target, now)
            self._release()
            self._tried.append(target)
            other = self._route.choose_other(variant, self._tried, now)
            if other is not None:
                self._route.retries += 1
            self._assign(other)
            return
        now = self._loop.time()
        variant.meter.accepted(now, now - self._started)
        self.other, side.other = side, self
        self._open.add(side)
        self.progress()
        self.transport.resume_reading()

    def progress(self) -> None:
        """Moves the deadline, since something was sent."""
        self.deadline = self._loop.time() + self._route.limits.tunnel

    def lose(self, side: _Side) -> None:
        """Ends with its first connection that is lost; the other one sends what is left."""
        self._open.discard(side)
        if self._connecting is not None:
            self._connecting.cancel()
        self._release()
        if self._open:
            self.deadline = self._loop.time() + self._route.limits.flush
        else:
            self._route.leave(self)

    def expire(self, now: float) -> None:
        """Ends a connection on which nothing was sent, or could be sent, for too long."""
        del now
        self.abort()

    def abort(self) -> None:
        """Ends at once."""
        for side in [*self._open]:
            side.transport.abort()
