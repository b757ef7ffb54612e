# SPDX-License-Identifier: Apache-2.0
"""A bus that counts what is told and who listens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from pipecd.controlplane.bus.open import RunningBus
from pipecd.controlplane.bus.signal import Signal


class Listened(Protocol):
    """Hears about signals and listeners."""

    def signalled(self, topic: str) -> None: ...

    def subscribed(self, change: int) -> None: ...


class CountedBus:
    """Passes everything on and counts it."""

    def __init__(self, bus: RunningBus, counts: Listened) -> None:
        self._bus, self._counts = bus, counts

    async def run(self) -> None:
        await self._bus.run()

    async def publish(self, signal: Signal) -> None:
        self._counts.signalled(signal.topic.value)
        await self._bus.publish(signal)

    @asynccontextmanager
    async def subscribe(self, **wanted: Any) -> AsyncIterator[AsyncIterator[Signal]]:
        async with self._bus.subscribe(**wanted) as signals:
            self._counts.subscribed(1)
            try:
                yield signals
            finally:
                self._counts.subscribed(-1)
