# SPDX-License-Identifier: Apache-2.0
"""Pages of a list that the datastore filters only in part."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pipecd.controlplane.datastore.documents import PageRequest

T = TypeVar("T")

PAGE_SIZE = 50
# A filter that matches next to nothing must not read the whole table for one page.
_MAX_READS = 20


async def filled_page(
    read: Callable[[PageRequest], Awaitable[tuple[Sequence[T], str]]],
    matches: Callable[[T], bool],
    cursor: str,
    size: int = PAGE_SIZE,
) -> tuple[list[T], str]:
    """Reads on until the page is full, and returns the cursor of what follows; empty at the end."""
    found: list[T] = []
    for _ in range(_MAX_READS):
        items, cursor = await read(PageRequest(size, cursor))
        found += filter(matches, items)
        if not cursor or len(found) >= size:
            break
    return found, cursor
