# SPDX-License-Identifier: Apache-2.0
"""A bare clone of a remote repository on the local disk.

Its directory may be removed or damaged at any time. That is noticed before the clone is used, or
when git fails on it, and the repository is cloned again.
"""

import asyncio
import os
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from stat import S_ISREG

import structlog

from pipecd.git.command import REMOTE_TIMEOUT, GitCommand
from pipecd.git.errors import DiskFull, Unfinished, is_corrupt
from pipecd.git.objects import Objects
from pipecd.git.tree_limits import TreeLimits
from pipecd.git.validate import validate_hash
from pipecd.model.errors import NotFound, PipecdError, Unavailable
from pipecd.program.run import Captured

log: structlog.stdlib.BoundLogger = structlog.get_logger()

ALL_BRANCHES = "+refs/heads/*:refs/heads/*"
# What the directory of a clone is called until it is complete.
NEW_SUFFIX = ".new"
_FETCH = ("fetch", "--quiet", "--no-tags", "--force", "origin")
_Signature = tuple[tuple[int, int, int] | None, ...]

_REPACK_AFTER_FETCHES = 100
_UNUSED_SECONDS = 30 * 24 * 3600


class CorruptClone(Unavailable):
    """Objects of the local clone are missing or unreadable."""


class Clone:
    """A bare clone of one repository; `refspec` says which branches it fetches."""

    def __init__(
        self,
        command: GitCommand,
        *,
        refspec: str = ALL_BRANCHES,
        limits: TreeLimits | None = None,
    ) -> None:
        self.command, self.objects = command, Objects(command, limits)
        # Counts how often the clone was created, so that callers notice a new one.
        self.generation = 0
        self._refspec = refspec
        self._lock = asyncio.Lock()
        # The files that no git command changes, as they were when the clone was last checked.
        self._signature: _Signature | None = None
        self._fetches = 0

    @property
    def directory(self) -> Path:
        return self.command.directory

    async def close(self) -> None:
        """Ends the git processes that read from the clone."""
        await self.objects.close()

    @asynccontextmanager
    async def locked(self) -> AsyncGenerator[None]:
        """Holds the lock of the clone, which exists then and is not known to be corrupt.

        Creates the clone, reuses the one of an earlier process, or replaces a corrupt one.
        """
        async with self._lock:
            if self._signature is None:
                await asyncio.to_thread(_remove_leftovers, self.directory)
            if self._signature is None or self.is_damaged():
                if self.objects.is_suspect or not await self.is_usable():
                    if self._signature is not None:
                        self._warn("files are missing or unreadable")
                    await self._create()
                self._signature = await asyncio.to_thread(_signature, self.directory)
                with suppress(OSError):
                    await asyncio.to_thread(self.directory.touch)
            yield

    def is_damaged(self) -> bool:
        """Whether files that git does not change are other ones, or objects could not be read."""
        # A few attributes of files, which are read faster than a thread is woken.
        return self.objects.is_suspect or _signature(self.directory) != self._signature

    async def is_usable(self) -> bool:
        """Whether git accepts the directory as a bare repository."""
        done = await self.command.run("rev-parse", "--is-bare-repository")
        if done.code and await self.command.restore_files():
            done = await self.command.run("rev-parse", "--is-bare-repository")
        return done.code == 0 and done.stdout.strip() == b"true"

    async def ensure_commit(self, commit: str) -> None:
        """Fetches a commit unless it is there, even one that no branch contains any more."""
        validate_hash(commit)
        if self.objects.has_just_had(commit) or await self.is_available(commit):
            return
        async with self.locked():
            if await self.objects.has_commit(commit):
                return
            await self.fetch(self._refspec)
            if await self.objects.has_commit(commit):
                return
            try:
                await self.fetch(commit)
            except Unfinished:
                raise
            except PipecdError as e:
                # Raises the cause if the repository became unavailable meanwhile.
                await self.fetch(self._refspec)
                raise NotFound(
                    f"commit {commit} is not in {self.command.display_name}",
                    hint="it may have been removed by a force push; deploy a newer commit",
                ) from e

    async def is_available(self, commit: str) -> bool:
        """Whether a commit can be read now, without fetching or cloning again."""
        try:
            return not self.is_damaged() and await self.objects.has_commit(commit)
        except PipecdError:
            # Another task may be cloning again at this moment.
            return False

    async def fetch(self, refspec: str = "") -> None:
        """Fetches a ref or commit, by default the configured branches; call it within `locked`."""
        done = await self.try_fetch(refspec or self._refspec)
        if done.code:
            error = self.command.error(done)
            if is_corrupt(done.stderr.decode("utf-8", "replace")) or not await self.is_usable():
                self._warn(str(error))
                await self._create()
                done = await self.try_fetch(refspec or self._refspec)
        if done.code:
            await asyncio.to_thread(_remove_leftovers, self.directory)
            raise self.command.error(done)
        self._fetches += 1

    async def try_fetch(self, refspec: str) -> Captured:
        """Fetches once and returns how that ended; call it within `locked`."""
        try:
            return await self.command.run_remote(*_FETCH, refspec)
        except Unfinished:
            await asyncio.to_thread(_remove_leftovers, self.directory)
            raise

    async def recover(self, generation: int, error: PipecdError) -> bool:
        """Clones again after a corruption; says whether the clone is newer than `generation`.

        Many tasks may run into the corruption at once: one of them clones again, and the others
        may fail with any error in the meantime.
        """
        async with self._lock:
            if generation == self.generation and isinstance(error, CorruptClone):
                self._warn(str(error))
                await self._create()
            return generation != self.generation

    async def repack_if_due(self) -> None:
        """Packs the objects of many small fetches; never deletes any.

        A running deployment may need a commit that a force push has cut off.
        """
        if self._fetches < _REPACK_AFTER_FETCHES:
            return
        self._fetches = 0
        done = await self.command.run(
            *("repack", "-d", "-q", "--geometric=2"), timeout_seconds=REMOTE_TIMEOUT
        )
        if done.code:
            stderr = done.stderr.decode("utf-8", "replace").strip()
            log.info(
                "local clone was not repacked", repository=self.command.repository_id, error=stderr
            )

    async def _create(self) -> None:
        """Clones into a new directory, which then replaces the old one.

        Until then readers use what is left of the old clone: an empty one would look to them like
        a repository without their files.
        """
        await self.command.restore_files()
        new = self.directory.with_name(f"{self.directory.name}{NEW_SUFFIX}")
        command = GitCommand(
            self.command.repository_id,
            self.command.remote,
            directory=new,
            environment=self.command.environment,
        )
        try:
            await asyncio.to_thread(_make_empty, new)
            await command.output("init", "--quiet", "--bare", "--template=", str(new))
            done = await command.run_remote(*_FETCH, self._refspec)
            if done.code:
                raise command.error(done)
            await asyncio.to_thread(_replace, self.directory, new)
        except DiskFull:
            # There may be room for one clone, but not for two.
            await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)
            raise
        except OSError as e:
            raise Unavailable(
                f"{self.command.display_name} could not be cloned ({e.strerror}: {e.filename})"
            ) from e
        finally:
            await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)
        self.generation += 1
        await self.objects.reopen()
        self._signature = await asyncio.to_thread(_signature, self.directory)

    def _warn(self, error: str) -> None:
        log.warning(
            "local clone is corrupt, cloning again",
            repository=self.command.repository_id,
            error=error,
        )


