# SPDX-License-Identifier: Apache-2.0
"""The working copies of one deployment: their secrets are masked, unmodified ones are reused."""

import asyncio
import errno
import hashlib
import os
import shutil
import stat
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.model.errors import PipecdError
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.source.sources import Source, Sources
from pipecd.proto.model.common_pb2 import ApplicationGitPath

# With less free space than this, in bytes, a failed checkout is reported as a full disk.
_MIN_FREE_SPACE = 64 * 1024
# File systems stamp changes with a clock that ticks every few milliseconds. A file that was
# changed so shortly before a snapshot could be changed again within the same tick.
_CLOCK_TICK_NS = 50_000_000


@dataclass(frozen=True)
class _FileState:
    """The attributes of a file that change with every write to it."""

    mode: int
    inode: int
    size: int
    modified: int
    changed: int
    digest: bytes = b""
    """Of a file that was changed just before the snapshot, whose times prove nothing."""


class Snapshot:
    """The state of all files of a directory, to check later whether any was modified."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = self._read(digest_since=time.time_ns() - _CLOCK_TICK_NS)

    def is_unmodified(self) -> bool:
        """Returns whether every file and directory is as it was, and none was added."""
        try:
            return self._read(digest_since=None) == self._files
        except OSError:
            return False

    def _read(self, *, digest_since: int | None) -> dict[str, _FileState]:
        files: dict[str, _FileState] = {}
        for directory, names, file_names in os.walk(self._directory):
            for name in ("", *names, *file_names):
                path = os.path.join(directory, name)  # noqa: PTH118 - thousands of paths
                status = os.lstat(path)
                is_file = stat.S_ISREG(status.st_mode)
                if digest_since is None:
                    is_digested = path in self._files and bool(self._files[path].digest)
                else:
                    is_digested = status.st_ctime_ns >= digest_since
                files[path] = _FileState(
                    status.st_mode,
                    status.st_ino,
                    status.st_size if is_file else 0,
                    status.st_mtime_ns,
                    # A new hard link to a shared file changes its ctime, but not its content.
                    0 if is_file and status.st_nlink > 1 else status.st_ctime_ns,
                    _digest(path) if is_file and is_digested else b"",
                )
        return files


def _digest(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return hashlib.file_digest(file, "blake2b").digest()


@dataclass(frozen=True)
class _WorkingCopy:
    source: Source
    config_filename: str
    snapshot: Snapshot


@dataclass(frozen=True)
class DeploymentSources:
    """Creates the working copies of one deployment, and masks their secrets in all its output.

    The plan and the stages of a deployment run one after the other. Each of them gets the copy of
    the one before it, unless that modified it.
    """

    sources: Sources
    masks: SecretMasks
    deployment_id: str
    copying: AbstractAsyncContextManager[Any]
    """Entered while a copy is created, which limits how many are created at once."""
    _copies: dict[str, _WorkingCopy] = field(
        init=False, repr=False, default_factory=dict[str, _WorkingCopy]
    )
    """The copies that may be reused, by name."""

    async def at(
        self,
        git_path: ApplicationGitPath,
        commit: str,
        *,
        config_filename: str = "",
        into: Path,
        name: str,
    ) -> Source:
        """Returns the copy `name` of a commit; creates it in `into / name` if necessary."""
        before = self._copies.pop(name, None)
        if before is not None:
            is_same = (before.source.commit, before.config_filename) == (commit, config_filename)
            if is_same and await asyncio.to_thread(before.snapshot.is_unmodified):
                self._copies[name] = before
                return before.source
            await _remove(before)
        source = await self._create(git_path, commit, config_filename, into / name)
        snapshot = await asyncio.to_thread(Snapshot, source.directory)
        self._copies[name] = _WorkingCopy(source, config_filename, snapshot)
        return source

    async def discard(self) -> None:
        """Removes all copies: a program may still write to them, or they are not needed."""
        copies = tuple(self._copies.values())
        self._copies.clear()
        if copies:
            await _remove(*copies)

    async def _create(
        self, git_path: ApplicationGitPath, commit: str, config_filename: str, into: Path
    ) -> Source:
        try:
            async with self.copying:
                source = await self.sources.at(
                    git_path, commit, config_filename=config_filename, into=into
                )
        except PipecdError as e:
            # Git names the file that it could not write, but not the cause.
            if await asyncio.to_thread(_is_disk_full, into):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(into)) from e
            raise
        if source.secrets:
            # A long secret has many forms to mask.
            await asyncio.to_thread(self.masks.add, self.deployment_id, source.secrets)
        return source


async def _remove(*copies: _WorkingCopy) -> None:
    def remove() -> None:
        for copy in copies:
            shutil.rmtree(copy.source.directory, ignore_errors=True)

    await asyncio.to_thread(remove)


def _is_disk_full(directory: Path) -> bool:
    while not directory.exists():
        directory = directory.parent
    return shutil.disk_usage(directory).free < _MIN_FREE_SPACE
