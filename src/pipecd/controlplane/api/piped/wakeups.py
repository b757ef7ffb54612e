# SPDX-License-Identifier: Apache-2.0
"""The stream that tells a piped where to look, so that it need not poll.

A wake-up carries no facts. While the receiver is slow, equal wake-ups become one.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.model.errors import Unauthenticated
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest

# How long a stream may be quiet before the key of its piped is checked again without a signal.
CHECK_SECONDS = 60.0

Hint = tuple[Wakeup.Kind.ValueType, str]

CONNECTED: Hint = (Wakeup.CONNECTED, "")

# What concerns every piped of a project; the rest is heard by the piped it names only.
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
        """CONNECTED first, then one wake-up per change; ends when the key is no longer good."""
        mine = self._bus.subscribe(project=caller.project, piped=caller.piped, shared=SHARED)
        async with mine as signals:
            pending = Pending()
            # A task group would have to span the yields below, which its cancellation does not
            # survive; so this one task is ended by hand.
            listening = asyncio.ensure_future(pending.collect(signals, caller))
            try:
                while not listening.done():
                    if pending.doubted() and not await self._credentials.is_still_valid(caller):
                        raise Unauthenticated("Unauthenticated")
                    for kind, repository in pending.taken():
                        yield Wakeup(kind=kind, repository=repository)
                    await pending.news()
                listening.result()
            finally:
                listening.cancel()
                await asyncio.wait({listening})


class Pending:
    """The hints that were not sent yet, each once."""

    def __init__(self) -> None:
        self._hints: dict[Hint, None] = {CONNECTED: None}
        self._changed = asyncio.Event()
        self._is_in_doubt = False

    async def collect(self, signals: AsyncIterator[Signal], caller: PipedCaller) -> None:
        """Turns signals into hints until the bus ends."""
        try:
            async for signal in signals:
                self.add(signal, caller)
        finally:
            self._changed.set()

    def add(self, signal: Signal, caller: PipedCaller) -> None:
        hint = hint_of(signal, caller)
        if hint is not None:
            self._hints[hint] = None
        if _casts_doubt(signal, caller):
            self._is_in_doubt = True
        if hint is not None or self._is_in_doubt:
            self._changed.set()

    def doubted(self) -> bool:
        """Whether the key of the piped has to be checked; asked once per doubt."""
        doubted, self._is_in_doubt = self._is_in_doubt, False
        return doubted

    def taken(self) -> tuple[Hint, ...]:
        """What is to be sent now, in the order of its first mention."""
        self._changed.clear()
        hints, self._hints = tuple(self._hints), {}
        return hints

    async def news(self) -> None:
        """Waits for the next hint or doubt; a long silence is a doubt too."""
        if self._is_in_doubt:
            return
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            self._is_in_doubt = True


def hint_of(signal: Signal, caller: PipedCaller) -> Hint | None:
    """What a signal means to a piped; None when it is no concern of it."""
    if signal.topic is Topic.EVERYTHING:
        return CONNECTED
    if signal.project != caller.project:
        return None
    match signal.topic:
        case Topic.EVENT if not signal.piped:
            # A new event belongs to the project; any of its pipeds may have to act. One that
            # names a piped was dealt with by it.
            return Wakeup.EVENTS, ""
        case Topic.CHAIN:
            # A block that ended may be what a deployment of this piped waits for.
            return Wakeup.DEPLOYMENTS, ""
        case topic if signal.piped == caller.piped and topic in _KINDS:
            return _KINDS[topic], signal.id if topic is Topic.REPOSITORY else ""
        case _:
            return None


def _casts_doubt(signal: Signal, caller: PipedCaller) -> bool:
    return signal.topic is Topic.EVERYTHING or (
        signal.topic is Topic.PIPED and signal.id == caller.piped
    )