def _signature(directory: Path) -> _Signature:
    stats: list[tuple[int, int, int] | None] = []
    for name in ("HEAD", "config", "objects", "refs"):
        try:
            stat = os.stat(directory / name)  # noqa: PTH116  several times a second
        except OSError:
            stats.append(None)
        else:
            # Git changes the content of the directories, but does not replace them.
            modified = stat.st_mtime_ns if S_ISREG(stat.st_mode) else 0
            size = stat.st_size if S_ISREG(stat.st_mode) else 0
            stats.append((stat.st_ino, modified, size))
    return tuple(stats)


def unused(paths: Iterable[Path]) -> Iterator[Path]:
    """Returns the paths that no working copy has needed for a month."""
    oldest = time.time() - _UNUSED_SECONDS
    return (path for path in paths if path.stat().st_mtime < oldest)


def _make_empty(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


def _replace(directory: Path, new: Path) -> None:
    # Moved aside first, because a git process may still be writing to the old directory.
    aside = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        directory.rename(aside)
    new.rename(directory)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(directory: Path) -> None:
    """Removes lock files and incomplete objects of a killed process, and unused LFS objects."""
    if not directory.is_dir():
        return
    locks = directory.rglob("*.lock")
    half = (*directory.glob("objects/pack/tmp_*"), *directory.glob("objects/??/tmp_obj_*"))
    for file in (*locks, *half, *directory.glob("index-*")):
        file.unlink(missing_ok=True)
    for incoming in directory.glob("objects/tmp_objdir-*"):
        shutil.rmtree(incoming, ignore_errors=True)
    for file in unused(directory.glob("lfs/objects/??/??/*")):
        file.unlink(missing_ok=True)
