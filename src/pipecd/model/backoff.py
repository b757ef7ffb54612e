# SPDX-License-Identifier: Apache-2.0
"""Exponential backoff: how long to wait before a failed operation is retried."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

# Doubling for days would overflow a float.
_MOST_DOUBLINGS = 64
# How often to retry a stream that the control plane does not implement: a control plane of
# upstream has none, but it may be replaced by ours while we run.
STREAM_UNSUPPORTED_RETRY_SECONDS = 600.0


@dataclass(frozen=True)
class Backoff:
    """Delays in seconds that double with every consecutive failure, up to the longest."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Returns the delay after this many consecutive failures (1 or more)."""
        return min(self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest)

    def __iter__(self) -> Iterator[float]:
        """Yields the delays after the first, second, … failure without end."""
        return map(self.after, count(1))
