# SPDX-License-Identifier: Apache-2.0
"""Limits of what a commit writes to a disk, checked before Git writes it.

A tree object names its subdirectories by hash, so a few hundred bytes can stand for more files
than any disk has: ten directories with the same content, each with ten directories, and so on.
Every distinct tree is read once, and the sizes are added up from the leaves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from pipecd.cache import LruCache
from pipecd.git.tree import TreeEntry
from pipecd.program.limits import LimitExceeded

MAX_DEPTH = 200
"""How deep directories may be nested; no path of a file system is as long."""

_GIBIBYTE = 1024**3
_TREES_PER_REQUEST = 8
_FILES_PER_REQUEST = 2000
# So many trees are cached, or twice those of the largest commit. The trees of old commits go first.
_CACHED_TREES = 500
_MAX_CACHED_TREES = 100_000

ReadTrees = Callable[[Sequence[str]], Awaitable[list[tuple[TreeEntry, ...]]]]
ReadSizes = Callable[[Sequence[str]], Awaitable[list[int]]]


@dataclass(frozen=True)
class TreeLimits:
    """How many entries (files and directories) and bytes a working copy may have; 0: any number."""

    entries: int = 1_000_000
    size: int = 16 * _GIBIBYTE


@dataclass(frozen=True, slots=True)
class TreeSize:
    """The entries below a directory, their bytes, and how deep directories are nested."""

    entries: int = 0
    size: int = 0
    depth: int = 0

    def __add__(self, other: "TreeSize") -> "TreeSize":
        depth = max(self.depth, other.depth)
        return TreeSize(self.entries + other.entries, self.size + other.size, depth)


def check_size(total: TreeSize, limits: TreeLimits, *, what: str) -> None:
    """Raises LimitExceeded with the limit that a tree exceeds; `what` names it."""
    if total.depth > MAX_DEPTH:
        raise LimitExceeded(
            f"{what} has directories nested more than {MAX_DEPTH} deep", hint="flatten them"
        )
    if limits.entries and total.entries > limits.entries:
        raise LimitExceeded(
            f"{what} has more than {limits.entries:,} files and directories",
            hint="remove some, or raise spec.rendering.workingCopyEntries of the piped",
        )
    if limits.size and total.size > limits.size:
        raise LimitExceeded(
            f"{what} has more than {limits.size / _GIBIBYTE:.3g} GiB of files",
            hint="remove some, or raise spec.rendering.workingCopySize of the piped",
        )


@dataclass(frozen=True, slots=True)
class _MeasuredTree:
    """What a directory contains itself, and its subdirectories by the ids of their trees."""

    own: TreeSize
    below: tuple[str, ...]


class TreeSizes:
    """Measures trees; the size of each tree that was measured is cached."""

    def __init__(self, read_trees: ReadTrees, read_sizes: ReadSizes, limits: TreeLimits) -> None:
        self._read_trees, self._read_sizes, self.limits = read_trees, read_sizes, limits
        self._limit = _CACHED_TREES
        self._cache = LruCache[tuple[str, bool], TreeSize](self._limit)

    async def check(
        self, entries: Iterable[TreeEntry], *, what: str, with_size: bool = True
    ) -> TreeSize:
        """Raises LimitExceeded if the entries with all below them exceed a limit.

        Without `with_size` no file is looked up: what git compares but does not write.
        """
        requested = list(entries)
        directories = [each.id for each in requested if each.is_directory]
        files = [each.id for each in requested if not each.is_directory and not each.is_submodule]
        sizes = await self._measure(directories, what=what, with_size=with_size)
        total = TreeSize(len(requested), await self._size_of(files) if with_size else 0)
        for id_ in directories:
            total += sizes[id_]
        check_size(total, self.limits, what=what)
        return total

    async def _measure(
        self, trees: Sequence[str], *, what: str, with_size: bool
    ) -> dict[str, TreeSize]:
        """Returns the sizes of trees, by their ids."""
        sizes: dict[str, TreeSize] = {}
        directories: dict[str, _MeasuredTree] = {}
        level, distinct = list(dict.fromkeys(trees)), TreeSize()
        while level:
            unread = list[str]()
            for id_ in level:
                cached = self._cache.get((id_, with_size))
                if cached is not None:
                    sizes[id_] = cached
                elif id_ not in directories:
                    unread.append(id_)
            below = dict[str, None]()
            for start in range(0, len(unread), _TREES_PER_REQUEST):
                requested = unread[start : start + _TREES_PER_REQUEST]
                for id_, read in zip(
                    requested, await self._read(requested, with_size), strict=True
                ):
                    directories[id_] = read
                    below |= dict.fromkeys(read.below)
                    distinct += read.own
                # Each of them occurs once at least, so there is no need to read on.
                check_size(distinct, self.limits, what=what)
            distinct += TreeSize(depth=distinct.depth + 1)
            level = list(below)
        for id_ in trees:
            await _add_up(id_, directories, sizes)
        if 2 * len(directories) > self._limit:
            self._limit = min(2 * len(directories), _MAX_CACHED_TREES)
            self._cache.limit(self._limit)
        for id_ in directories:
            self._cache.put((id_, with_size), sizes[id_])
        return sizes

    async def _read(self, trees: Sequence[str], with_size: bool) -> list[_MeasuredTree]:
        directories = list[_MeasuredTree]()
        for entries in await self._read_trees(trees):
            files = [e.id for e in entries if not e.is_directory and not e.is_submodule]
            size = await self._size_of(files) if with_size else 0
            below = tuple(each.id for each in entries if each.is_directory)
            directories.append(_MeasuredTree(TreeSize(len(entries), size), below))
        return directories

    async def _size_of(self, files: Sequence[str]) -> int:
        total = 0
        for start in range(0, len(files), _FILES_PER_REQUEST):
            total += sum(await self._read_sizes(files[start : start + _FILES_PER_REQUEST]))
        return total


async def _add_up(
    root: str, directories: dict[str, _MeasuredTree], sizes: dict[str, TreeSize]
) -> None:
    """Adds the size of a tree and of those below it, leaves first, without recursion."""
    stack = [root]
    while stack:
        id_ = stack[-1]
        if id_ in sizes:
            stack.pop()
            continue
        directory = directories[id_]
        missing = [below for below in directory.below if below not in sizes]
        if missing:
            stack += missing
            continue
        total = directory.own
        for below in directory.below:
            total += sizes[below]
        sizes[id_] = TreeSize(total.entries, total.size, total.depth + 1)
        stack.pop()
        if len(sizes) % 1000 == 0:
            await asyncio.sleep(0)
