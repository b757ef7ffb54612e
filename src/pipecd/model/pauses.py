# SPDX-License-Identifier: Apache-2.0
"""How long to wait before something that failed is tried again."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

# No number holds what doubling for days would come to.
_MOST_DOUBLINGS = 64
# A control plane without a stream of changes is one of upstream; ours may replace it one day.
NO_STREAM = 600.0


@dataclass(frozen=True)
class Pauses:
    """Seconds that double with every failure in a row, up to the longest."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """The pause after so many failures in a row, from one on."""
        return min(self.first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest)

    def __iter__(self) -> Iterator[float]:
        return map(self.after, count(1))
