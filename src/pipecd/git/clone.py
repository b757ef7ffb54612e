# SPDX-License-Identifier: Apache-2.0
"""A bare clone of a remote repository on the local disk, which is cloned again when corrupt."""

import asyncio
import shutil
import time
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import structlog

from pipecd.git.command import REMOTE_TIMEOUT, GitCommand
from pipecd.git.errors import is_corrupt
from pipecd.git.objects import Objects
from pipecd.git.validate import validate_hash
from pipecd.model.errors import NotFound, PipecdError, Unavailable
from pipecd.program.run import Captured

log: structlog.stdlib.BoundLogger = structlog.get_logger()

ALL_BRANCHES = "+refs/heads/*:refs/heads/*"

_REPACK_AFTER_FETCHES = 100
_UNUSED_SECONDS = 30 * 24 * 3600


class CorruptClone(Unavailable):
    """Objects of the local clone are missing or unreadable."""


class Clone:
    """A bare clone of one repository; `refspec` says which branches it fetches."""

    def __init__(self, command: GitCommand, *, refspec: str = ALL_BRANCHES) -> None:
        self.command, self.objects = command, Objects(command)
        # Counts how often the clone was created, so that callers notice a new one.
        self.generation = 0
        self._refspec = refspec
        self._lock = asyncio.Lock()
        self._is_ready = False
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
            if not self._is_ready or self.objects.is_suspect:
                await asyncio.to_thread(_remove_leftovers, self.directory)
                has_head = await asyncio.to_thread((self.directory / "HEAD").is_file)
                if self.objects.is_suspect:
                    log.warning("local clone is corrupt, cloning again", **self._log_fields)
                    await self._create()
                elif not has_head or (await self.command.run("rev-parse", "--git-dir")).code:
                    await self._create()
                await asyncio.to_thread(self.directory.touch)
                self._is_ready = True
            yield

    async def ensure_commit(self, commit: str) -> None:
        """Fetches a commit unless it is there, even one that no branch contains any more."""
        validate_hash(commit)
        if await self.is_available(commit):
            return
        async with self.locked():
            if await self.objects.has_commit(commit):
                return
            await self.fetch(self._refspec)
            if await self.objects.has_commit(commit):
                return
            try:
                await self.fetch(commit)
            except PipecdError as e:
                raise NotFound(
                    f"commit {commit} is not in {self.command.display_name}",
                    hint="it may have been removed by a force push; deploy a newer commit",
                ) from e

    async def is_available(self, commit: str) -> bool:
        """Whether a commit can be read now, without fetching or cloning again."""
        try:
            is_usable = self._is_ready and not self.objects.is_suspect
            return is_usable and await self.objects.has_commit(commit)
        except PipecdError:
            # Another task may be cloning again at this moment.
            return False

    async def fetch(self, refspec: str = "") -> None:
        """Fetches a ref or commit, by default the configured branches; call it within `locked`."""
        done = await self.try_fetch(refspec or self._refspec)
        if done.code and is_corrupt(done.stderr.decode("utf-8", "replace")):
            log.warning("local clone is corrupt, cloning again", **self._log_fields)
            await self._create()
            done = await self.try_fetch(refspec or self._refspec)
        if done.code:
            # An incomplete pack may fill the very disk that was too small for it.
            await asyncio.to_thread(_remove_leftovers, self.directory)
            raise self.command.error(done)
        self._fetches += 1

    async def try_fetch(self, refspec: str) -> Captured:
        """Fetches once and returns how that ended; call it within `locked`."""
        return await self.command.run_remote(
            *("fetch", "--quiet", "--no-tags", "--force", "origin", refspec)
        )

    async def recover(self, generation: int, error: PipecdError) -> bool:
        """Clones again after a corruption; says whether the clone is newer than `generation`.

        Many tasks may run into the corruption at once: one of them clones again, and the others
        may fail with any error in the meantime.
        """
        async with self._lock:
            if generation == self.generation and isinstance(error, CorruptClone):
                log.warning(
                    "local clone is corrupt, cloning again", error=str(error), **self._log_fields
                )
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
            log.info("local clone was not repacked", error=stderr, **self._log_fields)

    async def _create(self) -> None:
        self.generation, self._is_ready = self.generation + 1, False
        self.objects.is_suspect = False
        await self.close()
        await asyncio.to_thread(_make_empty, self.directory)
        await self.command.output("init", "--quiet", "--bare", "--template=", str(self.directory))
        self._is_ready = True

    @property
    def _log_fields(self) -> dict[str, str]:
        return {"repository": self.command.repository_id}


def unused(paths: Iterable[Path]) -> Iterator[Path]:
    """Returns the paths that no working copy has needed for a month."""
    oldest = time.time() - _UNUSED_SECONDS
    return (path for path in paths if path.stat().st_mtime < oldest)


def _make_empty(directory: Path) -> None:
    # Moved aside first, because a git process may still be writing to the old directory.
    aside = directory.with_name(f"{directory.name}.{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        directory.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)


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
