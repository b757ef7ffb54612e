# SPDX-License-Identifier: Apache-2.0
"""A bus between processes: signals within this one at once, to and from the others over a wire.

Signals that were lost on the way cost nothing but a look: whenever the wire is back, everyone on
both of its ends hears EVERYTHING.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import structlog

from pipecd.controlplane.bus.encoding import EVERYTHING, decode_signal, encode_signal
from pipecd.controlplane.bus.memory import MemoryBus, Subscription
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.model.backoff import Backoff
from pipecd.model.ids import new_id

log = structlog.get_logger()

MOST_WAITING = 4096
MOST_AT_ONCE = 100
# A message holds as many signals as every wire takes at once.
LONGEST_MESSAGE = 7000
# The first signal goes out at once, those that follow go together.
PAUSE_BETWEEN_MESSAGES = 0.02
BACKOFF = Backoff(first=0.1, longest=5.0)


class WireLost(Exception):
    """The way to the other processes is broken."""


def end_if_cancelled() -> None:
    """Ends a task that was told to end while something it called took no notice of it."""
    if (task := asyncio.current_task()) and task.cancelling():
        raise asyncio.CancelledError


class Connected(Protocol):
    """A wire that is up; its methods raise WireLost when it is not any more."""

    async def send(self, messages: Sequence[bytes]) -> None: ...

    def received(self) -> AsyncIterator[bytes]:
        """Messages of everyone, also our own."""
        ...


class Wire(Protocol):
    """A way to all processes of a control plane."""

    name: str

    def open(self) -> AbstractAsyncContextManager[Connected]:
        """Connects and listens, or raises WireLost."""
        ...


class RelayBus:
    """Publish and subscribe among all processes on one wire; `run` keeps it connected."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._here = MemoryBus()
        self._outgoing = Subscription("", "", MOST_WAITING)
        self._origin = new_id().encode()

    async def publish(self, signal: Signal) -> None:
        await self._here.publish(signal)
        self._outgoing.offer(signal)

    def subscribe(
        self,
        *,
        project: str = "",
        piped: str = "",
        shared: frozenset[Topic] = frozenset(),
        only: frozenset[Topic] = frozenset(),
    ) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        return self._here.subscribe(project=project, piped=piped, shared=shared, only=only)

    async def run(self) -> None:
        """Connects, again and again, and carries signals in both directions."""
        pauses = iter(BACKOFF)
        has_been_up = False
        while True:
            try:
                async with self._wire.open() as connected:
                    log.info("bus connected", wire=self._wire.name)
                    pauses = iter(BACKOFF)
                    if has_been_up:
                        self._outgoing.offer(EVERYTHING)
                    has_been_up = True
                    await self._here.publish(EVERYTHING)
                    await self._carry(connected)
            except WireLost as e:
                # A group of tasks that is cancelled while it fails tells of the failure only.
                end_if_cancelled()
                log.warning("bus disconnected", wire=self._wire.name, error=str(e))
            await asyncio.sleep(next(pauses) * random.uniform(0.5, 1))  # noqa: S311

    async def _carry(self, connected: Connected) -> None:
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._send(connected))
                await self._receive(connected)
        except BaseExceptionGroup as group:
            # Both directions break at once; one reason is enough.
            lost, rest = group.split(WireLost)
            if lost is None or rest is not None:
                raise
            raise WireLost(str(lost.exceptions[0])) from group

    async def _send(self, connected: Connected) -> None:
        async for signal in self._outgoing:
            signals = [signal, *self._outgoing.taken(MOST_AT_ONCE - 1)]
            await connected.send([self._origin + part for part in _packed(signals)])
            await asyncio.sleep(PAUSE_BETWEEN_MESSAGES)

    async def _receive(self, connected: Connected) -> None:
        own = len(self._origin)
        async for message in connected.received():
            if message[:own] != self._origin:
                for line in message[own:].split(b"\n"):
                    await self._here.publish(decode_signal(line))


def _packed(signals: Iterable[Signal]) -> Iterator[bytes]:
    """The signals as lines, as many of them together as a message may hold."""
    packed = b""
    for line in map(encode_signal, signals):
        if packed and len(packed) + len(line) >= LONGEST_MESSAGE:
            yield packed
            packed = b""
        packed = packed + b"\n" + line if packed else line
    yield packed
