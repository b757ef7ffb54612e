# SPDX-License-Identifier: Apache-2.0
"""Which part of a repository an application requires in its working copy.

That is its own directory, the files directly in the parent directories, the shared configuration,
the paths that its triggers name, and everything that those files refer to by a path with `..`: a
Kustomize base, a Terraform module, Helm values, a library of a script. Such paths can be found in
any text. If a file may refer to anything, the whole repository is required.
"""

import asyncio
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipecd.cache import LruCache
from pipecd.config.shared_config import SHARED_CONFIG
from pipecd.git.objects import Blob, Objects
from pipecd.git.tree import TreeEntry
from pipecd.git.tree_walk import TooManyEntries, walk

# Larger files are data, in which no tool searches for references.
_MAX_TEXT_SIZE = 512 * 1024
# An application that requires or mentions more than this gets the whole repository.
_MAX_FILES = 3000
_MAX_ENTRIES = 2 * _MAX_FILES
_MAX_CANDIDATES = 20_000
_MAX_TEXTS_SIZE = 64 * 1024 * 1024
# A larger text is searched in a thread. Other tasks run after this many paths.
_SMALL_TEXT_SIZE = 32 * 1024
_PATHS_PER_TURN = 100
_NAMES_PER_CANDIDATE = 100
# The references of so many files are cached, or of twice those of the largest application.
_CACHED_FILES = 2_000
# Documentation, whose references no tool follows.
_DOCUMENTATION = (".md", ".rst")

# The path `..` between the characters that delimit a word in YAML, HCL, JSON and shells; what
# follows it counts up to the first character that a program would have to compute.
_UPWARD = re.compile(
    rb"(?:(?<=^)|(?<=[/\s\"'`=:,;(){}\[\]<>|&@!]))\.\.(?=[/\s\"'`,;(){}\[\]<>|&!\\]|$)"
    rb"((?:/+[^/\s\"'`:,;(){}\[\]<>|&!$*?\\#%]+)*)",
    re.MULTILINE,
)
# Functions that compute a parent directory without `..`.
_CLIMBING = re.compile(
    rb"find_in_parent_folders|get_repo_root|(?:to|from)_repo_root|get_parent_terragrunt_dir"
    rb"|show-toplevel|\bdirname\W+(?:PWD|pwd|dirname)\b|\.parent\.parent\b|\.parents\[|\bOLDPWD\b"
)
_TEXT_SAMPLE = 8000


@dataclass(frozen=True)
class ParentReferences:
    """Paths of parent directories that a file refers to, without their leading `..`.

    The end of a path may be missing if it has a space in it or is computed. `is_unbounded` means
    that the file may refer to anything: it names a parent directory itself, or computes it.
    """

    paths: frozenset[str] = frozenset()
    is_unbounded: bool = False


NO_REFERENCES = ParentReferences()


def parent_references(content: bytes) -> ParentReferences:
    """Returns the references in the content of a file; a binary file has none."""
    if b"\0" in content[:_TEXT_SAMPLE] or (b".." not in content and not _CLIMBING.search(content)):
        return NO_REFERENCES
    tails = {
        _without_parents(match[1].decode("utf-8", "surrogateescape"))
        for match in _UPWARD.finditer(content)
    }
    is_unbounded = "" in tails or _CLIMBING.search(content) is not None
    return ParentReferences(frozenset(tails - {""}), is_unbounded)


def link_references(target: str) -> ParentReferences:
    """Returns the references of a symbolic link."""
    if ".." not in target.split("/"):
        return NO_REFERENCES
    tail = _without_parents(target)
    return ParentReferences(frozenset({tail}) - {""}, is_unbounded=not tail)


def _without_parents(path: str) -> str:
    """Returns what is left of a path when every `..` in it is resolved."""
    names: list[str] = []
    for name in path.split("/"):
        if name == ".." and names:
            names.pop()
        elif name not in ("", ".", ".."):
            names.append(name)
    return posixpath.join(*names) if names else ""


@dataclass
class _Requirement:
    """The paths and files that are required so far."""

    commit: str
    paths: set[str] = field(default_factory=set[str])
    files: dict[str, TreeEntry] = field(default_factory=dict[str, TreeEntry])
    # How many paths were looked for.
    candidates: int = 0

    async def count_candidate(self) -> None:
        """Counts a path that is looked for; other tasks may run in between."""
        self.candidates += 1
        if self.candidates > _MAX_CANDIDATES or len(self.paths) > _MAX_ENTRIES:
            raise TooManyEntries
        if self.candidates % _PATHS_PER_TURN == 0:
            await asyncio.sleep(0)

    def has(self, path: str) -> bool:
        above = path
        while above:
            if above in self.paths:
                return True
            above = posixpath.dirname(above)
        return "." in self.paths

    def has_parent_of(self, directory: str) -> bool:
        """Returns whether a parent of a directory is required."""
        return any(path in self.paths for path in _parents(directory))


