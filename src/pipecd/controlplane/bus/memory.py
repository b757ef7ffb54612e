# SPDX-License-Identifier: Apache-2.0
"""The bus of a control plane that is one process."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from pipecd.controlplane.bus.encoding import EVERYTHING
from pipecd.controlplane.bus.signal import Signal, Topic

MOST_WAITING = 256

# A project, and the piped or the topic that is listened to in it; empty for any of them.
Address = tuple[str, str | Topic]


class Subscription:
    """The signals that one subscriber has not taken yet; each of them waits once."""

    def __init__(self, project: str, piped: str, most_waiting: int) -> None:
        self._project = project
        self._piped = piped
        self._most_waiting = most_waiting
        self._everything = replace(EVERYTHING, project=project, piped=piped)
        # A signal carries no data, so that two equal ones say no more than one; a dictionary keeps
        # their order.
        self._waiting: dict[Signal, None] = {}
        self._arrived = asyncio.Event()
        self._closed = False

    def offer(self, signal: Signal) -> None:
        """Takes the signal; too many become one EVERYTHING."""
        if self._closed or self._everything in self._waiting:
            return
        if signal.topic is Topic.EVERYTHING or len(self._waiting) >= self._most_waiting:
            self._waiting = {self._everything: None}
        else:
            self._waiting[signal] = None
        self._arrived.set()

    def close(self) -> None:
        self._closed = True
        self._waiting.clear()
        self._arrived.set()

    def taken(self, most: int) -> list[Signal]:
        """Takes what waits already."""
        signals = list(self._waiting)[:most]
        for signal in signals:
            del self._waiting[signal]
        return signals

    def __aiter__(self) -> AsyncIterator[Signal]:
        return self

    async def __anext__(self) -> Signal:
        while not self._waiting:
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        signal = next(iter(self._waiting))
        del self._waiting[signal]
        return signal


class MemoryBus:
    """Publish and subscribe within one process.

    A signal costs as much as it has listeners, however many subscribe to something else.
    """

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        # Sets without an order would make the order of events a matter of chance.
        self._listeners: defaultdict[Address, dict[Subscription, None]] = defaultdict(dict)

    async def run(self) -> None:
        """Nothing to do: there is nobody to connect to."""

    async def publish(self, signal: Signal) -> None:
        if signal.topic is Topic.EVERYTHING:
            for (project, _), listeners in self._listeners.items():
                if not signal.project or project in ("", signal.project):
                    _offer(listeners, signal)
            return
        for project in {"", signal.project}:
            for what in {"", signal.piped, signal.topic}:
                if listeners := self._listeners.get((project, what)):
                    _offer(listeners, signal)

    @asynccontextmanager
    async def subscribe(
        self,
        *,
        project: str = "",
        piped: str = "",
        shared: frozenset[Topic] = frozenset(),
        only: frozenset[Topic] = frozenset(),
    ) -> AsyncIterator[AsyncIterator[Signal]]:
        subscription = Subscription(project, piped, self._most_waiting)
        addresses: list[Address] = [(project, topic) for topic in only or shared]
        if not only:
            addresses.append((project, piped))
        for address in addresses:
            self._listeners[address][subscription] = None
        try:
            yield subscription
        finally:
            for address in addresses:
                del self._listeners[address][subscription]
                if not self._listeners[address]:
                    del self._listeners[address]
            subscription.close()


def _offer(listeners: Iterable[Subscription], signal: Signal) -> None:
    for listener in listeners:
        listener.offer(signal)
