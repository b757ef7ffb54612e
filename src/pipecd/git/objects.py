# SPDX-License-Identifier: Apache-2.0
"""Reading commits, trees and files from a bare repository on disk, without a checkout."""

import os
import posixpath
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipecd.git.access import GitEnvironment
from pipecd.git.commit import LOG_FORMAT, Commit, parse_commit
from pipecd.git.failure import is_damaged
from pipecd.git.reader import Reader, Told
from pipecd.model.errors import NotFound, Unavailable, UserMistake
from pipecd.program.capture import Captured, capture

# Nobody writes an application configuration of this size by intention.
FILE_LIMIT = 4 * 1024 * 1024

_ABSENT = "was not found"
_LINKS = {
    b"symlink": "is a symbolic link to a place outside of the repository",
    b"dangling": "is a symbolic link to a file that does not exist",
    b"loop": "is a symbolic link that leads back to itself",
    b"notdir": _ABSENT,
}

# Directories hardly change from one commit to the next, so those with this many names together
# are remembered.
_REMEMBERED_NAMES = 50_000
_DIRECTORY, _SYMLINK, _SUBMODULE = 0o40000, 0o120000, 0o160000


@dataclass(frozen=True)
class Blob:
    """The content of a file by its name in the object database: same id, same bytes."""

    id: str
    size: int


@dataclass(frozen=True)
class Missing:
    """Why there is no file at a path: `reason` continues a sentence that begins with the path."""

    reason: str

    @property
    def is_absent(self) -> bool:
        """Whether there is nothing at all."""
        return self.reason == _ABSENT


@dataclass(frozen=True)
class TreeFile:
    """A file of a commit; `path` may hold surrogate escapes where its bytes are not UTF-8."""

    path: str
    is_symlink: bool


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """What a directory of a commit contains under one name."""

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
    def is_submodule(self) -> bool:
        return self.mode == _SUBMODULE


