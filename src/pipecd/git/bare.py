# SPDX-License-Identifier: Apache-2.0
"""One bare copy of a remote repository on this disk, which mends itself."""

import asyncio
import re
import shutil
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from pipecd.git.access import GitEnvironment
from pipecd.git.contained.lfs import LargeFiles, forget_unused
from pipecd.git.contained.submodule import submodules
from pipecd.git.failure import explain, is_damaged, is_missing
from pipecd.git.objects import Objects, inside
from pipecd.git.remote.address import without_secrets
from pipecd.model.errors import NotFound, PipecdError, Unavailable
from pipecd.program.capture import Captured, capture

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The first fetch of a large repository takes its time.
_FETCH_AT_MOST = 1800.0
_WRITE_AT_MOST = 600.0
_TIDY_AFTER = 100
_HASH = re.compile(r"[0-9a-fA-F]{4,64}")
_ALL_BRANCHES = "+refs/heads/*:refs/heads/*"


class BareCopy(Objects):
    """A bare copy of one repository; `modules` gives the copy of a submodule by its address."""

    def __init__(
        self,
        name: str,
        remote: str,
        *,
        directory: Path,
        environment: GitEnvironment,
        modules: "Callable[[str], BareCopy]",
    ) -> None:
        super().__init__(directory, environment)
        self._id, self._remote, self._modules = name, remote, modules
        self._lock = asyncio.Lock()
        self._is_ready = False
        self._fetches = 0
        self._made = 0

    @property
    def name(self) -> str:
        """What to call the repository before people."""
        return f"repository {self._id!r} ({without_secrets(self._remote)})"

    @property
    def _refspec(self) -> str:
        return _ALL_BRANCHES

    async def ensure(self, commit: str) -> None:
        """Makes sure that a commit is here, also one that the branch no longer contains."""
        check_hash(commit)
        if await self._is_here(commit):
            return
        async with self._lock:
            await self._prepare()
            if await self.has(commit):
                return
            await self._fetch(self._refspec)
            if await self.has(commit):
                return
            try:
                await self._fetch(commit)
            except PipecdError as e:
                raise NotFound(
                    f"commit {commit} is not in {self.name}",
                    hint="it may have been removed by a force push; deploy a newer commit",
                ) from e

    async def materialise(self, commit: str, into: Path, *, paths: Sequence[str] = ()) -> None:
        """Writes some paths of a commit, or all of it, into a directory, as `git clone` would."""
        await self.checkout(commit, into, paths=paths)
        await self.complete(commit, into, paths=paths)

    async def checkout(
        self, commit: str, into: Path, *, paths: Sequence[str] = (), index: Path | None = None
    ) -> None:
        """Writes files of a commit as git stores them; with an index of before, what differs.

        A copy that turns out to be damaged is made anew, once.
        """
        made = self._made
        try:
            await self._checkout(commit, into, paths, index)
        except PipecdError as e:
            if not await self._mend(made, e):
                raise
            await self.ensure(commit)
            await self._checkout(commit, into, paths, index)

    async def complete(self, commit: str, into: Path, *, paths: Sequence[str] = ()) -> None:
        """Puts the submodules and the files of Git LFS into what was checked out.

        Of a whole commit nobody may need those, so there they are left out with a warning when
        they cannot be had.
        """
        env = self._environment.of(self._remote)
        large_files = LargeFiles(self.name, self.directory, env)
        for add in (self._add_submodules, large_files.put):
            try:
                await add(commit, into, paths=paths)
            except PipecdError as e:
                if paths:
                    raise
                log.warning("part of a commit is missing", repository=self._id, error=str(e))

    async def lend_history(self, commit: str, into: Path) -> None:
        """Lets git commands in a working copy ask for its commit and for what came before.

        There is no index: what is not in the working copy would look deleted.
        """
        await asyncio.to_thread(_write_history, self.directory, commit, into / ".git")

    async def _checkout(
        self, commit: str, into: Path, paths: Sequence[str], index: Path | None
    ) -> None:
        with self._index(index) as used:
            variables = {"GIT_WORK_TREE": str(into), "GIT_INDEX_FILE": str(used)}
            command, stdin = ["read-tree", "--reset", "-u", commit], b""
            if paths:
                command = ["checkout", "-q", "-f", commit, *_FROM_STDIN]
                stdin = b"\0".join(_encoded(path) for path in paths)
                variables["GIT_LITERAL_PATHSPECS"] = "1"
            done = await self._git(
                *command, cwd=into, stdin=stdin, variables=variables, at_most=_WRITE_AT_MOST
            )
        if done.code:
            raise self._unwritten(commit, done)

    async def tidy(self) -> None:
        """Packs what many small fetches left; nothing is ever thrown away.

        A running deployment may need a commit that a force push has cut off.
        """
        if self._fetches < _TIDY_AFTER:
            return
        self._fetches = 0
        done = await self._git("repack", "-d", "-q", "--geometric=2", at_most=_FETCH_AT_MOST)
        if done.code:
            log.info("local copy was not packed", repository=self._id, error=_said(done).strip())

    async def _add_submodules(self, commit: str, into: Path, *, paths: Sequence[str]) -> None:
        for module in await submodules(self, commit, remote=self._remote, paths=paths):
            copy = self._modules(module.remote)
            await copy.ensure(module.commit)
            place = into / module.path
            await asyncio.to_thread(place.mkdir, parents=True, exist_ok=True)
            await copy.materialise(module.commit, place, paths=module.paths)

    async def _mend(self, made: int, error: PipecdError) -> bool:
        """Whether the copy is another one now than that which failed.

        Many may find the damage at the same time; one of them mends it, and what the others meet
        in the meantime can be anything.
        """
        async with self._lock:
            if made == self._made and isinstance(error, DamagedCopy):
                log.warning("local copy is damaged, made anew", repository=self._id, error=error)
                await self._create()
            return made != self._made

    async def _is_here(self, commit: str) -> bool:
        """Whether a commit can be read without further ado."""
        try:
            return self._is_ready and not self._is_doubted and await self.has(commit)
        except PipecdError:
            # The copy may be made anew in this very moment.
            return False

    async def _prepare(self) -> None:
        """Creates the copy, takes over the one of an earlier run, or replaces a damaged one."""
        if self._is_ready and not self._is_doubted:
            return
        await asyncio.to_thread(_remove_leftovers, self.directory)
        if self._is_doubted:
            log.warning("local copy is damaged, made anew", repository=self._id)
        if self._is_doubted or not await self._is_sound():
            await self._create()
        await asyncio.to_thread(self.directory.touch)
        self._is_ready = True

    async def _is_sound(self) -> bool:
        if not await asyncio.to_thread((self.directory / "HEAD").is_file):
            return False
        return (await self._git("rev-parse", "--git-dir")).code == 0

    async def _create(self) -> None:
        self._made, self._is_doubted, self._is_ready = self._made + 1, False, False
        await self.close()
        await asyncio.to_thread(_make_empty, self.directory)
        done = await self._git("init", "--quiet", "--bare", "--template=", str(self.directory))
        if done.code:
            raise self._failure(done)
        self._is_ready = True

    async def _fetch(self, refspec: str) -> None:
        done = await self._try_fetch(refspec)
        if done.code and is_damaged(_said(done)):
            log.warning("local copy is damaged, made anew", repository=self._id)
            await self._create()
            done = await self._try_fetch(refspec)
        if done.code:
            # Half of a pack may fill the very disk that was too small for it.
            await asyncio.to_thread(_remove_leftovers, self.directory)
            raise self._failure(done)
        self._fetches += 1

    async def _try_fetch(self, refspec: str) -> Captured:
        return await self._remotely("fetch", "--quiet", "--no-tags", "--force", "origin", refspec)

    async def _remotely(self, *arguments: str) -> Captured:
        """A command that talks to the remote, with everything it needs to be let in."""
        return await capture(
            ["git", *arguments],
            cwd=self.directory,
            env=self._environment.of(self._remote) | {"GIT_DIR": str(self.directory)},
            at_most=_FETCH_AT_MOST,
        )

    def _failure(self, done: Captured) -> PipecdError:
        return explain(_said(done), repository=self._id, remote=self._remote)

    def _unwritten(self, commit: str, done: Captured) -> PipecdError:
        said = _said(done)
        first = said.strip().partition("\n")[0].removeprefix("fatal: ").removeprefix("error: ")
        if is_missing(said):
            return NotFound(f"commit {commit} or a path in it was not found ({first})")
        if is_damaged(said):
            return DamagedCopy(f"the copy of {self.name} is damaged ({first})")
        return self._failure(done)

    @contextmanager
    def _index(self, given: Path | None) -> Generator[Path]:
        if given is not None:
            yield given
            return
        index = self.directory / f"index-{uuid.uuid4().hex}"
        try:
            yield index
        finally:
            index.unlink(missing_ok=True)
            index.with_name(f"{index.name}.lock").unlink(missing_ok=True)


