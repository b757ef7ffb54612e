# SPDX-License-Identifier: Apache-2.0
"""How soon after one round of statements the next one begins.

A round costs about the same whether it carries one statement or ten: turns of the event loop, calls
of the system, a commit. So a round waits a few milliseconds for company, if company comes then.
Whether it does is tried now and then; a single caller, who asks only after an answer, never has
any and must not wait for it.
"""

import asyncio
from collections.abc import Callable

PAUSE = 0.005
ENOUGH = 2.0
# A try costs those who wait a pause; after each one in vain the next comes later.
TRY_AFTER, RARELY = 16, 1024


class Company:
    """Whether a round that waits goes together with others."""

    def __init__(self) -> None:
        self.is_expected = False
        self._usual = ENOUGH
        self._try_after = self._left = TRY_AFTER

    def met(self, others_and_self: int) -> None:
        """Learns from a round of so many statements."""
        if not self.is_expected:
            self._left -= 1
            self.is_expected = self._left <= 0
            self._usual = ENOUGH
            return
        self._usual += (others_and_self - self._usual) / 4
        self.is_expected = self._usual >= ENOUGH
        self._try_after = TRY_AFTER if self.is_expected else min(2 * self._try_after, RARELY)
        self._left = self._try_after


class Pace:
    """Begins rounds for those who ask; `begin` tells how many statements went."""

    def __init__(self, begin: Callable[[], int]) -> None:
        self._begin = begin
        self._company = Company()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._not_before = 0.0

    def ask(self) -> None:
        """Begins a round now, or as soon as it is time for one."""
        if self._timer is not None:
            return
        left = self._not_before - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._in_time)
        else:
            self._go()

    def _in_time(self) -> None:
        self._timer = None
        self._go()

    def _go(self) -> None:
        if begun := self._begin():
            self._company.met(begun)
            if self._company.is_expected:
                self._not_before = self._loop.time() + PAUSE