class Objects:
    """What a bare repository on disk knows."""

    def __init__(self, directory: Path, environment: GitEnvironment) -> None:
        self.directory, self._environment = directory, environment
        self._finder = Reader(
            directory, ["--batch-check", "--follow-symlinks"], self._own_variables
        )
        self._contents = Reader(directory, ["--batch"], self._own_variables)
        self._trees: OrderedDict[str, tuple[TreeEntry, ...]] = OrderedDict()
        self._names = 0
        # Something that must be here could not be read.
        self._is_doubted = False

    async def close(self) -> None:
        """Ends the programs that read from here."""
        await self._finder.close()
        await self._contents.close()

    async def commit(self, revision: str) -> Commit:
        """The commit that a hash or ref names."""
        done = await self._git(
            "log", "-1", "--no-show-signature", f"--format={LOG_FORMAT}", revision, "--"
        )
        if done.code:
            raise NotFound(f"commit {revision} was not found")
        return parse_commit(done.stdout)

    async def has(self, commit: str) -> bool:
        """Whether the commit is here."""
        [told] = await self._ask(self._finder, [f"{commit}^{{commit}}".encode()])
        return len(told.words) == 3 and told.words[1] == b"commit"

    async def entries(self, tree: str) -> tuple[TreeEntry, ...]:
        """What a directory contains, by the id of its tree, or as `commit:` the root."""
        known = self._trees.get(tree)
        if known is not None:
            self._trees.move_to_end(tree)
            return known
        [told] = await self._ask(self._contents, [tree.encode()])
        if len(told.words) != 3 or told.words[1] != b"tree":
            # A commit may never have been here, but a directory came out of one that is.
            self._is_doubted |= not tree.endswith(":")
            raise Unavailable(f"git could not read the directory {tree} from {self.directory}")
        found = tuple(_entries(told.content, len(told.words[0]) // 2))
        # Somebody else may have asked for the same in the meantime.
        self._names += len(found) - len(self._trees.get(tree, ()))
        self._trees[tree] = found
        while self._names > _REMEMBERED_NAMES and len(self._trees) > 1:
            self._names -= len(self._trees.popitem(last=False)[1])
        return found

    async def entry(self, commit: str, path: str) -> TreeEntry | None:
        """What a commit has at a path, links not followed; the root is a directory like others."""
        found = TreeEntry("", _DIRECTORY, f"{commit}:")
        clean = inside(path)
        for name in () if clean == "." else clean.split("/"):
            below = await self.entries(found.id) if found.is_directory else ()
            match = next((each for each in below if each.name == name), None)
            if match is None:
                return None
            found = match
        return found

    async def changed_files(self, old: str, new: str) -> tuple[str, ...]:
        """Paths that differ between two commits, old names of moved files included."""
        done = await self._git("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
        if done.code:
            raise NotFound(f"the commits {old} and {new} cannot be compared: {_said(done)}")
        return _names(done.stdout)

    async def files(self, commit: str, under: str = "") -> tuple[TreeFile, ...]:
        """Every file of a commit, or those below a directory; submodules are left out."""
        where = ["--", f":(literal){inside(under)}"] if under else []
        done = await self._git("ls-tree", "-r", "-z", "--full-tree", commit, *where)
        if done.code:
            raise NotFound(f"the files of commit {commit} cannot be listed: {_said(done)}")
        return tuple(_tree_files(done.stdout))

    async def locate(self, commit: str, paths: Iterable[str]) -> dict[str, Blob | Missing]:
        """Finds files at a commit, following links that stay inside of the repository."""
        wanted = {path: _object_name(commit, path) for path in paths}
        names = [name for name in wanted.values() if name is not None]
        found = iter([_place(told) for told in await self._ask(self._finder, names)])
        return {
            path: Missing("is not a path inside of the repository") if name is None else next(found)
            for path, name in wanted.items()
        }

    async def read(self, blobs: Iterable[Blob]) -> dict[str, bytes]:
        """The contents of located files, by the id of the blob."""
        ids = list({blob.id: None for blob in blobs})
        told = await self._ask(self._contents, [id_.encode() for id_ in ids])
        unread = [t.words for t in told if len(t.words) != 3 or t.words[1] != b"blob"]
        if unread:
            self._is_doubted = True
            said = b" ".join(unread[0]).decode("utf-8", "replace")
            raise Unavailable(f"git could not read files from {self.directory}: {said}")
        return {id_: each.content for id_, each in zip(ids, told, strict=True)}

    async def read_file(self, commit: str, path: str) -> bytes:
        """The content of one file at a commit."""
        place = (await self.locate(commit, [path]))[path]
        if isinstance(place, Missing):
            raise NotFound(f"{path} {place.reason} at commit {commit[:7]}")
        return (await self.read([place]))[place.id]

    async def sizes(self, ids: Sequence[str]) -> dict[str, Blob | Missing]:
        """How large files are, by the id of the blob."""
        told = await self._ask(self._finder, [id_.encode() for id_ in ids])
        return {id_: _place(each) for id_, each in zip(ids, told, strict=True)}

    async def settings_in(self, commit: str, path: str) -> list[tuple[str, str]]:
        """The keys and values of a file in the format of git's own configuration."""
        done = await self._git("config", "--blob", f"{commit}:{path}", "--null", "--list")
        if done.code:
            raise UserMistake(f"{path} cannot be read: {_said(done)}")
        pairs = (os.fsdecode(each).partition("\n") for each in done.stdout.split(b"\0") if each)
        return [(key, value) for key, _, value in pairs]

    async def _ask(self, reader: Reader, names: Sequence[bytes]) -> list[Told]:
        try:
            return await reader.ask(names)
        except Unavailable as e:
            self._is_doubted |= is_damaged(e.message)
            raise

    async def _git(
        self,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        variables: dict[str, str] | None = None,
        at_most: float = 60,
    ) -> Captured:
        return await capture(
            ["git", *arguments],
            cwd=cwd or self.directory,
            env=self._own_variables() | (variables or {}),
            stdin=stdin,
            at_most=at_most,
        )

    def _own_variables(self) -> dict[str, str]:
        return self._environment.of() | {"GIT_DIR": str(self.directory)}


def inside(path: str) -> str:
    """A clean path relative to the root of a repository; one that leaves it is refused."""
    clean = posixpath.normpath(path) if path else "."
    if clean.startswith(("/", "../")) or clean == ".." or "\0" in clean:
        raise UserMistake(f"{path!r} is not a path inside of the repository")
    return clean


def _object_name(commit: str, path: str) -> bytes | None:
    try:
        clean = inside(path)
    except UserMistake:
        return None
    # Requests to git are lines, so a name with a line break cannot be asked for.
    return None if "\n" in clean else os.fsencode(f"{commit}:{clean}")


def _place(told: Told) -> Blob | Missing:
    words = told.words
    if words[0] in _LINKS and len(words) == 2:
        return Missing(_LINKS[words[0]])
    if len(words) == 3 and words[1] == b"blob" and words[2].isdigit():
        return _blob(words[0].decode(), int(words[2]))
    if len(words) == 3 and words[1] == b"tree":
        return Missing("is a directory")
    return Missing(_ABSENT)


def _blob(id_: str, size: int) -> Blob | Missing:
    if size > FILE_LIMIT:
        return Missing(f"is larger than {FILE_LIMIT // 1024 // 1024} MiB")
    return Blob(id_, size)


def _entries(content: bytes, hash_size: int) -> Iterable[TreeEntry]:
    at = 0
    while at < len(content):
        space, end = content.index(b" ", at), content.index(b"\0", at)
        name, id_ = content[space + 1 : end], content[end + 1 : end + 1 + hash_size]
        yield TreeEntry(os.fsdecode(name), int(content[at:space], 8), id_.hex())
        at = end + 1 + hash_size


def _tree_files(output: bytes) -> Iterable[TreeFile]:
    for entry in output.split(b"\0"):
        about, _, name = entry.partition(b"\t")
        words = about.split(b" ")
        if len(words) == 3 and words[1] == b"blob":
            yield TreeFile(os.fsdecode(name), words[0] == b"120000")


def _names(output: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(name) for name in output.split(b"\0") if name)


def _said(done: Captured) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else f"exit code {done.code}"
