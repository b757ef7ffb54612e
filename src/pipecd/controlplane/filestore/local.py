# SPDX-License-Identifier: Apache-2.0
"""Objects as files in a local directory."""

import asyncio
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from pipecd.controlplane.filestore import (
    TEMPORARY_DIRECTORY,
    VersionedFile,
    changed_file,
    check_path,
    check_prefix,
    missing_file,
)
from pipecd.model.errors import Conflict, PipecdError, StorageUnavailable, UserMistake
from pipecd.program.atomic_write import write_private
from pipecd.program.threads import wait_until_done

T = TypeVar("T")

_LOCK_TIMEOUT, _LOCK_RETRY_INTERVAL = 10.0, 0.02


class LocalFiles:
    """A bucket in a local directory; `LocalFiles.open` checks that it is writable."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._temporary = root / TEMPORARY_DIRECTORY

    @classmethod
    async def open(cls, root: Path) -> "LocalFiles":
        """Opens the bucket in `root`; creates the directory if it is missing."""
        temporary = root / TEMPORARY_DIRECTORY

        def prepare() -> None:
            try:
                # A killed process may have left incomplete files.
                shutil.rmtree(temporary, ignore_errors=True)
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                temporary.mkdir(mode=0o700, exist_ok=True)
                (temporary / "probe").write_bytes(b"")
                (temporary / "probe").unlink()
            except OSError as e:
                raise UserMistake(
                    f"the directory {root} cannot be created or written: {e.strerror}",
                    hint="make it writable for this user, or choose another path for the filestore",
                ) from e

        await _run_in_thread(prepare)
        return cls(root)

    async def get(self, path: str) -> bytes:
        check_path(path)

        def read() -> bytes:
            try:
                return (self._root / path).read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
                raise missing_file(path) from e
            except OSError as e:
                raise _file_error(path, e) from e

        return await _run_in_thread(read)

    async def put(self, path: str, content: bytes) -> None:
        check_path(path)
        file = self._root / path

        def write() -> None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_private(file, content, scratch=self._temporary / uuid4().hex)
            except OSError as e:
                raise _file_error(path, e) from e

        await _run_in_thread(write)

    async def get_versioned(self, path: str) -> VersionedFile:
        content = await self.get(path)
        return VersionedFile(content, _version(content))

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        check_path(path)
        file = self._root / path

        def write() -> None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with _locked(file.parent):
                    current = _version(file.read_bytes()) if file.exists() else ""
                    if current != version:
                        raise changed_file(path)
                    write_private(file, content, scratch=self._temporary / uuid4().hex)
            except OSError as e:
                raise _file_error(path, e) from e

        await _run_in_thread(write)

    async def delete(self, path: str) -> None:
        check_path(path)
        file = self._root / path

        def unlink() -> None:
            try:
                file.unlink(missing_ok=True)
            except (IsADirectoryError, NotADirectoryError, PermissionError) as e:
                if file.is_file():
                    raise _file_error(path, e) from e
            except OSError as e:
                raise _file_error(path, e) from e

        await _run_in_thread(unlink)

    async def list(self, prefix: str) -> tuple[str, ...]:
        check_prefix(prefix)
        return await _run_in_thread(lambda: tuple(sorted(self._walk(prefix))))

    def _walk(self, prefix: str) -> Iterator[str]:
        for directory, names, files in os.walk(self._root / prefix.rpartition("/")[0]):
            if Path(directory) == self._root and TEMPORARY_DIRECTORY in names:
                names.remove(TEMPORARY_DIRECTORY)
            for name in files:
                path = (Path(directory) / name).relative_to(self._root).as_posix()
                if path.startswith(prefix):
                    yield path


def _version(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


@contextmanager
def _locked(directory: Path) -> Generator[None]:
    """Locks a directory among the processes of this machine, for a comparison and a write."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # The other process may be suspended.
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOCK_RETRY_INTERVAL)
            except OSError:
                # Some network file systems have no such locks; then only the comparison is left.
                break
            else:
                break
        yield
    finally:
        os.close(descriptor)


def _file_error(path: str, error: OSError) -> PipecdError:
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        return Conflict(f"{path} cannot be a file and a directory at once")
    return StorageUnavailable(
        f"the file {path} cannot be read or written: {error.strerror}",
        hint="check the disk of the filestore and the permissions of its directory",
    )


async def _run_in_thread(call: Callable[[], T]) -> T:
    return await wait_until_done(asyncio.ensure_future(asyncio.to_thread(call)))
