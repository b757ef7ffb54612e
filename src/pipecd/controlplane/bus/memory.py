# SPDX-License-Identifier: Apache-2.0
"""The bus of a control plane that is one process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from pipecd.controlplane.bus.encoding import EVERYTHING
from pipecd.controlplane.bus.signal import Signal, Topic

MOST_WAITING = 256


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
        """Takes the signal if it is wanted; too many become one EVERYTHING."""
        if self._closed or not self._wants(signal) or self._everything in self._waiting:
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

    def _wants(self, signal: Signal) -> bool:
        if signal.topic is Topic.EVERYTHING:
            return signal.project in ("", self._project) or not self._project
        return (not self._project or signal.project == self._project) and (
            not self._piped or signal.piped == self._piped
        )


class MemoryBus:
    """Publish and subscribe within one process."""

    def __init__(self, *, most_waiting: int = MOST_WAITING) -> None:
        self._most_waiting = most_waiting
        self._subscriptions: set[Subscription] = set()

    async def run(self) -> None:
        """Nothing to do: there is nobody to connect to."""

    async def publish(self, signal: Signal) -> None:
        for subscription in self._subscriptions:
            subscription.offer(signal)

    @asynccontextmanager
    async def subscribe(
        self, *, project: str = "", piped: str = ""
    ) -> AsyncIterator[AsyncIterator[Signal]]:
        subscription = Subscription(project, piped, self._most_waiting)
        self._subscriptions.add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions.discard(subscription)
            subscription.close()
