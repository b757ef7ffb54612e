# SPDX-License-Identifier: Apache-2.0
"""Writes a few small files of a commit without a git process of their own.

A push that changes a thousand applications creates thousands of working copies of a handful of
files each. Their content comes from the one `git cat-file` process of the repository. Everything
that git treats in a special way is left to git: links, submodules, attributes (line endings,
filters, encodings), and names that git refuses to write.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipecd.git.objects import Blob, Objects
from pipecd.git.tree import TreeEntry
from pipecd.git.tree_walk import TooManyEntries, walk
from pipecd.git.validate import validate_path

_MAX_FILES = 100
_MAX_ENTRIES = 3 * _MAX_FILES
_MAX_BYTES = 1024 * 1024
_ATTRIBUTES = ".gitattributes"
_EXECUTABLE = 0o100
# Names that git refuses, also in the spellings of other file systems.
_REFUSED = ("", ".git", "git~1")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class SmallFile:
    """The content of a file, and whether it is executable."""

    content: bytes
    is_executable: bool


class _LeftToGit(Exception):
    """Git has to write this commit."""


async def read_small_files(
    objects: Objects, commit: str, paths: Iterable[str]
) -> dict[str, SmallFile] | None:
    """Returns the files at and below the paths, None if git has to write them."""
    entries: dict[str, TreeEntry] = {}
    try:
        for path in paths:
            await _collect_path(objects, commit, validate_path(path), entries)
    except (_LeftToGit, TooManyEntries):
        return None
    sizes = await objects.sizes(sorted({entry.id for entry in entries.values()}))
    blobs = [blob for blob in sizes.values() if isinstance(blob, Blob)]
    if len(blobs) < len(sizes) or sum(blob.size for blob in blobs) > _MAX_BYTES:
        return None
    contents = await objects.read(blobs)
    return {
        path: SmallFile(contents[entry.id], bool(entry.mode & _EXECUTABLE))
        for path, entry in entries.items()
    }


def write_small_files(files: Mapping[str, SmallFile], into: Path) -> None:
    """Writes files into a directory that has none of them; a full disk raises OSError."""
    directories: set[str] = set()
    for path, file in files.items():
        target = into / path
        if (directory := os.path.dirname(path)) not in directories:  # noqa: PTH120
            target.parent.mkdir(parents=True, exist_ok=True)
            directories.add(directory)
        number = os.open(target, _NEW_FILE, 0o777 if file.is_executable else 0o666)
        # One raw write may write only the beginning; a buffered file repeats it or raises.
        with os.fdopen(number, "wb") as opened:
            opened.write(file.content)


async def _collect_path(
    objects: Objects, commit: str, path: str, into: dict[str, TreeEntry]
) -> None:
    """Adds the files at and below a path; checks every directory on the way."""
    entry, names = await objects.entry(commit, "."), [] if path == "." else path.split("/")
    for name in names:
        below = await _entries(objects, entry) if entry is not None else {}
        entry = below.get(name) if is_plain_name(name) else None
    if entry is None:
        raise _LeftToGit
    await _collect(objects, "" if path == "." else path, entry, into)


async def _collect(
    objects: Objects, path: str, entry: TreeEntry, into: dict[str, TreeEntry]
) -> None:
    async for at, each in walk(objects, path, entry, at_most=_MAX_ENTRIES):
        if each.is_file:
            into[at] = each
        else:
            await _entries(objects, each)
        if len(into) > _MAX_FILES or (at and not is_plain_name(each.name)):
            raise _LeftToGit


async def _entries(objects: Objects, directory: TreeEntry) -> dict[str, TreeEntry]:
    """Returns the entries of a directory whose files need nothing but to be written."""
    if not directory.is_directory:
        raise _LeftToGit
    entries = await objects.entries(directory.id)
    by_name = {entry.name: entry for entry in entries}
    if _ATTRIBUTES in by_name or len(by_name) < len(entries):
        raise _LeftToGit
    return by_name


def is_plain_name(name: str) -> bool:
    """Whether git writes a file of this name on every platform."""
    is_plain = name.isascii() and name.isprintable() and not any(c in name for c in "/\\:")
    return is_plain and name.lower().rstrip(". ") not in _REFUSED
