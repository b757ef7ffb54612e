# SPDX-License-Identifier: Apache-2.0
"""Reads commits, trees and files from a bare repository on disk, without a checkout.

`git cat-file` runs in its batch modes as long as there are requests, so that reading an object
does not cost a process.
"""

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipecd.cache import LruCache
from pipecd.git.command import GitCommand
from pipecd.git.commit import LOG_FORMAT, Commit, parse_commit
from pipecd.git.errors import is_corrupt
from pipecd.git.tree import TreeEntry, parse_tree, root_directory
from pipecd.git.tree_limits import TreeLimits, TreeSize, TreeSizes
from pipecd.git.validate import validate_hash, validate_path
from pipecd.model.errors import NotFound, PipecdError, Unavailable, UserMistake
from pipecd.program import group
from pipecd.program.limits import LimitExceeded
from pipecd.program.run import Captured

# No application configuration is this large on purpose.
FILE_LIMIT = 4 * 1024 * 1024
# More than 100,000 names in one directory.
_TREE_LIMIT = 8 * 1024 * 1024
# A larger directory is parsed in a thread, so that other tasks can run.
_SMALL_TREE = 128 * 1024

_ABSENT = "was not found"
_LINK_PROBLEMS = {
    b"symlink": "is a symbolic link to a file outside of the repository",
    b"dangling": "is a symbolic link to a file that does not exist",
    b"loop": "is a symbolic link that leads back to itself",
    b"notdir": _ABSENT,
}

# Most directories and files are the same from one commit to the next, and a deployment reads its
# few files several times. Those that were read last are cached: as many bytes as so many commits
# have, which these numbers per file and directory estimate, within two limits. Every commit has a
# root of its own, so that the caches of a busy repository are always full.
_CACHED_COMMITS = 3
_DIRECTORY_SIZE, _ENTRY_SIZE, _FILE_SIZE = 500, 220, 1000
_MIN_CACHED_DIRECTORIES, _MAX_CACHED_DIRECTORIES = 512 * 1024, 4 * 1024 * 1024
_MIN_CACHED_CONTENTS, _MAX_CACHED_CONTENTS = 512 * 1024, 2 * 1024 * 1024
# A directory that is larger counts as so many bytes, so that a few huge ones are cached as well.
_MAX_COUNTED_SIZE = 1024 * 1024
_REMEMBERED_COMMITS = 1000
_MAX_CACHED_FILE = 64 * 1024
_CACHE_OVERHEAD = 200
# The deployments of one push ask for the same commits within so many seconds.
_CONFIRMED_SECONDS = 1.0

_IDLE_SECONDS = 30.0
_RESPONSE_TIMEOUT = 120.0
_STDERR_LIMIT = 4096


@dataclass(frozen=True)
class Blob:
    """A file in the object database: same id, same content."""

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


@dataclass(frozen=True)
class _Directory:
    """The entries of a directory in their order, and by name; Git refuses to write a name twice."""

    entries: tuple[TreeEntry, ...]

    @cached_property
    def by_name(self) -> Mapping[str, TreeEntry]:
        return {entry.name: entry for entry in reversed(self.entries)}


def _directory_size(directory: _Directory) -> int:
    return min(_DIRECTORY_SIZE + _ENTRY_SIZE * len(directory.entries), _MAX_COUNTED_SIZE)


