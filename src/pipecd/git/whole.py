# SPDX-License-Identifier: Apache-2.0
"""Whole commits on disk, each file once: commits and working copies share what is equal.

A file that two commits have in common, or that a working copy took from a commit, is one file
with several names. A working copy costs its directories, however large the repository is.
"""

import asyncio
import shutil
from collections import OrderedDict
from pathlib import Path

from pipecd.git.bare import BareCopy
from pipecd.model.errors import Unavailable
from pipecd.program.capture import capture

# Those that running deployments ask for again; an older one is made from its neighbour.
_KEPT_COMMITS = 4
_LINK_AT_MOST = 600.0


class WholeCommits:
    """The latest whole commits of every repository, below a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: dict[Path, OrderedDict[str, Path]] = {}
        self._locks: dict[Path, asyncio.Lock] = {}

    async def link(self, copy: BareCopy, commit: str, into: Path) -> None:
        """Fills an empty directory with every file of a commit, without a second copy of any."""
        async with self._locks.setdefault(copy.directory, asyncio.Lock()):
            tree = await self._tree(copy, commit)
            await _link(tree, into)

    async def _tree(self, copy: BareCopy, commit: str) -> Path:
        kept = self._kept.setdefault(copy.directory, OrderedDict())
        latest = next(reversed(kept.values()), None)
        tree = kept.pop(commit, None)
        if tree is None:
            tree = self._directory / copy.directory.name / commit
            await asyncio.to_thread(_make_empty, tree)
            if latest is not None:
                await _link(latest, tree)
                await asyncio.to_thread(shutil.copyfile, _index(latest), _index(tree))
        try:
            # Also when it was there before: a working copy may have written to a shared file.
            await copy.checkout(commit, tree, index=_index(tree))
        except BaseException:
            await asyncio.to_thread(_remove, tree)
            raise
        kept[commit] = tree
        while len(kept) > _KEPT_COMMITS:
            await asyncio.to_thread(_remove, kept.popitem(last=False)[1])
        return tree


async def _link(tree: Path, into: Path) -> None:
    # Files of another file system cannot get a further name here.
    same = await asyncio.to_thread(lambda: tree.stat().st_dev == into.stat().st_dev)
    how = "-al" if same else "-a"
    done = await capture(["cp", how, f"{tree}/.", f"{into}/"], cwd=tree, at_most=_LINK_AT_MOST)
    if done.code:
        said = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
        raise Unavailable(f"a working copy could not be made: {said}")


def _index(tree: Path) -> Path:
    return tree.with_name(f"{tree.name}.index")


def _make_empty(tree: Path) -> None:
    _remove(tree)
    tree.mkdir(mode=0o700, parents=True)


def _remove(tree: Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    _index(tree).unlink(missing_ok=True)
