# SPDX-License-Identifier: Apache-2.0
"""The key of a client, which may be replaced while the client runs.

If the server never accepted the key, the rejection is reported at once. A key that was accepted may
have been rotated or disabled: the client reads it again and retries with backoff.
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


class RenewableAuthorization:
    """The authorization of all calls on a channel, read again when the server rejects it."""

    def __init__(
        self,
        read: Callable[[], str],
        rejection: Callable[[], Unauthenticated],
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._read, self._rejection, self._clock, self._chance = read, rejection, clock, chance
        self._authorization = read()
        self._was_accepted = False
        self._rejections = 0
        self._closed_until = 0.0

    @property
    def was_accepted(self) -> bool:
        """Whether the server has ever accepted the key."""
        return self._was_accepted

    def authorization(self) -> str:
        return self._authorization

    def check(self) -> None:
        """Raises the rejection until the backoff is over."""
        if self._closed_until > self._clock():
            raise self._rejection()

    def accepted(self) -> None:
        """Called when the server answered a call."""
        if self._rejections:
            log.info("server accepts the key again")
        self._was_accepted = True
        self._rejections, self._closed_until = 0, 0.0

    async def rejected(self, authorization: str) -> Unauthenticated | None:
        """Called when a call was rejected; returns the error, or None if a newer key was read."""
        if authorization != self._authorization:
            return None
        try:
            fresh = await asyncio.to_thread(self._read)
        except PipecdError as e:
            log.warning("key cannot be read again", error=str(e))
        else:
            if fresh != self._authorization:
                self._authorization = fresh
                log.info("key was replaced, using the new one")
                return None
        if not self._was_accepted:
            return self._rejection()
        if not self._rejections:
            log.error("server rejects the key, retrying with backoff", error=str(self._rejection()))
        self._rejections += 1
        pause = _BACKOFF.after(self._rejections) * (1 + self._chance()) / 2
        self._closed_until = self._clock() + pause
        return self._rejection()
