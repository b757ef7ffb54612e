# SPDX-License-Identifier: Apache-2.0
"""Objects as files under one directory."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from pipecd.controlplane.filestore.path import INCOMING, check_path, check_prefix, missing
from pipecd.controlplane.filestore.worker import finished
from pipecd.model.errors import Conflict, PipecdError, StorageUnavailable, UserMistake
from pipecd.program.atomic_write import write_private

T = TypeVar("T")


class LocalFiles:
    """A bucket in a directory of this machine; `LocalFiles.open` checks that it can be written."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / INCOMING

    @classmethod
    async def open(cls, root: Path) -> "LocalFiles":
        """The bucket in `root`, which is created when it is missing."""
        files = cls(root)
        await _in_thread(files._prepare)
        return files

    async def get(self, path: str) -> bytes:
        file = self._file(path)
        return await _in_thread(lambda: self._read(file, path))

    async def put(self, path: str, content: bytes) -> None:
        file = self._file(path)
        await _in_thread(lambda: self._write(file, path, content))

    async def delete(self, path: str) -> None:
        file = self._file(path)
        await _in_thread(lambda: self._remove(file, path))

    async def list(self, prefix: str) -> tuple[str, ...]:
        check_prefix(prefix)
        directory = prefix.rpartition("/")[0]
        top = self._file(directory) if directory else self._root
        return await _in_thread(lambda: tuple(sorted(self._walk(top, prefix))))

    def _prepare(self) -> None:
        try:
            # What a killed process left half-written is of no use to anyone.
            shutil.rmtree(self._incoming, ignore_errors=True)
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._incoming.mkdir(mode=0o700, exist_ok=True)
            (self._incoming / "probe").write_bytes(b"")
            (self._incoming / "probe").unlink()
        except OSError as e:
            raise UserMistake(
                f"the directory {self._root} cannot be created or written: {e.strerror}",
                hint="make it writable for this user, or choose another path for the filestore",
            ) from e

    def _file(self, path: str) -> Path:
        check_path(path)
        return self._root / path

    def _read(self, file: Path, path: str) -> bytes:
        try:
            return file.read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as e:
            raise missing(path) from e
        except OSError as e:
            raise _failed(path, e) from e

    def _write(self, file: Path, path: str, content: bytes) -> None:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_private(file, content, scratch=self._incoming / uuid4().hex)
        except OSError as e:
            raise _failed(path, e) from e

    def _remove(self, file: Path, path: str) -> None:
        try:
            file.unlink(missing_ok=True)
        except (IsADirectoryError, NotADirectoryError, PermissionError) as e:
            if file.is_file():
                raise _failed(path, e) from e
        except OSError as e:
            raise _failed(path, e) from e

    def _walk(self, top: Path, prefix: str) -> Iterator[str]:
        for directory, names, files in os.walk(top):
            if Path(directory) == self._root and INCOMING in names:
                names.remove(INCOMING)
            for name in files:
                path = (Path(directory) / name).relative_to(self._root).as_posix()
                if path.startswith(prefix):
                    yield path


def _failed(path: str, error: OSError) -> PipecdError:
    if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError):
        return Conflict(f"{path} cannot be a file and a directory at once")
    return StorageUnavailable(
        f"the file {path} cannot be read or written: {error.strerror}",
        hint="look at the disk of the filestore and the rights of its directory",
    )


async def _in_thread(work: Callable[[], T]) -> T:
    return await finished(asyncio.ensure_future(asyncio.to_thread(work)))
