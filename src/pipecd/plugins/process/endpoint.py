# SPDX-License-Identifier: Apache-2.0
"""The address of one application: the listener of the router, and how it is replaced."""

import asyncio
import socket
import time
from collections.abc import Mapping

from pipecd.plugins.process.desired import Listener
from pipecd.plugins.process.instance import VariantTraffic
from pipecd.plugins.process.router import Backend, CannotListen, RouteProtocol, Router, Share

TRAFFIC_SECONDS = 3600.0
"""Requests of this time are counted for the current version of a variant."""

_AGAIN_SECONDS = 5.0
_CLOSE_SECONDS = 30.0


class Endpoint:
    """Listens where an application shall, and distributes requests by its shares.

    Another listener is opened before the former one is closed. Where both have the same port that
    is impossible: a change of the protocol takes over the socket, so that no connection is lost,
    and a change of the host refuses connections for a moment.
    """

    def __init__(self, router: Router, application: str) -> None:
        self.listener: Listener | None = None
        self.error = ""
        self.again_at = 0.0
        """When to try again to listen; 0 if it listens where it shall."""
        self._router, self._application = router, application
        self._shares: Mapping[str, Share] = {}
        self._handed_over: tuple[Listener, socket.socket] | None = None
        self._closing = set[asyncio.Task[None]]()

    def name(self, listener: Listener) -> str:
        """Returns the name of a listener in the router."""
        return f"{self._application}@{listener}"

    def take_over(self, listener: Listener, sock: socket.socket) -> None:
        """Takes the listening socket of a former supervisor; connections wait in its queue."""
        self._handed_over = listener, sock

    def route(self, shares: Mapping[str, Share]) -> None:
        """Distributes the next requests in this way."""
        self._shares = shares
        if self.listener is not None:
            self._router.route(self.name(self.listener), shares)

    async def follow(self, wanted: Listener | None) -> bool:
        """Listens there, or says in `error` why it cannot; returns whether anything changed."""
        if self._handed_over is not None:
            listener, sock = self._handed_over
            self._handed_over = None
            await self._open(listener, sock)
        if wanted == self.listener:
            has_changed = bool(self.error)
            self.error, self.again_at = "", 0.0
            return has_changed
        if time.time() < self.again_at:
            return False
        try:
            await self._replace(wanted)
            self.error, self.again_at = "", 0.0
        except CannotListen as e:
            self.error, self.again_at = str(e), time.time() + _AGAIN_SECONDS
        return True

    def forget_error(self) -> None:
        """Tries again at once: what shall run has changed."""
        self.again_at = 0.0

    async def drain(self, backend: Backend, seconds: float) -> None:
        """Sends nothing more to a backend, and waits until nothing is running on it."""
        if self.listener is not None:
            await self._router.drain(self.name(self.listener), backend, seconds)

    def traffic(self) -> dict[str, VariantTraffic]:
        """Returns what was counted of each variant."""
        if self.listener is None:
            return {}
        name = self.name(self.listener)
        return {
            variant: VariantTraffic(
                window.requests, window.errors, counted.requests, counted.errors
            )
            for variant, counted in self._router.stats(name).variants.items()
            for window in [self._router.window(name, variant, TRAFFIC_SECONDS)]
        }

    async def stop(self) -> None:
        """Stops to wait for the end of former listeners."""
        for task in self._closing:
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _replace(self, wanted: Listener | None) -> None:
        former = self.listener
        if wanted is None or former is None or former.port != wanted.port:
            if wanted is not None:
                await self._open(wanted)
            if former is not None:
                self._close(former)
        elif former.host == wanted.host:
            sock = self._router.sockets()[self.name(former)].dup()
            self._close(former)
            await self._open(wanted, sock)
        else:
            self._close(former)
            try:
                await self._open(wanted)
            except CannotListen:
                await self._open(former)
                raise

    async def _open(self, listener: Listener, sock: socket.socket | None = None) -> None:
        protocol = RouteProtocol(listener.protocol.value)
        name = self.name(listener)
        await self._router.listen(
            name, listener.host, listener.port, protocol, sock=sock, variants=self._shares
        )
        self.listener = listener

    def _close(self, listener: Listener) -> None:
        """Accepts no more connections there; the existing ones end after what they are doing."""
        if self.listener == listener:
            self.listener = None
        ending = self._router.unlisten(self.name(listener), _CLOSE_SECONDS)
        task = asyncio.ensure_future(ending)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
