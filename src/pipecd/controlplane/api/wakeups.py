# SPDX-License-Identifier: Apache-2.0
"""The stream of wake-ups that lets a piped react at once instead of polling.

A wake-up carries no data. While the receiver is slow, equal wake-ups are merged.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.model.errors import Unauthenticated
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest

# A stream without signals checks the key of its piped again after this time.
RECHECK_SECONDS = 60.0

WakeupKey = tuple[Wakeup.Kind.ValueType, str]

CONNECTED: WakeupKey = (Wakeup.CONNECTED, "")

# Topics for every piped of a project; other signals go only to the piped they name.
SHARED = frozenset({Topic.EVENT, Topic.CHAIN})
_KINDS: dict[Topic, Wakeup.Kind.ValueType] = {
    Topic.COMMAND: Wakeup.COMMANDS,
    Topic.APPLICATION: Wakeup.APPLICATIONS,
    Topic.DEPLOYMENT: Wakeup.DEPLOYMENTS,
    Topic.REPOSITORY: Wakeup.REPOSITORY,
    Topic.PIPED: Wakeup.PIPED,
}


class Wakeups:
    """The wake-up streams of all pipeds."""

    def __init__(self, bus: Bus, credentials: Credentials) -> None:
        self._bus, self._credentials = bus, credentials

    async def watch(
        self, _request: WatchWakeupsRequest, caller: PipedCaller
    ) -> AsyncGenerator[Wakeup, None]:
        """Sends CONNECTED, then one wake-up per change; ends when the key is no longer valid."""
        subscription = self._bus.subscribe(
            project=caller.project, piped=caller.piped, shared=SHARED
        )
        async with subscription as signals:
            pending = PendingWakeups()
            # A task group around the yields below would break on cancellation, so this task is
            # cancelled by hand.
            collector = asyncio.ensure_future(pending.collect(signals, caller))
            try:
                while not collector.done():
                    if pending.take_recheck() and not await self._credentials.is_still_valid(
                        caller
                    ):
                        raise Unauthenticated("Unauthenticated")
                    for kind, repository in pending.take():
                        yield Wakeup(kind=kind, repository=repository)
                    await pending.wait()
                collector.result()
            finally:
                collector.cancel()
                await asyncio.wait({collector})


class PendingWakeups:
    """The wake-ups not sent yet, each once."""

    def __init__(self) -> None:
        self._pending: dict[WakeupKey, None] = {CONNECTED: None}
        self._changed = asyncio.Event()
        self._needs_recheck = False

    async def collect(self, signals: AsyncIterator[Signal], caller: PipedCaller) -> None:
        """Turns signals into wake-ups until the bus closes the subscription."""
        try:
            async for signal in signals:
                self.add(signal, caller)
        finally:
            self._changed.set()

    def add(self, signal: Signal, caller: PipedCaller) -> None:
        wakeup = wakeup_for(signal, caller)
        if wakeup is not None:
            self._pending[wakeup] = None
        if signal.topic is Topic.EVERYTHING or (
            signal.topic is Topic.PIPED and signal.id == caller.piped
        ):
            self._needs_recheck = True
        if wakeup is not None or self._needs_recheck:
            self._changed.set()

    def take_recheck(self) -> bool:
        """Whether the key of the piped has to be checked again; resets the mark."""
        needed, self._needs_recheck = self._needs_recheck, False
        return needed

    def take(self) -> tuple[WakeupKey, ...]:
        """The wake-ups to send now, in the order of their first signal."""
        self._changed.clear()
        pending, self._pending = tuple(self._pending), {}
        return pending

    async def wait(self) -> None:
        """Waits for the next wake-up or recheck; a long time without either is a recheck too."""
        if self._needs_recheck:
            return
        try:
            async with asyncio.timeout(RECHECK_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            self._needs_recheck = True


def wakeup_for(signal: Signal, caller: PipedCaller) -> WakeupKey | None:
    """The wake-up that a signal means for a piped, if any."""
    if signal.topic is Topic.EVERYTHING:
        return CONNECTED
    if signal.project != caller.project:
        return None
    match signal.topic:
        case Topic.EVENT if not signal.piped:
            # A new event belongs to the project, and any of its pipeds may handle it. A signal
            # with a piped reports that this piped has handled the event.
            return Wakeup.EVENTS, ""
        case Topic.CHAIN:
            # A deployment of this piped may be waiting for a block of the chain.
            return Wakeup.DEPLOYMENTS, ""
        case topic if signal.piped == caller.piped and topic in _KINDS:
            return _KINDS[topic], signal.id if topic is Topic.REPOSITORY else ""
        case _:
            return None
