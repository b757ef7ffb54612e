# SPDX-License-Identifier: Apache-2.0
"""Directories that `init` filled, kept for every commit that would fill them in the same way.

Terraform keeps backend, modules and providers of a working copy in its data directory. A digest of
everything that `init` reads names the directory, so `init` is skipped when nothing of it changed.
"""

import asyncio
import hashlib
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakValueDictionary

from pipecd.sdk import Source, UserMistake
from pipecd.sdk.files import read_contained

LOCK_FILE = ".terraform.lock.hcl"
_CONFIGURATION = (".tf", ".tf.json", ".tofu", ".tofu.json", ".tfvars", ".tfvars.json")
_LOCAL_MODULE = re.compile(rb'source\s*"?\s*[=:]\s*"(\.\.?/[^"]*)"')
_READY, _KEPT_LOCK = "ready.json", "terraform.lock.hcl"
_KEPT = 4


def init_digest(source: Source, files: Iterable[str], settings: object) -> str:
    """Returns the digest of everything that `init` reads.

    This is the configuration with its local modules, the lock file, files that flags name, and
    `settings`, which are plain values. What lies outside of the repository is not read, and makes
    every digest another one.
    """
    directory = source.application_directory
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    named = (directory / file for file in (LOCK_FILE, *files))
    for path, content in _contents(source.working_copy, directory, named):
        name = os.path.relpath(path, directory)
        digest.update(f"\0{name}\0{len(content)}\0".encode(errors="surrogateescape"))
        digest.update(content)
    return digest.hexdigest()[:32]


def _contents(root: Path, directory: Path, named: Iterable[Path]) -> Iterator[tuple[Path, bytes]]:
    """Yields the files of the configuration and of its local modules, and the named ones."""
    queue, visited = [directory], set[Path]()
    while queue:
        module = queue.pop(0).resolve()
        if module in visited or not module.is_dir():
            continue
        visited.add(module)
        for path in sorted(module.iterdir()):
            if path.name.endswith(_CONFIGURATION) and path.is_file():
                content = _content(root, path)
                yield path, content
                for match in _LOCAL_MODULE.finditer(content):
                    queue.append(module / os.fsdecode(match[1]))
    for path in named:
        if path.is_file():
            yield path, _content(root, path)


def _content(root: Path, path: Path) -> bytes:
    try:
        return read_contained(root, path)
    except UserMistake:
        return os.urandom(16)


@dataclass(frozen=True)
class DataDirectory:
    """A data directory; `is_pinned` means that another `init` would choose the same versions."""

    path: Path
    is_pinned: bool = True

    @property
    def data(self) -> Path:
        """The directory for TF_DATA_DIR."""
        return self.path / "data"

    def has_backend(self) -> bool:
        """Reports whether the configuration has a backend or stores its state in HCP Terraform."""
        return (self.data / "terraform.tfstate").is_file()

    def keep_lock(self, working_copy: Path) -> None:
        """Keeps the lock file that `init` created, for working copies that have none."""
        shutil.copyfile(working_copy / LOCK_FILE, self.path / _KEPT_LOCK)

    def restore_lock(self, working_copy: Path) -> None:
        """Puts the lock file of `init` into a working copy without one."""
        kept, wanted = self.path / _KEPT_LOCK, working_copy / LOCK_FILE
        if kept.is_file() and not wanted.exists():
            shutil.copyfile(kept, wanted)

    def has_remote_modules(self) -> bool:
        """Reports whether `init` downloaded modules."""
        try:
            read: Any = json.loads((self.data / "modules" / "modules.json").read_bytes())
            modules = cast("list[dict[str, str]]", read["Modules"])
        except (OSError, ValueError, KeyError):
            return False
        return any(
            module.get("Source", "") and not module["Source"].startswith(("./", "../"))
            for module in modules
        )


Initialize = Callable[[DataDirectory], Awaitable[bool]]
"""Fills a new data directory; returns whether another `init` would choose the same versions."""


class DataDirectories:
    """The data directories of all applications."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._in_use = Counter[Path]()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def open(
        self, application_id: str, digest: str, initialize: Initialize, *, newest: bool
    ) -> AsyncIterator[DataDirectory]:
        """Yields the data directory for a digest, which `initialize` fills if there is none.

        With `newest` a directory is used again only if its versions are pinned.
        """
        parent = self._root / application_id
        async with self._locks.setdefault(str(parent / digest), asyncio.Lock()):
            found = await asyncio.to_thread(_latest, parent, digest)
            if found is None or (newest and not found.is_pinned):
                found = await self._create(parent, digest, initialize)
            else:
                await asyncio.to_thread(os.utime, found.path)
            self._in_use[found.path] += 1
        try:
            yield found
        finally:
            self._in_use[found.path] -= 1
            await asyncio.to_thread(self._remove_old, parent)

    async def _create(self, parent: Path, digest: str, initialize: Initialize) -> DataDirectory:
        path = parent / f"{digest}-{time.time_ns()}"
        await asyncio.to_thread(path.mkdir, parents=True, mode=0o700)
        self._in_use[path] += 1
        try:
            is_pinned = await initialize(DataDirectory(path))
            ready = json.dumps({"pinned": is_pinned})
            await asyncio.to_thread((path / _READY).write_text, ready)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        finally:
            self._in_use[path] -= 1
        return DataDirectory(path, is_pinned)

    def _remove_old(self, parent: Path) -> None:
        """Removes all but the last used directories of an application."""
        idle = [path for path in parent.glob("*-*") if not self._in_use[path]]
        by_use = sorted(idle, key=lambda path: path.stat().st_mtime, reverse=True)
        for path in by_use[_KEPT:]:
            shutil.rmtree(path, ignore_errors=True)


def _latest(parent: Path, digest: str) -> DataDirectory | None:
    """Returns the newest complete data directory for a digest."""
    for path in sorted(parent.glob(f"{digest}-*"), reverse=True):
        try:
            ready: Any = json.loads((path / _READY).read_bytes())
            return DataDirectory(path, bool(ready["pinned"]))
        except (OSError, ValueError, KeyError):
            continue
    return None
