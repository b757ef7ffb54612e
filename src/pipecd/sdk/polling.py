# SPDX-License-Identifier: Apache-2.0
"""Waits for what a platform does by itself."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pipecd.model.backoff import Backoff
from pipecd.model.errors import Unavailable

ResultT = TypeVar("ResultT")
_BACKOFF = Backoff(first=0.5, longest=15)


@dataclass(frozen=True)
class Polling:
    """How to wait for a change of a platform: at first often, at most `within` seconds."""

    within: float
    backoff: Backoff = _BACKOFF

    async def until(self, check: Callable[[], Awaitable[ResultT | None]]) -> ResultT | None:
        """Returns the first result of `check` that is not None; None after the time is over.

        A check that fails because the platform is unavailable or throttles is repeated. The error
        is raised only if the time is over.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + self.within
        for pause in self.backoff:
            error = None
            try:
                if (result := await check()) is not None:
                    return result
            except Unavailable as e:
                error = e
            # Many applications do not ask at the same moment.
            delay = pause * random.uniform(0.8, 1.2)  # noqa: S311
            if loop.time() + delay >= end:
                if error:
                    raise error
                return None
            await asyncio.sleep(delay)
        return None
