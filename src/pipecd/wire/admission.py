# SPDX-License-Identifier: Apache-2.0
"""Whether the other side lets us in, and what to do while it does not.

A key that never worked is a mistake, which is told at once. One that worked may have been replaced
or locked for a while: then it is read again, and the other side is asked ever more rarely.
"""

import asyncio
import random
import time
from collections.abc import Callable

import structlog

from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError, Unauthenticated

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_BACKOFF = Backoff(first=1.0, longest=30.0)


class Admission:
    """The authorization of all calls on a channel."""

    def __init__(
        self,
        read: Callable[[], str],
        refusal: Callable[[], Unauthenticated],
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._read, self._refusal, self._clock, self._chance = read, refusal, clock, chance
        self._authorization = read()
        self._was_granted = False
        self._refusals = 0
        self._closed_until = 0.0

    @property
    def was_granted(self) -> bool:
        """Whether the other side has ever let us in."""
        return self._was_granted

    def authorization(self) -> str:
        return self._authorization

    def check(self) -> None:
        """Raises the refusal while it is too early to ask again."""
        if self._closed_until > self._clock():
            raise self._refusal()

    def granted(self) -> None:
        """A call was answered."""
        if self._refusals:
            log.info("the other side lets us in again")
        self._was_granted = True
        self._refusals, self._closed_until = 0, 0.0

    async def refused(self, authorization: str) -> Unauthenticated | None:
        """A call with this authorization was refused: the reason, or nothing with a newer key."""
        if authorization != self._authorization or await self._renewed():
            return None
        if not self._was_granted:
            return self._refusal()
        if not self._refusals:
            log.error("the other side does not let us in any more", error=str(self._refusal()))
        self._refusals += 1
        pause = _BACKOFF.after(self._refusals) * (1 + self._chance()) / 2
        self._closed_until = self._clock() + pause
        return self._refusal()

    async def _renewed(self) -> bool:
        try:
            fresh = await asyncio.to_thread(self._read)
        except PipecdError as e:
            log.warning("key not read again", error=str(e))
            return False
        changed, self._authorization = fresh != self._authorization, fresh
        if changed:
            log.info("key was replaced, using the new one")
        return changed