class RequiredPaths:
    """Determines the required paths of applications; caches the references of each file."""

    def __init__(self) -> None:
        self._limit = _CACHED_FILES
        self._cache = LruCache[str, ParentReferences](self._limit)

    async def of(
        self, objects: Objects, commit: str, directory: str, *, named: Sequence[str] = ()
    ) -> tuple[str, ...] | None:
        """Returns the paths that an application requires, or None for the whole repository.

        `named` are further paths that its configuration mentions, from the root.
        """
        try:
            return await self._of(objects, commit, directory, named)
        except TooManyEntries:
            return None

    async def _of(
        self, objects: Objects, commit: str, directory: str, named: Sequence[str]
    ) -> tuple[str, ...] | None:
        entry = await objects.entry(commit, directory)
        if directory == "." or entry is None or not entry.is_directory:
            return None
        required = _Requirement(commit)
        # Tools look for their settings in the files of the parent directories.
        for above in _parents(directory):
            parent = await objects.entry(commit, above or ".")
            for below in await objects.entries(parent.id) if parent is not None else ():
                if not below.is_directory and not below.is_submodule:
                    await required.count_candidate()
                    required.paths.add(posixpath.join(above, below.name))
        # Tools read these files from other directories, so their references are not followed.
        await self._add(objects, required, [SHARED_CONFIG])
        candidates: Iterable[str] = [directory, *named]
        while candidates:
            added = await self._add(objects, required, candidates)
            if len(required.files) > _MAX_FILES or required.has_parent_of(directory):
                return None
            texts = {p: e for p, e in added.items() if not p.endswith(_DOCUMENTATION)}
            references = await self._references(objects, texts)
            if any(each.is_unbounded for each in references.values()):
                return None
            candidates = await _referred_paths(references)
        return tuple(sorted(required.paths))

    async def _add(
        self, objects: Objects, required: _Requirement, paths: Iterable[str]
    ) -> dict[str, TreeEntry]:
        """Adds the paths that exist, and returns the files that this adds."""
        new: dict[str, TreeEntry] = {}
        for path in paths:
            await required.count_candidate()
            entries = {} if required.has(path) else await _resolve(objects, required, path)
            for at, entry in entries.items():
                if not required.has(at):
                    required.paths.add(at)
                    async for below, each in walk(objects, at, entry, at_most=_MAX_ENTRIES):
                        if not each.is_directory and not each.is_submodule:
                            new[below] = each
                    if len(required.files) + len(new) > _MAX_FILES:
                        raise TooManyEntries
        required.files |= new
        return new

    async def _references(
        self, objects: Objects, files: dict[str, TreeEntry]
    ) -> dict[str, ParentReferences]:
        if 2 * len(files) > self._limit:
            self._limit = 2 * len(files)
            self._cache.limit(self._limit)
        cached = {entry.id: self._cache.get(entry.id) for entry in files.values()}
        sizes = await objects.sizes(sorted(id for id, refs in cached.items() if refs is None))
        texts = [b for b in sizes.values() if isinstance(b, Blob) and b.size <= _MAX_TEXT_SIZE]
        if sum(each.size for each in texts) > _MAX_TEXTS_SIZE:
            raise TooManyEntries
        contents = await objects.read(texts)
        references_by_path: dict[str, ParentReferences] = {}
        for path, entry in files.items():
            references = cached[entry.id]
            if references is None:
                content = contents.get(entry.id, b"")
                if entry.is_symlink:
                    references = link_references(content.decode("utf-8", "surrogateescape"))
                elif len(content) <= _SMALL_TEXT_SIZE:
                    references = parent_references(content)
                else:
                    references = await asyncio.to_thread(parent_references, content)
                self._cache.put(entry.id, references)
            references_by_path[path] = references
        return references_by_path


async def _referred_paths(references: Mapping[str, ParentReferences]) -> list[str]:
    """Returns the paths that files may mean by their references.

    The directory that a program starts in is unknown: any parent may be meant.
    """
    paths: set[str] = set()
    for path, each in references.items():
        parents = _parents(posixpath.dirname(path))
        if len(parents) * len(each.paths) > _MAX_CANDIDATES or len(paths) > _MAX_CANDIDATES:
            raise TooManyEntries
        if each.paths:
            paths.update(posixpath.join(above, tail) for above in parents for tail in each.paths)
            await asyncio.sleep(0)
    return sorted(paths)


async def _resolve(objects: Objects, required: _Requirement, path: str) -> dict[str, TreeEntry]:
    """Returns the entry at a path; else its submodule, or the entries whose names start with it."""
    commit = required.commit
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
    entries = await objects.entries(directory.id)
    # A comparison of names costs less than the lookup of a path.
    required.candidates += len(entries) // _NAMES_PER_CANDIDATE
    return {
        posixpath.join(parent, each.name): each for each in entries if each.name.startswith(name)
    }


def _parents(path: str) -> list[str]:
    """Returns the parent directories of a path; the root is the empty string."""
    names = path.split("/") if path else []
    return ["/".join(names[:count]) for count in range(len(names))]


def literal_prefix(pattern: str) -> str:
    """Returns the path before the first special character of a path pattern, or nothing."""
    names: list[str] = []
    for name in pattern.removeprefix("^").removesuffix("$").strip("/").split("/"):
        if not name or any(character in name for character in "*?[](){}^$|+\\"):
            break
        names.append(name)
    path = posixpath.normpath("/".join(names))
    return "" if path.startswith("..") or path == "." else path
