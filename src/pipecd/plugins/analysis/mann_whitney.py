# SPDX-License-Identifier: Apache-2.0
"""The Mann-Whitney U test: could two samples come from the same distribution?

The p-value of small samples is counted over all possible draws; that of larger ones comes from the
normal distribution, which the statistic then follows.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from statistics import NormalDist

# Upstream uses the normal distribution for larger samples.
EXACT_LIMIT, EXACT_LIMIT_WITH_TIES = 50, 25

_STANDARD = NormalDist()


class Alternative(Enum):
    """What a small p-value indicates: the first sample differs, is less or is greater."""

    DIFFERS = "differs"
    LESS = "less"
    GREATER = "greater"


def p_value(first: Sequence[float], second: Sequence[float], alternative: Alternative) -> float:
    """Returns how likely samples as different as these are if their distributions are equal.

    Both samples must have values, and not all values may be equal.
    """
    n1, n2 = len(first), len(second)
    sizes = sorted(Counter([*first, *second]).items())
    groups = [size for _, size in sizes]
    # Equal values share a rank.
    ranks: dict[float, float] = {}
    below = 0
    for value, size in sizes:
        ranks[value] = below + (size + 1) / 2
        below += size
    u1 = sum(ranks[value] for value in first) - n1 * (n1 + 1) / 2
    limit = EXACT_LIMIT if max(groups) == 1 else EXACT_LIMIT_WITH_TIES
    if max(n1, n2) <= limit:
        return _ExactDistribution(n1, n2, groups).p_value(u1, alternative)
    return _normal_p_value(n1, n2, groups, u1, alternative)


class _ExactDistribution:
    """The distribution of U, counted over all draws of the first sample from all values.

    With ties U comes in halves, so the counts are by the double of U.
    """

    def __init__(self, n1: int, n2: int, groups: Sequence[int]) -> None:
        self._highest_u = n1 * n2
        self._total = math.comb(n1 + n2, n1)
        self._scale = 1 if max(groups) == 1 else 2
        # One integer holds the counts of all U, each in a slot of its own, so that one shift and
        # one addition extend all draws of a size by a further value.
        self._slot = (self._total.bit_length() + 7) // 8
        draws = [1, *[0] * n1]
        below = 0
        for size in groups:
            # Draws that too few values are left to complete need not be counted any more.
            fewest = max(1, below + size - n2)
            for drawn in range(min(n1, below + size), fewest - 1, -1):
                for k in range(max(1, drawn - below), min(size, drawn) + 1):
                    # How much the double of U grows if k values of the group are drawn.
                    gain = k * (2 * below + size + 1) - k * (2 * drawn - k + 1)
                    shift = gain * self._scale // 2 * self._slot * 8
                    draws[drawn] += math.comb(size, k) * draws[drawn - k] << shift
            below += size
        length = (self._scale * self._highest_u + 1) * self._slot
        self._counts = draws[n1].to_bytes(length, "little")

    def p_value(self, u1: float, alternative: Alternative) -> float:
        """Returns the p-value of the U of the first sample."""
        u2 = self._highest_u - u1
        match alternative:
            case Alternative.DIFFERS:
                return 1.0 if u1 == u2 else min(1.0, 2 * self._share_up_to(min(u1, u2)))
            case Alternative.LESS:
                return self._share_up_to(u1)
            case Alternative.GREATER:
                # With ties U moves in halves, so this is a little too large, as it is upstream.
                return 1 - self._share_up_to(u1 - 1)

    def _share_up_to(self, u: float) -> float:
        """Returns the share of draws whose U is at most this."""
        if u < 0:
            return 0.0
        if u >= self._highest_u:
            return 1.0
        end = (math.floor(self._scale * u) + 1) * self._slot
        count = sum(
            int.from_bytes(self._counts[at : at + self._slot], "little")
            for at in range(0, end, self._slot)
        )
        return count / self._total


def _normal_p_value(
    n1: int, n2: int, groups: Iterable[int], u1: float, alternative: Alternative
) -> float:
    n = n1 + n2
    tied = sum(size**3 - size for size in groups) / (n * (n - 1))
    deviation = math.sqrt(n1 * n2 / 12 * (n + 1 - tied))
    distance = u1 - n1 * n2 / 2
    match alternative:
        case Alternative.DIFFERS:
            distance -= math.copysign(0.5, distance) if distance else 0
            below = _STANDARD.cdf(distance / deviation)
            return 2 * min(below, 1 - below)
        case Alternative.LESS:
            return _STANDARD.cdf((distance + 0.5) / deviation)
        case Alternative.GREATER:
            return 1 - _STANDARD.cdf((distance - 0.5) / deviation)
