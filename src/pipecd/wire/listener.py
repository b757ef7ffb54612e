# SPDX-License-Identifier: Apache-2.0
"""Accepts TCP connections, with TLS if wanted, and survives the lack of files for more."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from pipecd.wire.admission import Admission

log = structlog.get_logger()

_BACKLOG = 512
_ACCEPTS_PER_PASS = 100
# In seconds.
_HANDSHAKE_TIMEOUT = 10.0
_RETRY_DELAY = 0.1
_LOG_INTERVAL = 60.0

Protocols = Callable[[], asyncio.Protocol]


@asynccontextmanager
async def listening(
    protocols: Protocols,
    admission: Admission,
    *,
    host: str,
    port: int,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[int, None]:
    """Serves each connection with a new protocol until the block ends; yields the bound port.

    Raises OSError if the port cannot be bound.
    """
    loop = asyncio.get_running_loop()
    # asyncio binds every address of the host; its server would hide accept errors and handshakes.
    binding = await loop.create_server(protocols, host, port, start_serving=False)
    listeners = [_Listener(each.dup(), protocols, admission, tls) for each in binding.sockets]
    bound: int = binding.sockets[0].getsockname()[1]
    binding.close()
    for listener in listeners:
        listener.start()
    try:
        async with admission.enforced():
            yield bound
    finally:
        for listener in listeners:
            listener.close()


class _Listener:
    """One listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        protocols: Protocols,
        admission: Admission,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket, self._protocols, self._admission, self._tls = (
            listening, protocols, admission, tls,
        )  # fmt: skip
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[_Handshake] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._failed_at = float("-inf")

    def start(self) -> None:
        self._socket.setblocking(False)
        self._socket.listen(_BACKLOG)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for handshake in list(self._handshakes):
            handshake.close()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_PASS):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as e:
                self._pause(e)
                return
            accepted.setblocking(False)
            handshake = _Handshake(str(address[0]), self._loop.time() + _HANDSHAKE_TIMEOUT)
            self._handshakes.add(handshake)
            self._admission.add(handshake)
            handshake.start(self._serve(handshake, accepted))

    def _pause(self, error: OSError) -> None:
        """Frees the files of a waiting connection and tries again in a moment."""
        # Each connection that is closed lets another one in, so that errors alternate with success.
        now = self._loop.time()
        if now - self._failed_at > _LOG_INTERVAL:
            log.error(
                "connections cannot be accepted, raise the limit of open files", error=str(error)
            )
        self._failed_at = now
        self._admission.close_oldest()
        self._loop.remove_reader(self._socket)
        self._retry = self._loop.call_later(
            _RETRY_DELAY, self._loop.add_reader, self._socket, self._accept
        )

    async def _serve(self, handshake: "_Handshake", accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._protocols,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=_HANDSHAKE_TIMEOUT if self._tls else None,
            )
        except (OSError, ssl.SSLError, asyncio.CancelledError):
            # The client is gone, does not speak TLS, or was closed for another one.
            accepted.close()
        finally:
            self._handshakes.discard(handshake)
            self._admission.remove(handshake)


class _Handshake:
    """A connection until its protocol takes over."""

    is_waiting = True

    def __init__(self, address: str, deadline: float) -> None:
        self.address = address
        self.deadline: float | None = deadline
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(work)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
