# SPDX-License-Identifier: Apache-2.0
"""Distributes HTTP requests and TCP connections to the replicas of an application's variants.

    router = Router()
    port = await router.listen("web", "127.0.0.1", 8080, RouteProtocol.HTTP)
    router.route("web", {
        "primary": Share(90, (Backend("127.0.0.1", 9001),), version="4f1c2d3"),
        "canary": Share(10, (Backend("127.0.0.1", 9002),), version="9a8b7c6"),
    })

A switch fails no request: first `route` without the old replicas, then `drain` each of them, then
stop it. A new router takes over from an old one by its listening sockets: pass `sockets()` to the
other process (`socket.send_fds`), `listen` there with them, and `close` the old router. Both have
the same queue of connections, so none is lost in between.
"""

import asyncio
import errno
import resource
import socket
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from pipecd.plugins.process.http_client import ClientConnection
from pipecd.plugins.process.router_route import (
    Backend,
    Capacity,
    Limits,
    Network,
    Route,
    Share,
    shares_of,
)
from pipecd.plugins.process.router_stats import RouteStats, VariantStats, Window
from pipecd.plugins.process.tcp_relay import TcpRelay

__all__ = [
    "Backend",
    "CannotListen",
    "Limits",
    "RouteProtocol",
    "RouteStats",
    "Router",
    "Share",
    "VariantStats",
    "Window",
]

Variants: TypeAlias = Mapping[str, Share | tuple[int, Sequence[Backend]]]

_BACKLOG = 1024
# Files that the process needs for other things than clients and backends.
_OTHER_FILES = 64
_SWEEP_SECONDS = 1.0
# While a router closes it looks this often whether everything has ended.
_CLOSING_SECONDS = 0.02


class RouteProtocol(StrEnum):
    """What a listener understands: requests, which are distributed one by one, or connections."""

    HTTP = "http"
    TCP = "tcp"


class CannotListen(Exception):
    """The router cannot listen at an address; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class _Listener:
    route: Route
    socket: socket.socket
    server: asyncio.Server


class Router:
    """Listeners by name, each with its route. Used within one event loop."""

    def __init__(self, limits: Limits | None = None) -> None:
        connections = _possible_connections()
        self._capacity = Capacity(connections)
        self._limits = _within(connections, limits or Limits())
        self._listeners: dict[str, _Listener] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def listen(
        self,
        name: str,
        host: str,
        port: int,
        protocol: RouteProtocol = RouteProtocol.HTTP,
        *,
        sock: socket.socket | None = None,
        variants: Variants = MappingProxyType({}),
    ) -> int:
        """Accepts connections, and returns the port, which the system chooses when it is 0.

        Requests are distributed to the variants, and answered with 503 without any. `sock` is the
        listening socket of the router before this one. Raises CannotListen.
        """
        if name in self._listeners:
            raise ValueError(f"{name} listens already")
        listening = sock or await _open(host, port)
        route = Route(self._limits, self._capacity)
        route.update(shares_of(variants))
        factory = ClientConnection if protocol is RouteProtocol.HTTP else TcpRelay
        loop = asyncio.get_running_loop()
        server = await loop.create_server(partial(factory, route), sock=listening, backlog=_BACKLOG)
        self._listeners[name] = _Listener(route, listening, server)
        if self._sweep is None:
            self._sweep = loop.call_later(_SWEEP_SECONDS, self._expire)
        return int(listening.getsockname()[1])

    def trust(self, proxies: tuple[Network, ...]) -> None:
        """Believes what these clients say about others, from their next connection on."""
        self._limits = replace(self._limits, trusted_proxies=proxies)
        for listener in self._listeners.values():
            listener.route.limits = self._limits

    def listeners(self) -> frozenset[str]:
        """Returns the names of all listeners."""
        return frozenset(self._listeners)

    def route(self, name: str, variants: Variants) -> None:
        """Distributes the next requests in this way; those that are running go on.

        A variant that is not named any more gets nothing, its counters remain.
        """
        self._listeners[name].route.update(shares_of(variants))

    async def drain(self, name: str, backend: Backend, seconds: float) -> int:
        """Sends nothing more to the backend and waits until nothing is running on it.

        Returns how many requests, upgraded and TCP connections are left after the given time.
        """
        target = self._listeners[name].route.remove(backend)
        if target is None:
            return 0
        try:
            async with asyncio.timeout(seconds):
                await target.wait_until_empty()
        except TimeoutError:
            pass
        return target.in_flight

    def stats(self, name: str) -> RouteStats:
        """Returns all counters of a listener."""
        return self._listeners[name].route.stats()

    def window(self, name: str, variant: str, seconds: float) -> Window:
        """Returns the requests and errors of a variant's current version in the last seconds."""
        now = asyncio.get_running_loop().time()
        return self._listeners[name].route.window(variant, now, seconds)

    def sockets(self) -> Mapping[str, socket.socket]:
        """Returns the listening sockets by the names of the listeners, for another process."""
        return {name: listener.socket for name, listener in self._listeners.items()}

    def unlisten(self, name: str, seconds: float) -> Awaitable[None]:
        """Stops one listener as `close` does with all; it accepts no connection from now on."""
        listener = self._listeners.pop(name)
        listener.server.close()
        return _close(listener, seconds)

    async def close(self, seconds: float) -> None:
        """Accepts no more connections, and ends the existing ones after what they are doing.

        A client with an idle connection may be about to send a request: it is answered with
        `Connection: close`. What is left after the given time is cut off.
        """
        listeners = list(self._listeners.values())
        self._listeners.clear()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        await asyncio.gather(*(_close(listener, seconds) for listener in listeners))

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners.values():
            listener.route.expire(loop.time())
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._expire)


def _possible_connections() -> int:
    """Returns how many clients the process can serve: each needs two files, and others some."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max((files - _OTHER_FILES) // 2, 1)


def _within(possible: int, limits: Limits) -> Limits:
    connections = min(limits.connections, possible)
    # One client leaves at least half of them to others.
    one_client = min(limits.address_connections, max(connections // 2, 1))
    return replace(limits, connections=connections, address_connections=one_client)


async def _close(listener: _Listener, seconds: float) -> None:
    route = listener.route
    listener.server.close()
    route.is_closing = True
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while route.connections and loop.time() < until:
        route.expire(loop.time())
        await asyncio.sleep(_CLOSING_SECONDS)
    for connection in [*route.connections]:
        connection.abort()
    route.close()


async def _open(host: str, port: int) -> socket.socket:
    """Returns a listening socket."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as e:
        raise CannotListen(f"{host!r} is no address of this machine: {e.strerror}") from e
    family, _, _, _, address = found[0]
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
        opened.setblocking(False)
    except OSError as e:
        opened.close()
        raise CannotListen(_cause(e, host, port)) from e
    return opened


def _cause(error: OSError, host: str, port: int) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is in use by another program: "
                "stop that program or choose another port"
            )
        case errno.EACCES:
            return (
                f"port {port} of {host} needs more permissions: choose a port from 1024, or allow "
                "this user to bind it"
            )
        case errno.EADDRNOTAVAIL:
            return f"{host} is no address of this machine: choose one of its addresses"
        case _:
            return f"cannot listen on port {port} of {host}: {error.strerror}"
