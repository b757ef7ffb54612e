# SPDX-License-Identifier: Apache-2.0
"""What is on its way to one receiver: in order, one at a time, tried again for some minutes.

A receiver that hangs or is away holds up nobody but itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog

from pipecd.config.piped.notification import TemplateSpec
from pipecd.model.backoff import Backoff
from pipecd.model.clock import utc_now
from pipecd.model.errors import PipecdError, Unavailable
from pipecd.model.ids import new_id
from pipecd.piped.notify.metrics import NotificationMetrics
from pipecd.piped.notify.notice import Notice

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# A deployment of hundreds of applications tells thousands of things within a second.
MOST = 10_000
_BACKOFF = Backoff(first=1.0, longest=60.0)


@dataclass(frozen=True)
class Letter:
    """A notice on its way; the words that its route chose come before those of the receiver."""

    notice: Notice
    templates: tuple[TemplateSpec, ...] = ()
    id: str = field(default_factory=new_id)
    told_at: datetime = field(default_factory=utc_now)


Gone = Callable[[Letter], None]


class Receiver(Protocol):
    """Somebody who takes letters."""

    async def send(self, letter: Letter) -> None:
        """Hands over a letter; raises Unavailable if it may be taken later, or another error."""
        ...


class Later(Unavailable):
    """The receiver asks to be left alone for a number of seconds."""

    def __init__(self, message: str, *, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


@dataclass(frozen=True)
class Patience:
    """How long a receiver is waited for, in seconds."""

    attempt: float = 10.0
    letter: float = 300.0
    pauses: Backoff = _BACKOFF
    last_pause: float = 0.5
    """The pause when piped ends, and there is little time."""


class Outbox:
    """The letters to one receiver."""

    def __init__(
        self,
        name: str,
        receiver: Receiver,
        *,
        gone: Gone,
        most: int = MOST,
        patience: Patience | None = None,
        metrics: NotificationMetrics | None = None,
    ) -> None:
        """`gone` hears of every letter that was delivered, or never will be."""
        self.name, self._gone = name, gone
        self._receiver, self._most, self._patience = receiver, most, patience or Patience()
        self._letters: deque[Letter] = deque()
        self._dropped = 0
        self._tally = (metrics or NotificationMetrics()).of(name, lambda: self.left)
        self._arrived = asyncio.Event()
        self._closing = asyncio.Event()

    def put(self, letter: Letter) -> None:
        """Queues a letter; in a full box it takes the place of the oldest."""
        if len(self._letters) >= self._most:
            self._gone(self._letters.popleft())
            self._tally.given_up.inc()
            self._dropped += 1
            if self._dropped == 1:
                log.warning("too many notifications, the oldest are dropped", receiver=self.name)
        self._letters.append(letter)
        self._arrived.set()

    def close(self) -> None:
        """Lets `run` end when the box is empty."""
        self._closing.set()
        self._arrived.set()

    @property
    def left(self) -> int:
        """How many letters have not been delivered."""
        return len(self._letters)

    async def run(self) -> None:
        while True:
            await self._arrived.wait()
            while self._letters:
                # A letter stays in the box until it is delivered, so that those left are counted.
                letter = self._letters[0]
                await self._deliver(letter)
                self._take_out(letter)
            self._say_what_was_dropped()
            if self._closing.is_set():
                return
            self._arrived.clear()

    def _take_out(self, letter: Letter) -> None:
        # It may have been dropped meanwhile.
        if self._letters and self._letters[0] is letter:
            self._gone(self._letters.popleft())

    async def _deliver(self, letter: Letter) -> None:
        clock = asyncio.get_running_loop().time
        until, pauses = clock() + self._patience.letter, iter(self._patience.pauses)
        while True:
            try:
                async with asyncio.timeout(self._patience.attempt):
                    await self._receiver.send(letter)
            except (Unavailable, TimeoutError) as e:
                wanted = self._pause(next(pauses), e)
                if clock() + wanted > until:
                    self._give_up(letter, e)
                    return
                log.info("notification is sent again later", **self._about(letter, e))
                self._tally.retried.inc()
                await self._wait(wanted)
            except PipecdError as e:
                self._give_up(letter, e)
                return
            else:
                self._tally.sent.inc()
                return

    def _pause(self, pause: float, error: Exception) -> float:
        if isinstance(error, Later):
            return max(pause, min(error.seconds, self._patience.letter))
        return pause

    async def _wait(self, seconds: float) -> None:
        """Waits until the receiver may be back; when piped ends, not for long."""
        try:
            async with asyncio.timeout(seconds):
                await self._closing.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(seconds, self._patience.last_pause))

    def _give_up(self, letter: Letter, error: Exception) -> None:
        log.warning("notification was not delivered", **self._about(letter, error))
        self._tally.given_up.inc()

    def _about(self, letter: Letter, error: Exception) -> dict[str, str]:
        told = str(error) or f"no answer within {self._patience.attempt:g} seconds"
        return {"receiver": self.name, "notice": letter.notice.kind.name, "error": told}

    def _say_what_was_dropped(self) -> None:
        if self._dropped:
            log.warning("notifications were dropped", receiver=self.name, count=self._dropped)
            self._dropped = 0
