# SPDX-License-Identifier: Apache-2.0
"""A bus between processes: local signals are delivered at once, others over a transport.

Signals that are lost while the transport is down cost only a full refresh: after it reconnects,
every subscriber on both ends receives EVERYTHING. So do the subscribers of all other processes when
a process dies, which may have stored something and not signalled it any more.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Protocol

import structlog

from pipecd.controlplane.bus.memory import MemoryBus, Subscription
from pipecd.controlplane.bus.signal import (
    EVERYTHING,
    Signal,
    Topic,
    decode_signal,
    encode_signal,
)
from pipecd.model.backoff import Backoff
from pipecd.model.ids import new_id
from pipecd.observe.metrics import StoreMetrics

log = structlog.get_logger()

MAX_PENDING = 4096
MAX_BATCH = 100
# Every transport accepts messages of this size.
MAX_MESSAGE_BYTES = 7000
# The first signal is sent at once; the signals of the next moments are batched.
BATCH_SECONDS = 0.02
# Every process signals that it runs; one that was silent for so long is dead.
ALIVE_SECONDS, DEAD_SECONDS = 2.0, 7.0
# How long a process that ends may take to send its last signals.
LEAVE_SECONDS = 1.0
BACKOFF = Backoff(first=0.1, longest=5.0)


# Signals of the bus itself, which no subscriber receives. Replicas of earlier versions read them as
# a change of a project that does not exist.
ALIVE = Signal(Topic.PROJECT, id="alive", project="")
LEAVING = Signal(Topic.PROJECT, id="leaving", project="")


class BusDisconnected(Exception):
    """The connection to the other processes failed."""


def end_if_cancelled() -> None:
    """Raises CancelledError in a cancelled task whose driver swallowed the cancellation."""
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError


class Channel(Protocol):
    """An open connection of a transport; its methods raise BusDisconnected when it fails."""

    async def send(self, messages: Sequence[bytes]) -> None: ...

    def received(self) -> AsyncIterator[bytes]:
        """The messages of all processes, this one included."""
        ...


class Transport(Protocol):
    """Connects all processes of a control plane."""

    name: str

    def open(self) -> AbstractAsyncContextManager[Channel]:
        """Connects and listens, or raises BusDisconnected."""
        ...


class RelayBus:
    """Publish and subscribe among all processes on one transport; `run` keeps it connected."""

    def __init__(self, transport: Transport, *, metrics: StoreMetrics | None = None) -> None:
        self._transport = transport
        self._local = MemoryBus(metrics=metrics)
        self._outgoing = Subscription("", "", MAX_PENDING)
        self._origin = new_id().encode()
        # When the last message of each other process arrived.
        self._peers: dict[bytes, float] = {}

    async def publish(self, signal: Signal) -> None:
        await self._local.publish(signal)
        self._outgoing.offer(signal)

    def subscribe(
        self,
        *,
        project: str = "",
        piped: str = "",
        shared: frozenset[Topic] = frozenset(),
        only: frozenset[Topic] = frozenset(),
    ) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        return self._local.subscribe(project=project, piped=piped, shared=shared, only=only)

    async def run(self) -> None:
        """Connects, reconnects with backoff, and relays signals in both directions."""
        delays = iter(BACKOFF)
        was_connected = False
        while True:
            try:
                async with self._transport.open() as channel:
                    log.info("bus connected", transport=self._transport.name)
                    delays = iter(BACKOFF)
                    if was_connected:
                        self._outgoing.offer(EVERYTHING)
                    was_connected = True
                    self._local.deliver(EVERYTHING)
                    await self._relay(channel)
            except BusDisconnected as e:
                # A task group that is cancelled while it fails raises the failure only.
                end_if_cancelled()
                log.warning("bus disconnected", transport=self._transport.name, error=str(e))
            await asyncio.sleep(next(delays) * random.uniform(0.5, 1))  # noqa: S311

    async def _relay(self, channel: Channel) -> None:
        self._peers.clear()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._send(channel))
                tasks.create_task(self._watch_peers())
                async for message in channel.received():
                    self._receive(message)
        except asyncio.CancelledError:
            with suppress(BusDisconnected, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await channel.send(self._messages([*self._outgoing.take(MAX_BATCH), LEAVING]))
            raise
        except BaseExceptionGroup as group:
            # Both directions fail at once; one error is enough.
            lost, rest = group.split(BusDisconnected)
            if lost is None or rest is not None:
                raise
            raise BusDisconnected(str(lost.exceptions[0])) from group

    def _receive(self, message: bytes) -> None:
        """Delivers the signals of another process."""
        prefix = len(self._origin)
        origin, lines = message[:prefix], message[prefix:].split(b"\n")
        if origin == self._origin:
            return
        self._peers[origin] = asyncio.get_running_loop().time()
        for signal in map(decode_signal, lines):
            if signal == LEAVING:
                del self._peers[origin]
            elif signal != ALIVE:
                self._local.deliver(signal)

    async def _watch_peers(self) -> None:
        """Signals that this process runs; delivers EVERYTHING when another one has died."""
        while True:
            self._outgoing.offer(ALIVE)
            await asyncio.sleep(ALIVE_SECONDS)
            since = asyncio.get_running_loop().time() - DEAD_SECONDS
            dead = [origin for origin, at in self._peers.items() if at < since]
            if dead:
                log.warning("another replica vanished, refreshing everything")
                self._local.deliver(EVERYTHING)
            for origin in dead:
                del self._peers[origin]

    async def _send(self, channel: Channel) -> None:
        async for signal in self._outgoing:
            await channel.send(self._messages([signal, *self._outgoing.take(MAX_BATCH - 1)]))
            await asyncio.sleep(BATCH_SECONDS)

    def _messages(self, signals: Sequence[Signal]) -> list[bytes]:
        """Encodes signals in as few messages as a transport accepts."""
        batch = b""
        messages: list[bytes] = []
        for line in map(encode_signal, signals):
            if batch and len(batch) + len(line) >= MAX_MESSAGE_BYTES:
                messages.append(self._origin + batch)
                batch = b""
            batch = batch + b"\n" + line if batch else line
        return [*messages, self._origin + batch]
