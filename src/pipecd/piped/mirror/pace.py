# SPDX-License-Identifier: Apache-2.0
"""When to look again: at once when told to, else by the clock."""

import asyncio
import random
from collections.abc import Callable

from pipecd.piped.mirror.changes import Changes, Watch

# The safety net while the wake-up stream is up, in seconds.
NET = (120.0, 300.0)
# Wake-ups come in flocks; one look answers those that come together.
_GAP = 0.05


class Pace:
    """The rhythm of one mirror.

    Without the wake-up stream it looks at the interval that upstream's piped has; with it only
    every few minutes, as a safety net.
    """

    def __init__(
        self,
        polling: float,
        *,
        net: tuple[float, float] = NET,
        chance: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._polling, self._net, self._chance = polling, net, chance
        self._told = Watch()
        self.wakeups = Changes()
        self._is_streaming = False
        self._last = float("-inf")

    def soon(self) -> None:
        """Asks for a look as soon as possible."""
        self._told.mark()

    def woken(self) -> None:
        """The control plane says that there is something to look at."""
        self.wakeups.notify()
        self.soon()

    def streaming(self, is_up: bool) -> None:
        """The stream came up or went down; what happened in between is not known."""
        self._is_streaming = is_up
        self._told.mark()

    async def wait(self) -> None:
        """Returns when it is time to look again."""
        loop = asyncio.get_running_loop()
        await self._told.wait(self._interval())
        gap = self._last + _GAP - loop.time()
        if gap > 0:
            await asyncio.sleep(gap)
        self._last = loop.time()

    def _interval(self) -> float:
        if self._is_streaming:
            return max(self._polling, self._chance(*self._net))
        return self._polling
