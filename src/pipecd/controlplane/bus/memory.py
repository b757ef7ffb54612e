# SPDX-License-Identifier: Apache-2.0
"""The bus of a control plane that is one process."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from pipecd.controlplane.bus.signal import EVERYTHING, Signal, Topic
from pipecd.observe.metrics import StoreMetrics

MAX_PENDING = 256

# A project, and a piped or topic in it; empty for any of them.
Address = tuple[str, str | Topic]


class Subscription:
    """The pending signals of one subscriber, each once."""

    def __init__(self, project: str, piped: str, max_pending: int) -> None:
        self._max_pending = max_pending
        self._everything = replace(EVERYTHING, project=project, piped=piped)
        # A signal carries no data, so equal ones are merged; a dictionary keeps their order.
        self._pending: dict[Signal, None] = {}
        self._arrived = asyncio.Event()
        self._closed = False

    def offer(self, signal: Signal) -> None:
        """Queues the signal; too many pending signals become one EVERYTHING."""
        if self._closed or self._everything in self._pending:
            return
        if signal.topic is Topic.EVERYTHING or len(self._pending) >= self._max_pending:
            self._pending = {self._everything: None}
        else:
            self._pending[signal] = None
        self._arrived.set()

    def close(self) -> None:
        self._closed = True
        self._pending.clear()
        self._arrived.set()

    def take(self, limit: int) -> list[Signal]:
        """Removes and returns the first pending signals, without waiting."""
        signals = list(self._pending)[:limit]
        for signal in signals:
            del self._pending[signal]
        return signals

    def __aiter__(self) -> AsyncIterator[Signal]:
        return self

    async def __anext__(self) -> Signal:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        signal = next(iter(self._pending))
        del self._pending[signal]
        return signal


class MemoryBus:
    """Publish and subscribe within one process.

    The cost of a signal grows with the subscribers that receive it, not with all subscribers.
    """

    def __init__(
        self, *, metrics: StoreMetrics | None = None, max_pending: int = MAX_PENDING
    ) -> None:
        self._metrics, self._max_pending = metrics, max_pending
        # Dictionaries, because the order of a set would make the order of events random.
        self._subscriptions: defaultdict[Address, dict[Subscription, None]] = defaultdict(dict)

    async def run(self) -> None:
        """Returns at once: there is no other process to connect to."""

    async def publish(self, signal: Signal) -> None:
        if self._metrics is not None:
            self._metrics.signalled(signal.topic.value)
        self.deliver(signal)

    def deliver(self, signal: Signal) -> None:
        """Queues the signal for its subscribers, without counting it as published here."""
        if signal.topic is Topic.EVERYTHING:
            addresses = [
                (project, topic)
                for project, topic in self._subscriptions
                if not signal.project or project in ("", signal.project)
            ]
        else:
            addresses = [
                (project, topic)
                for project in {"", signal.project}
                for topic in {"", signal.piped, signal.topic}
                if (project, topic) in self._subscriptions
            ]
        for address in addresses:
            for subscription in self._subscriptions[address]:
                subscription.offer(signal)

    @asynccontextmanager
    async def subscribe(
        self,
        *,
        project: str = "",
        piped: str = "",
        shared: frozenset[Topic] = frozenset(),
        only: frozenset[Topic] = frozenset(),
    ) -> AsyncIterator[AsyncIterator[Signal]]:
        subscription = Subscription(project, piped, self._max_pending)
        addresses: list[Address] = [(project, topic) for topic in only or shared]
        if not only:
            addresses.append((project, piped))
        for address in addresses:
            self._subscriptions[address][subscription] = None
        if self._metrics is not None:
            self._metrics.subscribed(1)
        try:
            yield subscription
        finally:
            if self._metrics is not None:
                self._metrics.subscribed(-1)
            for address in addresses:
                del self._subscriptions[address][subscription]
                if not self._subscriptions[address]:
                    del self._subscriptions[address]
            subscription.close()
