# SPDX-License-Identifier: Apache-2.0
"""Directories of a commit as Git stores them: tree objects and their entries."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

_DIRECTORY, _SYMLINK, _SUBMODULE = 0o40000, 0o120000, 0o160000


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One entry of a directory of a commit."""

    name: str
    mode: int
    id: str

    @property
    def is_directory(self) -> bool:
        return self.mode == _DIRECTORY

    @property
    def is_symlink(self) -> bool:
        return self.mode == _SYMLINK

    @property
    def is_file(self) -> bool:
        return not (self.is_directory or self.is_symlink or self.is_submodule)

    @property
    def is_submodule(self) -> bool:
        return self.mode == _SUBMODULE


def root_directory(commit: str) -> TreeEntry:
    """Returns the entry of the root directory of a commit."""
    return TreeEntry("", _DIRECTORY, f"{commit}:")


def parse_tree(content: bytes, hash_size: int) -> Iterator[TreeEntry]:
    """Yields the entries of a tree object."""
    at = 0
    while at < len(content):
        space, end = content.index(b" ", at), content.index(b"\0", at)
        name, id_ = content[space + 1 : end], content[end + 1 : end + 1 + hash_size]
        yield TreeEntry(os.fsdecode(name), int(content[at:space], 8), id_.hex())
        at = end + 1 + hash_size
