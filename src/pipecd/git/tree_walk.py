# SPDX-License-Identifier: Apache-2.0
"""Walks the files and directories below a directory of a commit, up to a limit."""

import asyncio
from collections.abc import AsyncGenerator

from pipecd.git.objects import Objects
from pipecd.git.tree import TreeEntry
from pipecd.git.tree_limits import MAX_DEPTH

# Cached directories are read without waiting: other tasks run after this many entries.
_ENTRIES_PER_TURN = 500


class TooManyEntries(Exception):
    """There are more entries below a directory than a caller wants to see."""


async def walk(
    objects: Objects, path: str, entry: TreeEntry, *, at_most: int
) -> AsyncGenerator[tuple[str, TreeEntry]]:
    """Yields an entry and all below it with their paths, a directory before what it contains.

    Raises TooManyEntries when there are more than `at_most`, directories included, or when they
    are nested too deep.
    """
    stack, seen = [(path, entry, 0)], 0
    while stack:
        path, entry, depth = stack.pop()
        yield path, entry
        if not entry.is_directory:
            continue
        below = await objects.entries(entry.id)
        seen += len(below)
        if seen > at_most or depth >= MAX_DEPTH:
            raise TooManyEntries
        prefix = f"{path}/" if path else ""
        stack += [(prefix + each.name, each, depth + 1) for each in reversed(below)]
        if seen % _ENTRIES_PER_TURN < len(below):
            await asyncio.sleep(0)
