# SPDX-License-Identifier: Apache-2.0
"""How many deliveries a project may send in a short time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

AT_ONCE = 60
PER_SECOND = 10.0


@dataclass
class _Left:
    """What a project may still send, as of a moment."""

    deliveries: float
    at: float


class Allowance:
    """Lets each project send a burst, and then a steady number per second."""

    def __init__(
        self,
        at_once: int = AT_ONCE,
        per_second: float = PER_SECOND,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._at_once, self._per_second, self._clock = at_once, per_second, clock
        self._left: dict[str, _Left] = {}

    def takes(self, project: str) -> bool:
        """Whether one more delivery is let in; it is for senders who have proven themselves."""
        now = self._clock()
        left = self._left.setdefault(project, _Left(self._at_once, now))
        gained = (now - left.at) * self._per_second
        left.deliveries = min(self._at_once, left.deliveries + gained)
        left.at = now
        if left.deliveries < 1:
            return False
        left.deliveries -= 1
        return True
