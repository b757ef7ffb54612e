# SPDX-License-Identifier: Apache-2.0
"""Which part of a repository an application needs.

That is its own directory, the files directly in the directories above it, the shared
configuration, what it names as its triggers, and whatever those files refer to by a path that
leads upwards. When a file may reach anything, the whole repository is needed.
"""

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipecd.cache import LruCache
from pipecd.config.shared import SHARED_CONFIG
from pipecd.git.objects import Blob, Objects, TreeEntry
from pipecd.piped.source.references import NONE, References, link_reference, references

# Longer files are data, not something that a tool follows.
_LONGEST_TEXT = 512 * 1024
# An application that needs more than this is not worth a choice.
_MOST_FILES = 3000
_REMEMBERED = 20_000
# Read by people, who find their way.
_PROSE = (".md", ".rst")


@dataclass
class _Need:
    """What is known to be needed so far."""

    commit: str
    paths: set[str] = field(default_factory=set[str])
    files: dict[str, TreeEntry] = field(default_factory=dict[str, TreeEntry])

    def has(self, path: str) -> bool:
        above = path
        while above:
            if above in self.paths:
                return True
            above = posixpath.dirname(above)
        return "." in self.paths

    def contains(self, directory: str) -> bool:
        """Whether a directory above is needed."""
        return any(path in self.paths for path in _parents(directory))


class Needs:
    """Finds out what applications need; a file that was read once is not read again."""

    def __init__(self) -> None:
        self._known = LruCache[str, References](_REMEMBERED)

    async def of(
        self, objects: Objects, commit: str, directory: str, *, named: Sequence[str] = ()
    ) -> tuple[str, ...] | None:
        """The paths that an application needs, or None when it is the whole repository.

        `named` are further paths that its configuration mentions, from the root.
        """
        entry = await objects.entry(commit, directory)
        if directory == "." or entry is None or not entry.is_directory:
            return None
        need = _Need(commit)
        await _take_files_above(objects, need, directory)
        # Others read these files, and do so from elsewhere: what they refer to is not followed.
        await self._take(objects, need, [SHARED_CONFIG])
        wanted: Iterable[str] = [directory, *named]
        while wanted:
            unread = await self._take(objects, need, wanted)
            if len(need.files) > _MOST_FILES or need.contains(directory):
                return None
            texts = {p: e for p, e in unread.items() if not p.endswith(_PROSE)}
            told = await self._references(objects, texts)
            if any(each.climbs for each in told.values()):
                return None
            wanted = sorted({c for path, each in told.items() for c in _candidates(path, each)})
        return tuple(sorted(need.paths))

    async def _take(
        self, objects: Objects, need: _Need, paths: Iterable[str]
    ) -> dict[str, TreeEntry]:
        """Adds what exists of some paths and returns the files that came with it."""
        new: dict[str, TreeEntry] = {}
        for path in paths:
            found = {} if need.has(path) else await _find(objects, need.commit, path)
            for at, entry in found.items():
                if not need.has(at):
                    need.paths.add(at)
                    await _collect(objects, at, entry, new)
        need.files |= new
        return new

    async def _references(
        self, objects: Objects, files: dict[str, TreeEntry]
    ) -> dict[str, References]:
        cached = {e.id: self._known.get(e.id) for e in files.values()}
        sizes = await objects.sizes(sorted(id for id, known in cached.items() if known is None))
        texts = [b for b in sizes.values() if isinstance(b, Blob) and b.size <= _LONGEST_TEXT]
        contents = await objects.read(texts)
        told: dict[str, References] = {}
        for path, entry in files.items():
            known = cached[entry.id]
            if known is None:
                known = _read(entry, contents.get(entry.id, b""))
                self._known.put(entry.id, known)
            told[path] = known
        return told


async def _find(objects: Objects, commit: str, path: str) -> dict[str, TreeEntry]:
    """What is at a path; else the submodule that it leads into, or what begins with its name."""
    entry = await objects.entry(commit, path)
    if entry is not None:
        return {path: entry}
    parent, name = posixpath.split(path)
    for above in _parents(path)[1:]:
        part = await objects.entry(commit, above)
        if part is not None and part.is_submodule:
            return {above: part}
    directory = await objects.entry(commit, parent or ".")
    if directory is None or not directory.is_directory:
        return {}
    return {
        posixpath.join(parent, each.name): each
        for each in await objects.entries(directory.id)
        if each.name.startswith(name)
    }


async def _collect(
    objects: Objects, path: str, entry: TreeEntry, into: dict[str, TreeEntry]
) -> None:
    if entry.is_submodule or len(into) > _MOST_FILES:
        return
    if not entry.is_directory:
        into[path] = entry
        return
    for below in await objects.entries(entry.id):
        await _collect(objects, f"{path}/{below.name}", below, into)


async def _take_files_above(objects: Objects, need: _Need, directory: str) -> None:
    """Tools look for their own settings in the directories above the one they work in."""
    for above in _parents(directory):
        entry = await objects.entry(need.commit, above or ".")
        for below in await objects.entries(entry.id) if entry is not None else ():
            if not below.is_directory and not below.is_submodule:
                need.paths.add(posixpath.join(above, below.name))


def _read(entry: TreeEntry, content: bytes) -> References:
    if entry.is_symlink:
        return link_reference(content.decode("utf-8", "surrogateescape"))
    return references(content) if content else NONE


def _candidates(path: str, told: References) -> Iterable[str]:
    """Where a reference may lead: from which directory a program starts is not known."""
    for above in _parents(posixpath.dirname(path)):
        for below in told.paths:
            yield posixpath.join(above, below)


def _parents(path: str) -> list[str]:
    """The directories above a path; the root has no name."""
    names = path.split("/") if path else []
    return ["/".join(names[:count]) for count in range(len(names))]


def literal_prefix(pattern: str) -> str:
    """The directory or file that a pattern of paths certainly begins with, or nothing."""
    names: list[str] = []
    for name in pattern.removeprefix("^").removesuffix("$").strip("/").split("/"):
        if not name or any(character in name for character in "*?[](){}^$|+\\"):
            break
        names.append(name)
    path = posixpath.normpath("/".join(names))
    return "" if path.startswith("..") or path == "." else path
