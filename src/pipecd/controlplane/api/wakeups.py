# SPDX-License-Identifier: Apache-2.0
"""The stream of wake-ups that lets a piped react at once instead of polling.

A wake-up carries no data. While the receiver is slow, equal wake-ups are merged. A stream that a
client asked to send heartbeats is never silent for longer than their interval, so that the client
notices a connection that died without being closed.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator

import structlog

from pipecd.controlplane.auth.credentials import Credentials
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.usecases.commands import CommandUseCases
from pipecd.controlplane.usecases.piped_leases import PipedLeaseUseCases
from pipecd.model.errors import PipecdError, Unauthenticated
from pipecd.proto.service.wakeups_pb2 import Wakeup, WatchWakeupsRequest

log = structlog.get_logger()

# A stream checks the key of its piped again after this time.
RECHECK_SECONDS = 60.0
# How often unhandled commands are polled while pipeds are connected.
COMMAND_POLL_SECONDS = 3.0
# Heartbeats are sent in ticks of this length.
TICK_SECONDS = 0.1
# The shortest and longest interval of heartbeats that a client may choose.
HEARTBEAT_SECONDS = (1.0, 60.0)

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
    """The wake-up streams of all pipeds that are connected to this replica.

    The signal of a command is lost if the replica that stored the command dies before it sends the
    signal. While pipeds are connected, unhandled commands are therefore polled, and the pipeds of
    those without a signal are woken.
    """

    def __init__(
        self,
        bus: Bus,
        credentials: Credentials,
        commands: CommandUseCases,
        leases: PipedLeaseUseCases,
    ) -> None:
        self._bus, self._credentials = bus, credentials
        self._commands, self._leases = commands, leases
        self._connected: defaultdict[str, set[PendingWakeups]] = defaultdict(set)
        # Unhandled commands whose pipeds have been woken.
        self._signalled: set[str] = set()
        self._command_poll: asyncio.Task[None] | None = None

    async def watch(
        self, request: WatchWakeupsRequest, caller: PipedCaller
    ) -> AsyncGenerator[Wakeup, None]:
        """Sends CONNECTED, then one wake-up per change; ends when key or lease are not valid."""
        loop, heartbeat = asyncio.get_running_loop(), heartbeat_seconds(request)
        subscription = self._bus.subscribe(
            project=caller.project, piped=caller.piped, shared=SHARED
        )
        async with subscription as signals, self._leases.stream(caller):
            pending = PendingWakeups(needs_recheck=bool(caller.epoch))
            self._add(caller.piped, pending)
            # A task group around the yields below would break on cancellation, so this task is
            # cancelled by hand.
            collector = asyncio.ensure_future(self._collect(signals, pending, caller))
            recheck_at = loop.time() + RECHECK_SECONDS
            try:
                while not collector.done():
                    if pending.take_recheck() or loop.time() >= recheck_at:
                        recheck_at = loop.time() + RECHECK_SECONDS
                        if not await self._credentials.is_still_valid(caller):
                            raise Unauthenticated("Unauthenticated")
                        if (kind := await self._leases.forward_request(caller)) is not None:
                            pending.add_wakeup((kind, ""))
                    for kind, repository in pending.take():
                        yield Wakeup(
                            kind=kind,
                            repository=repository,
                            heartbeat_seconds=heartbeat if kind == Wakeup.CONNECTED else 0,
                        )
                    rest = recheck_at - loop.time()
                    is_changed = await pending.wait(min(heartbeat or rest, rest))
                    if heartbeat and not is_changed and not collector.done():
                        yield Wakeup(kind=Wakeup.HEARTBEAT)
                collector.result()
            finally:
                self._remove(caller.piped, pending)
                collector.cancel()
                await asyncio.wait({collector})

    async def _collect(
        self, signals: AsyncIterator[Signal], pending: "PendingWakeups", caller: PipedCaller
    ) -> None:
        """Turns signals into wake-ups until the bus closes the subscription."""
        try:
            async for signal in signals:
                pending.add(signal, caller)
                if signal.topic is Topic.COMMAND and signal.piped == caller.piped:
                    self._signalled.add(signal.id)
        finally:
            pending.close()

    def _add(self, piped: str, pending: "PendingWakeups") -> None:
        self._connected[piped].add(pending)
        if self._command_poll is None or self._command_poll.done():
            self._command_poll = asyncio.create_task(self._poll_commands(), name="poll commands")

    def _remove(self, piped: str, pending: "PendingWakeups") -> None:
        self._connected[piped].discard(pending)
        if not self._connected[piped]:
            del self._connected[piped]
        if not self._connected and self._command_poll is not None:
            self._command_poll.cancel()
            self._command_poll = None

    async def _poll_commands(self) -> None:
        """Wakes the connected pipeds whose unhandled commands came without a signal."""
        has_failed = False
        while True:
            await asyncio.sleep(COMMAND_POLL_SECONDS)
            try:
                unhandled = await self._commands.list_all_unhandled()
            except PipecdError as e:
                if not has_failed:
                    log.warning("unhandled commands cannot be polled, retrying", error=str(e))
                has_failed = True
                continue
            has_failed = False
            for command in unhandled:
                if command.id not in self._signalled:
                    signal = Signal(Topic.COMMAND, command.id, command.project_id, command.piped_id)
                    for pending in self._connected.get(command.piped_id, ()):
                        pending.add(signal, PipedCaller(command.project_id, command.piped_id))
            self._signalled = {command.id for command in unhandled}


def heartbeat_seconds(request: WatchWakeupsRequest) -> float:
    """Returns the interval of heartbeats for a client; 0 for one that did not ask for any."""
    if not request.heartbeat_seconds > 0:
        return 0.0
    shortest, longest = HEARTBEAT_SECONDS
    return min(max(request.heartbeat_seconds, shortest), longest)


class PendingWakeups:
    """The wake-ups not sent yet, each once."""

    def __init__(self, *, needs_recheck: bool = False) -> None:
        self._pending: dict[WakeupKey, None] = {CONNECTED: None}
        self._changed = asyncio.Event()
        self._needs_recheck = needs_recheck

    def close(self) -> None:
        """Wakes the stream because no signal follows."""
        self._changed.set()

    def add(self, signal: Signal, caller: PipedCaller) -> None:
        wakeup = wakeup_for(signal, caller)
        if wakeup is not None:
            self._pending[wakeup] = None
        if signal.topic is Topic.EVERYTHING or (
            signal.topic in (Topic.PIPED, Topic.LEASE) and signal.id == caller.piped
        ):
            self._needs_recheck = True
        if wakeup is not None or self._needs_recheck:
            self._changed.set()

    def add_wakeup(self, wakeup: WakeupKey) -> None:
        self._pending[wakeup] = None

    def take_recheck(self) -> bool:
        """Whether the key and the lease have to be checked again; resets the mark."""
        needed, self._needs_recheck = self._needs_recheck, False
        return needed

    def take(self) -> tuple[WakeupKey, ...]:
        """The wake-ups to send now, in the order of their first signal."""
        self._changed.clear()
        pending, self._pending = tuple(self._pending), {}
        return pending

    async def wait(self, at_most: float) -> bool:
        """Waits for the next wake-up or recheck; returns whether there is one in time."""
        if self._needs_recheck:
            return True
        loop = asyncio.get_running_loop()
        # Streams whose time ends at about the same moment share a wake-up of the event loop.
        end = math.ceil((loop.time() + at_most) / TICK_SECONDS) * TICK_SECONDS
        # Cheaper than `asyncio.timeout`, which cancels the task.
        timer = loop.call_at(end, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
        return bool(self._pending) or self._needs_recheck


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
