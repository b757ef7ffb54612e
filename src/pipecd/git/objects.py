# SPDX-License-Identifier: Apache-2.0
"""Reading commits, trees and files from a bare repository on disk, without a checkout."""

import os
import posixpath
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipecd.git.access import GitEnvironment
from pipecd.git.commit import LOG_FORMAT, Commit, parse_commit
from pipecd.model.errors import NotFound, PipecdError, Unavailable, UserMistake
from pipecd.program.capture import Captured, capture

# Nobody writes an application configuration of this size by intention.
FILE_LIMIT = 4 * 1024 * 1024

_LINKS = {
    b"symlink": "is a symbolic link to a place outside of the repository",
    b"dangling": "is a symbolic link to a file that does not exist",
    b"loop": "is a symbolic link that leads back to itself",
    b"notdir": "was not found",
}

_ABSENT = ("did not match any file", "reference is not a tree", "failed to unpack tree object")


@dataclass(frozen=True)
class Blob:
    """The content of a file by its name in the object database: same id, same bytes."""

    id: str
    size: int


@dataclass(frozen=True)
class Missing:
    """Why there is no file at a path: `reason` continues a sentence that begins with the path."""

    reason: str


@dataclass(frozen=True)
class TreeFile:
    """A file of a commit; `path` may hold surrogate escapes where its bytes are not UTF-8."""

    path: str
    blob_id: str
    is_symlink: bool


class Objects:
    """What a bare repository on disk knows."""

    def __init__(self, directory: Path, environment: GitEnvironment) -> None:
        self.directory, self._environment = directory, environment

    async def commit(self, revision: str) -> Commit:
        """The commit that a hash or ref names."""
        done = await self._git(
            "log", "-1", "--no-show-signature", f"--format={LOG_FORMAT}", revision, "--"
        )
        if done.code:
            raise NotFound(f"commit {revision} was not found")
        return parse_commit(done.stdout)

    async def has(self, commit: str) -> bool:
        """Whether the commit with its whole history is here."""
        done = await self._git("cat-file", "-e", f"{commit}^{{commit}}")
        return done.code == 0

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
        done = await self._git(
            "cat-file",
            "--batch-check",
            "--follow-symlinks",
            stdin=b"".join(n + b"\n" for n in names),
        )
        found = iter(_checked(done.stdout))
        return {
            path: Missing("is not a path inside of the repository") if name is None else next(found)
            for path, name in wanted.items()
        }

    async def read(self, blobs: Iterable[Blob]) -> dict[str, bytes]:
        """The contents of located files, by the id of the blob."""
        ids = list({blob.id: None for blob in blobs})
        if not ids:
            return {}
        done = await self._git("cat-file", "--batch", stdin="".join(i + "\n" for i in ids).encode())
        contents = _contents(done.stdout)
        if len(contents) != len(ids):
            raise Unavailable(f"git could not read files from {self.directory}: {_said(done)}")
        return contents

    async def read_file(self, commit: str, path: str) -> bytes:
        """The content of one file at a commit."""
        place = (await self.locate(commit, [path]))[path]
        if isinstance(place, Missing):
            raise NotFound(f"{path} {place.reason} at commit {commit[:7]}")
        return (await self.read([place]))[place.id]

    async def materialise(self, commit: str, into: Path, *, paths: Sequence[str] = ()) -> None:
        """Writes the tree of a commit, or only some paths of it, into an empty directory."""
        index = self.directory / f"index-{uuid.uuid4().hex}"
        if paths:
            literal = [f":(literal){inside(path)}" for path in paths]
            command = ["checkout", "-q", "-f", commit, "--", *literal]
        else:
            command = ["read-tree", "-m", "-u", commit]
        variables = {"GIT_WORK_TREE": str(into), "GIT_INDEX_FILE": str(index)}
        try:
            done = await self._git(*command, cwd=into, variables=variables, at_most=600)
        finally:
            index.unlink(missing_ok=True)
            index.with_name(f"{index.name}.lock").unlink(missing_ok=True)
        if done.code:
            raise self._unwritten(commit, done)

    def _unwritten(self, commit: str, done: Captured) -> PipecdError:
        said = _said(done)
        if any(sign in said for sign in _ABSENT):
            return NotFound(f"commit {commit} or a path in it was not found ({said})")
        return Unavailable(f"the files of commit {commit} could not be written: {said}")

    async def _git(
        self,
        *arguments: str,
        cwd: Path | None = None,
        stdin: bytes = b"",
        variables: dict[str, str] | None = None,
        at_most: float = 60,
    ) -> Captured:
        env = self._environment.of() | {"GIT_DIR": str(self.directory)} | (variables or {})
        return await capture(
            ["git", *arguments], cwd=cwd or self.directory, env=env, stdin=stdin, at_most=at_most
        )


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


def _checked(output: bytes) -> Iterable[Blob | Missing]:
    lines = iter(output.split(b"\n"))
    for line in lines:
        if not line:
            continue
        words = line.split(b" ")
        if words[0] in _LINKS and len(words) == 2:
            # The place that a broken link names stands on a line of its own.
            next(lines, b"")
            yield Missing(_LINKS[words[0]])
        elif len(words) == 3 and words[1] == b"blob":
            yield _blob(words[0].decode(), int(words[2]))
        elif len(words) == 3 and words[1] == b"tree":
            yield Missing("is a directory")
        else:
            yield Missing("was not found")


def _blob(id_: str, size: int) -> Blob | Missing:
    if size > FILE_LIMIT:
        return Missing(f"is larger than {FILE_LIMIT // 1024 // 1024} MiB")
    return Blob(id_, size)


def _contents(output: bytes) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    at = 0
    while (end := output.find(b"\n", at)) >= 0:
        words = output[at:end].split(b" ")
        if len(words) != 3 or words[1] != b"blob":
            break
        size = int(words[2])
        contents[words[0].decode()] = output[end + 1 : end + 1 + size]
        at = end + 1 + size + 1
    return contents


def _tree_files(output: bytes) -> Iterable[TreeFile]:
    for entry in output.split(b"\0"):
        about, _, name = entry.partition(b"\t")
        words = about.split(b" ")
        if len(words) == 3 and words[1] == b"blob":
            yield TreeFile(os.fsdecode(name), words[2].decode(), words[0] == b"120000")


def _names(output: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(name) for name in output.split(b"\0") if name)


def _said(done: Captured) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else f"exit code {done.code}"
