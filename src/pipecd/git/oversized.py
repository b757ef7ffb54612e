# SPDX-License-Identifier: Apache-2.0
"""Leaves directories that exceed a limit out of a commit, so that git can merge the others."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipecd.git.clone import Clone
from pipecd.git.objects import Objects
from pipecd.git.tree import TreeEntry, root_directory
from pipecd.git.validate import validate_path
from pipecd.model.errors import UserMistake
from pipecd.program.limits import LimitExceeded


@dataclass(frozen=True)
class ReducedTree:
    """The tree of a commit in which oversized directories are as another commit has them."""

    tree: str
    left_out: Mapping[str, LimitExceeded]
    """The directories that exceed a limit, each with its error; also those around one."""


async def leave_out_oversized(
    clone: Clone, commit: str, *, instead: str, directories: Iterable[str]
) -> ReducedTree:
    """Returns the tree of a commit without those of some directories that exceed a limit.

    They are as in the commit `instead`, or missing if they are missing there. Raises LimitExceeded
    if the rest of the commit exceeds a limit, too. Only names count, as nothing is written.
    """
    objects, left_out = clone.objects, dict[str, LimitExceeded]()
    for directory in dict.fromkeys(directories):
        try:
            await objects.check_size(commit, [directory], with_size=False)
        except LimitExceeded as e:
            left_out[directory] = e
        except UserMistake:
            # It is not a path inside of the repository.
            continue
    root = root_directory(commit)
    # A directory is left out only if it is too large without those inside of it.
    paths = {validate_path(directory) for directory in left_out}
    for directory in sorted(paths, key=lambda path: path.count("/"), reverse=True):
        if directory != "." and await objects.exceeds_limits(root):
            replacement = await objects.entry(instead, directory)
            root = await _replace(clone, root, directory.split("/"), replacement)
    if await objects.exceeds_limits(root):
        await _raise_named(objects, commit, root)
    return ReducedTree(root.id, left_out)


async def _raise_named(objects: Objects, commit: str, root: TreeEntry) -> None:
    """Raises LimitExceeded with the directory at the root that exceeds a limit, if it is one."""
    for entry in await objects.entries(root.id):
        if entry.is_directory and await objects.exceeds_limits(entry):
            await objects.check_size(commit, [entry.name], with_size=False)
    await objects.check_size(commit, with_size=False)


async def _replace(
    clone: Clone, directory: TreeEntry, path: list[str], entry: TreeEntry | None
) -> TreeEntry:
    """Returns a directory with another entry at a path, or with none."""
    name, *below = path
    entries = {each.name: each for each in await clone.objects.entries(directory.id)}
    if below and name in entries:
        entry = await _replace(clone, entries[name], below, entry)
    if entry is None:
        entries.pop(name, None)
    else:
        entries[name] = TreeEntry(name, entry.mode, entry.id)
    lines = b"".join(_line(each) for each in entries.values())
    written = await clone.command.output("mktree", "-z", stdin=lines)
    return TreeEntry(directory.name, directory.mode, written.decode().strip())


def _line(entry: TreeEntry) -> bytes:
    """An entry as `git mktree` reads it."""
    kind = "tree" if entry.is_directory else "commit" if entry.is_submodule else "blob"
    return f"{entry.mode:06o} {kind} {entry.id}\t".encode() + os.fsencode(entry.name) + b"\0"