class Objects:
    """Reads the object database of a bare repository; `limits` are those of a working copy."""

    def __init__(self, command: GitCommand, limits: TreeLimits | None = None) -> None:
        # Whether an object that must exist could not be read.
        self.is_suspect = False
        self._git = command
        self._lookup = CatFile(command, "--batch-check", "--follow-symlinks")
        self._contents = CatFile(command, "--batch")
        self._cached_entries = 0
        self._trees = LruCache[str, _Directory](_MIN_CACHED_DIRECTORIES, size_of=_directory_size)
        self._small_files = LruCache[str, bytes](
            _MIN_CACHED_CONTENTS, size_of=lambda content: len(content) + _CACHE_OVERHEAD
        )
        self._sizes = TreeSizes(self._read_trees, self._read_sizes, limits or TreeLimits())
        # Commits that were read before, and so must be readable.
        self._read_commits = LruCache[str, bool](_REMEMBERED_COMMITS)
        # Commits that git has found just now.
        self._confirmed = LruCache[str, bool](_REMEMBERED_COMMITS, ttl=_CONFIRMED_SECONDS)

    async def close(self) -> None:
        """Ends the git processes that read from the repository."""
        await self._lookup.close()
        await self._contents.close()

    async def reopen(self) -> None:
        """Reads from the repository that has replaced the old one at the same path."""
        await self.close()
        self._read_commits = LruCache[str, bool](_REMEMBERED_COMMITS)
        self._confirmed.clear()
        self.is_suspect = False

    async def commit(self, revision: str) -> Commit:
        """Returns the commit that a hash or a full ref names."""
        if not revision.startswith("refs/"):
            validate_hash(revision)
        done = await self._git.run(
            "log", "-1", "--no-show-signature", f"--format={LOG_FORMAT}", revision, "--"
        )
        if done.code:
            raise self._error(done, NotFound(f"commit {revision} was not found"), revision)
        commit = parse_commit(done.stdout)
        self._read_commits.put(commit.hash, True)
        return commit

    async def has_commit(self, commit: str) -> bool:
        """Whether the repository has the commit."""
        if self.has_just_had(commit):
            return True
        [response] = await self._request(
            self._lookup, [f"{validate_hash(commit)}^{{commit}}".encode()]
        )
        if response.kind == b"commit":
            self._read_commits.put(commit, True)
            self._confirmed.put(commit, True)
            return True
        self.is_suspect |= self.was_read(commit)
        return False

    def has_just_had(self, commit: str) -> bool:
        """Whether git has found the commit a moment ago, and no read has failed since."""
        return not self.is_suspect and self._confirmed.get(commit) is not None

    def was_read(self, commit: str) -> bool:
        """Whether the repository had the commit earlier, and so must have it now."""
        return self._read_commits.get(commit) is not None

    async def entries(self, tree: str) -> tuple[TreeEntry, ...]:
        """Returns the entries of a directory, by the id of its tree; `commit:` names the root."""
        return (await self._directory(tree)).entries

    async def entry(self, commit: str, path: str) -> TreeEntry | None:
        """Returns the entry at a path, without following links; the root is a directory too."""
        entry = root_directory(validate_hash(commit))
        clean = validate_path(path)
        for name in () if clean == "." else clean.split("/"):
            if not entry.is_directory:
                return None
            match = (await self._directory(entry.id)).by_name.get(name)
            if match is None:
                return None
            entry = match
        return entry

    async def check_size(
        self, commit: str, paths: Iterable[str] = (), *, with_size: bool = True
    ) -> TreeSize:
        """Raises LimitExceeded if a commit, or some paths of it, exceed a limit of working copies.

        Without `with_size` only names count. Returns how large the working copy will be.
        """
        requested = list(paths)
        entries = [await self.entry(commit, path) for path in requested or (".",)]
        what = f"commit {commit[:7]} of {self._git.display_name}"
        size = await self._sizes.check(
            [entry for entry in entries if entry is not None],
            what=f"{requested[0]} of {what}" if len(requested) == 1 else what,
            with_size=with_size,
        )
        self._make_room(size.entries)
        return size

    def _make_room(self, entries: int) -> None:
        """Lets the caches hold what some commits with so many files and directories have."""
        if entries <= self._cached_entries:
            return
        self._cached_entries = entries
        directories = _CACHED_COMMITS * entries * (_DIRECTORY_SIZE + _ENTRY_SIZE)
        contents = _CACHED_COMMITS * entries * (_FILE_SIZE + _CACHE_OVERHEAD)
        self._trees.limit(min(max(directories, _MIN_CACHED_DIRECTORIES), _MAX_CACHED_DIRECTORIES))
        self._small_files.limit(min(max(contents, _MIN_CACHED_CONTENTS), _MAX_CACHED_CONTENTS))

    async def exceeds_limits(self, directory: TreeEntry) -> bool:
        """Whether the names below a directory exceed a limit of working copies."""
        try:
            await self._sizes.check([directory], what=directory.name, with_size=False)
        except LimitExceeded:
            return True
        return False

    @property
    def limits(self) -> TreeLimits:
        """The limits of working copies."""
        return self._sizes.limits

    async def _directory(self, tree: str) -> _Directory:
        directory = self._trees.get(tree)
        if directory is None:
            directory = _Directory((await self._read_trees([tree]))[0])
            self._trees.put(tree, directory)
        return directory

    async def _read_trees(self, trees: Sequence[str]) -> list[tuple[TreeEntry, ...]]:
        for tree in trees:
            validate_hash(tree.removesuffix(":"))
        responses = await self._request(self._contents, [tree.encode() for tree in trees])
        read = list[tuple[TreeEntry, ...]]()
        for tree, response in zip(trees, responses, strict=True):
            if response.kind != b"tree":
                # A commit may never have been fetched, but a directory comes from one that was.
                commit = tree.removesuffix(":")
                self.is_suspect |= commit == tree or self.was_read(commit)
                raise Unavailable(
                    f"git could not read the directory {tree} from {self._git.directory}"
                )
            if response.is_too_large:
                raise LimitExceeded(
                    f"a directory of {self._git.display_name} has more than 100,000 names",
                    hint="move files to several directories",
                )
            if len(response.content) <= _SMALL_TREE:
                read.append(_parse_response(response))
            else:
                read.append(await asyncio.to_thread(_parse_response, response))
        return read

    async def _read_sizes(self, ids: Sequence[str]) -> list[int]:
        """Returns the sizes of files however large they are; 0 for one that cannot be read."""
        responses = await self._request(self._lookup, [id_.encode() for id_ in ids])
        sizes = (each.words[2] if each.kind == b"blob" else b"" for each in responses)
        return [int(size) if size.isdigit() else 0 for size in sizes]

    async def is_ancestor(self, ancestor: str, descendant: str) -> bool:
        """Whether a commit is part of the history of another one; False if one is unknown."""
        arguments = ("--is-ancestor", validate_hash(ancestor), validate_hash(descendant))
        return (await self._git.run("merge-base", *arguments)).code == 0

    async def changed_files(self, old: str, new: str) -> tuple[str, ...]:
        """Returns the paths that differ between two commits, old names of moved files included."""
        for commit in (old, new):
            if await self.has_commit(validate_hash(commit)):
                await self.check_size(commit, with_size=False)
        done = await self._git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", old, new)
        if done.code:
            error = NotFound(f"the commits {old} and {new} cannot be compared: {_cause(done)}")
            raise self._error(done, error, old, new)
        return tuple(os.fsdecode(name) for name in done.stdout.split(b"\0") if name)

    async def files(self, commit: str, under: str = "") -> tuple[TreeFile, ...]:
        """Returns every file of a commit, or those below a directory; submodules are left out."""
        pathspec = ["--", f":(literal){validate_path(under)}"] if under else []
        if await self.has_commit(validate_hash(commit)):
            await self.check_size(commit, [under] if under else (), with_size=False)
        done = await self._git.run(
            "ls-tree", "-r", "-z", "--full-tree", validate_hash(commit), *pathspec
        )
        if done.code:
            error = NotFound(f"the files of commit {commit} cannot be listed: {_cause(done)}")
            raise self._error(done, error, commit)
        files: list[TreeFile] = []
        for entry in done.stdout.split(b"\0"):
            mode_type_id, _, name = entry.partition(b"\t")
            words = mode_type_id.split(b" ")
            if len(words) == 3 and words[1] == b"blob":
                files.append(TreeFile(os.fsdecode(name), words[0] == b"120000"))
        return tuple(files)

    async def locate(self, commit: str, paths: Iterable[str]) -> dict[str, Blob | Missing]:
        """Finds files at a commit, following links that stay inside of the repository.

        Git reports a file as missing too if objects of the repository are lost. That is an error.
        """
        validate_hash(commit)
        names = {path: _object_name(commit, path) for path in paths}
        responses = await self._request(self._lookup, [name for name in names.values() if name])
        blobs = iter([_parse_blob(response) for response in responses])
        located = {
            path: next(blobs) if name else Missing("is not a path inside of the repository")
            for path, name in names.items()
        }
        for path, blob in located.items():
            if isinstance(blob, Missing) and blob.is_absent:
                entry = await self.entry(commit, path)
                if entry is not None and entry.is_file:
                    self.is_suspect = True
                    raise Unavailable(f"git could not read {path} from {self._git.directory}")
        return located

    async def read(self, blobs: Iterable[Blob]) -> dict[str, bytes]:
        """Returns the contents of located files, by the id of the blob."""
        contents = {blob.id: self._small_files.get(blob.id) for blob in blobs}
        missing = [id_ for id_, content in contents.items() if content is None]
        responses = await self._request(self._contents, [id_.encode() for id_ in missing])
        for id_, response in zip(missing, responses, strict=True):
            if response.kind != b"blob":
                self.is_suspect = True
                line = b" ".join(response.words).decode("utf-8", "replace")
                raise Unavailable(f"git could not read files from {self._git.directory}: {line}")
            contents[id_] = response.content
            if len(response.content) <= _MAX_CACHED_FILE:
                self._small_files.put(id_, response.content)
        return {id_: content or b"" for id_, content in contents.items()}

    async def read_file(self, commit: str, path: str) -> bytes:
        """Returns the content of one file at a commit."""
        blob = (await self.locate(commit, [path]))[path]
        if isinstance(blob, Missing):
            raise NotFound(f"{path} {blob.reason} at commit {commit[:7]}")
        return (await self.read([blob]))[blob.id]

    async def sizes(self, ids: Sequence[str]) -> dict[str, Blob | Missing]:
        """Returns the sizes of files, by the id of the blob."""
        cached = {id_: self._small_files.get(id_) for id_ in ids}
        missing = [id_ for id_, content in cached.items() if content is None]
        responses = await self._request(self._lookup, [id_.encode() for id_ in missing])
        read = {id_: _parse_blob(each) for id_, each in zip(missing, responses, strict=True)}
        return {
            id_: read[id_] if content is None else Blob(id_, len(content))
            for id_, content in cached.items()
        }

    async def git_config(self, commit: str, path: str) -> list[tuple[str, str]]:
        """Returns the keys and values of a file in the format of git's own configuration."""
        done = await self._git.run(
            "config", "--blob", f"{validate_hash(commit)}:{path}", "--null", "--list"
        )
        if done.code:
            raise self._error(done, UserMistake(f"{path} cannot be parsed: {_cause(done)}"))
        pairs = (os.fsdecode(each).partition("\n") for each in done.stdout.split(b"\0") if each)
        return [(key, value) for key, _, value in pairs]

    def _error(self, done: Captured, otherwise: PipecdError, *commits: str) -> PipecdError:
        """Returns `otherwise`, or that the repository is corrupt if the commits must be there."""
        cause = done.stderr.decode("utf-8", "replace")
        must_exist = all(each.startswith("refs/") or self.was_read(each) for each in commits)
        # An object that was never fetched is a bad one too.
        is_damaged = is_corrupt(cause) and "bad object" not in cause
        if is_damaged or (commits and must_exist):
            self.is_suspect = True
            return Unavailable(f"git cannot read {self._git.directory}: {_cause(done)}")
        return otherwise

    async def _request(self, process: "CatFile", names: Sequence[bytes]) -> "list[CatFileResponse]":
        try:
            return await process.request(names)
        except Unavailable as e:
            self.is_suspect |= is_corrupt(e.message)
            raise


