# SPDX-License-Identifier: Apache-2.0
"""Finds a short schedule that still violates a rule, by leaving out steps (delta debugging)."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def shrink(
    steps: Sequence[T], violates: Callable[[Sequence[T]], Awaitable[bool]], *, runs: int
) -> list[T]:
    """The shortest schedule found with at most so many runs; `steps` is known to violate a rule.

    A run that happens to pass keeps steps that are not needed; it never removes one that is.
    """
    kept, parts = list(steps), 2
    while len(kept) >= 2 and runs > 0:
        size = -(-len(kept) // parts)
        for begin in range(0, len(kept), size):
            without = kept[:begin] + kept[begin + size :]
            if not without or runs <= 0:
                continue
            runs -= 1
            if await violates(without):
                kept, parts = without, max(parts - 1, 2)
                break
        else:
            if parts >= len(kept):
                break
            parts = min(parts * 2, len(kept))
    return kept