class DamagedCopy(Unavailable):
    """Objects of the local copy are missing or broken."""


def check_hash(text: str) -> None:
    """Refuses what is not the hash of a commit, or the beginning of one."""
    if not _HASH.fullmatch(text):
        raise NotFound(f"{text!r} is not the hash of a commit")


_FROM_STDIN = ("--pathspec-from-file=-", "--pathspec-file-nul")


def _write_history(repository: Path, commit: str, directory: Path) -> None:
    for name in ("objects/info", "refs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "HEAD").write_text(f"{commit}\n")
    (directory / "config").write_text("[core]\n\trepositoryFormatVersion = 0\n\tbare = false\n")
    (directory / "objects" / "info" / "alternates").write_text(f"{repository / 'objects'}\n")


def _encoded(path: str) -> bytes:
    return inside(path).encode("utf-8", "surrogateescape")


def _said(done: Captured) -> str:
    return done.stderr.decode("utf-8", "replace")


def _make_empty(directory: Path) -> None:
    # Moved away first: somebody may still be writing where there is soon another copy.
    aside = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        directory.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _remove_leftovers(directory: Path) -> None:
    """Removes what a killed run left: git refuses to work beside a lock, whoever holds it."""
    if not directory.is_dir():
        return
    locks = directory.rglob("*.lock")
    half = (*directory.glob("objects/pack/tmp_*"), *directory.glob("objects/??/tmp_obj_*"))
    for file in (*locks, *half, *directory.glob("index-*")):
        file.unlink(missing_ok=True)
    for incoming in directory.glob("objects/tmp_objdir-*"):
        shutil.rmtree(incoming, ignore_errors=True)
    forget_unused(directory)
