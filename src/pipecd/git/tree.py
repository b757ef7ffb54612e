# SPDX-License-Identifier: Apache-2.0
"""Directories of a commit as Git stores them: tree objects and their entries."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from pipecd.model.errors import UserMistake

_MAX_MODE_LENGTH = 7
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
    """Yields the entries of a tree object; a Git host may serve one that is malformed."""
    at = 0
    while at < len(content):
        space = content.find(b" ", at, at + _MAX_MODE_LENGTH + 1)
        end = content.find(b"\0", space)
        mode, id_ = content[at:space], content[end + 1 : end + 1 + hash_size]
        if space < 0 or end < 0 or len(id_) < hash_size or mode.strip(b"01234567") or not mode:
            raise UserMistake("a directory of the repository is malformed", hint="run git fsck")
        yield TreeEntry(os.fsdecode(content[space + 1 : end]), int(mode, 8), id_.hex())
        at = end + 1 + hash_size