@dataclass(frozen=True)
class CatFileResponse:
    """The line that `git cat-file` printed for one name, and the content if there was one."""

    words: tuple[bytes, ...]
    content: bytes = b""
    # The object is larger than any that is read; its content was skipped.
    is_too_large: bool = False

    @property
    def kind(self) -> bytes:
        """The type of the object, or an empty string when there is none."""
        return self.words[1] if len(self.words) == 3 else b""


class CatFile:
    """`git cat-file` in a batch mode, started on the first request and ended when idle."""

    def __init__(self, command: GitCommand, *options: str) -> None:
        self._git, self._options = command, options
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._idle_timer: asyncio.TimerHandle | None = None

    async def request(self, names: Iterable[bytes]) -> list[CatFileResponse]:
        """Returns the response to each name, in their order; no name may contain a line break."""
        requested = list(names)
        if not requested:
            return []
        async with self._lock:
            process = await self._started()
            try:
                async with asyncio.timeout(_RESPONSE_TIMEOUT):
                    responses = await self._exchange(process, requested)
            except (EOFError, OSError, ValueError, TimeoutError) as e:
                raise await self._failure(process) from e
            except BaseException:
                # The next request must not read the remaining responses to this one.
                await self._end()
                raise
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(_IDLE_SECONDS, self._end_idle)
            return responses

    async def close(self) -> None:
        """Ends the process; the next request starts another one."""
        async with self._lock:
            await self._end()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            self._process = await group.start(
                ["git", "cat-file", *self._options],
                cwd=Path("/"),
                env=self._git.variables(),
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
            )
        return self._process

    async def _exchange(
        self, process: asyncio.subprocess.Process, names: list[bytes]
    ) -> list[CatFileResponse]:
        if process.stdin is None or process.stdout is None:
            raise EOFError
        # Not drained: git reads on only after its responses are read.
        process.stdin.write(b"".join(name + b"\n" for name in names))
        has_content = "--batch" in self._options
        return [await _read_response(process.stdout, has_content) for _ in names]

    async def _failure(self, process: asyncio.subprocess.Process) -> PipecdError:
        stderr = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                stderr = await process.stderr.read(_STDERR_LIMIT) if process.stderr else b""
        await self._end()
        cause = stderr.decode("utf-8", "replace").strip() or "git cat-file ended without a message"
        return Unavailable(f"git cannot read {self._git.directory}: {cause}")

    def _end_idle(self) -> None:
        # The process ends with its input; a request that comes now starts another one.
        if self._process is not None and not self._lock.locked() and self._process.stdin:
            self._process.stdin.close()
            self._process = None

    async def _end(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        if self._process is not None:
            process, self._process = self._process, None
            await group.end(process, grace=1)
            if process.stdout is not None:
                # Reading to the end closes the pipe before the event loop may be closed.
                await process.stdout.read()


async def _read_response(reader: asyncio.StreamReader, has_content: bool) -> CatFileResponse:
    line = await reader.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    words = tuple(line[:-1].split(b" "))
    size = b""
    if len(words) == 2 and words[0] in _LINK_PROBLEMS:
        # The target of a broken link follows, as long as the second word says.
        size = words[1]
    elif has_content and len(words) == 3 and words[2].isdigit():
        size = words[2]
    length = int(size) + 1 if size else 0
    if length <= _TREE_LIMIT + 1:
        return CatFileResponse(words, (await reader.readexactly(length))[:-1])
    while length:
        length -= len(await reader.readexactly(min(length, _SMALL_TREE)))
    return CatFileResponse(words, is_too_large=True)


def _parse_response(tree: CatFileResponse) -> tuple[TreeEntry, ...]:
    return tuple(parse_tree(tree.content, len(tree.words[0]) // 2))


def _object_name(commit: str, path: str) -> bytes | None:
    try:
        clean = validate_path(path)
    except UserMistake:
        return None
    # Requests to git cat-file are lines, so a path must not contain a line break.
    return None if "\n" in clean else os.fsencode(f"{commit}:{clean}")


def _parse_blob(response: CatFileResponse) -> Blob | Missing:
    words = response.words
    if words[0] in _LINK_PROBLEMS and len(words) == 2:
        return Missing(_LINK_PROBLEMS[words[0]])
    if response.kind == b"tree":
        return Missing("is a directory")
    if response.kind != b"blob" or not words[2].isdigit():
        return Missing(_ABSENT)
    if int(words[2]) > FILE_LIMIT:
        return Missing(f"is larger than {FILE_LIMIT // 1024 // 1024} MiB")
    return Blob(words[0].decode(), int(words[2]))


def _cause(done: Captured) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else f"exit code {done.code}"
