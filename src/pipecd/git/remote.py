# SPDX-License-Identifier: Apache-2.0
"""Cheap looks at a remote repository: has its branch moved since the last look?"""

import asyncio
import os
import random
from collections.abc import Hashable
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from pipecd.git.access import GitEnvironment
from pipecd.git.failure import explain
from pipecd.model.errors import UserMistake
from pipecd.program.capture import capture

LOCAL_EVERY = 0.25
HTTP_EVERY = 1.0
OTHER_EVERY = 3.0

_LOOK_AT_MOST = 30.0


class RemoteBranch(Protocol):
    """A branch somewhere else."""

    @property
    def every(self) -> float:
        """How many seconds may pass between two looks."""
        ...

    async def look(self) -> Hashable:
        """A value that changes whenever the branch moves."""
        ...


def remote_branch(
    remote: str, branch: str, *, repository: str, environment: GitEnvironment
) -> RemoteBranch:
    """The cheapest way to look at a branch of this remote."""
    if (path := local_path(remote)) is not None:
        return LocalBranch(path, branch)
    return ServedBranch(remote, branch, repository=repository, environment=environment)


def local_path(remote: str) -> Path | None:
    """The directory that a remote names, or None when it is on another machine."""
    if remote.startswith("file://"):
        return Path(unquote(urlsplit(remote).path))
    if remote.startswith(("/", "./", "../", "~/")):
        return Path(remote).expanduser()
    return None


def address(remote: str) -> str:
    """A remote as git understands it from any working directory."""
    if remote.startswith(("./", "../", "~/")):
        return str(Path(remote).expanduser().absolute())
    return remote


class LocalBranch:
    """A branch in a directory of this machine: its files tell whether it moved."""

    every = LOCAL_EVERY

    def __init__(self, path: Path, branch: str) -> None:
        self._path, self._branch = path, branch

    async def look(self) -> Hashable:
        # A file system that hangs must not stop the rest of piped.
        return await asyncio.to_thread(self._fingerprint)

    def _fingerprint(self) -> Hashable:
        directory = _git_directory(self._path)
        return tuple(
            _stamp(directory / name)
            for name in (
                "HEAD",
                "packed-refs",
                f"refs/heads/{self._branch}",
                "reftable/tables.list",
            )
        )


class ServedBranch:
    """A branch on a Git server: the server is asked for its hash."""

    def __init__(
        self, remote: str, branch: str, *, repository: str, environment: GitEnvironment
    ) -> None:
        self._remote, self._ref = remote, f"refs/heads/{branch}"
        self._repository, self._environment = repository, environment

    @property
    def every(self) -> float:
        usual = HTTP_EVERY if self._remote.startswith("http") else OTHER_EVERY
        # Many repositories on one server are not asked about in the same moment.
        return usual * random.uniform(0.9, 1.1)  # noqa: S311

    async def look(self) -> Hashable:
        done = await capture(
            ["git", "ls-remote", "--refs", "--quiet", "origin", self._ref],
            cwd=Path("/"),
            env=self._environment.of(self._remote),
            at_most=_LOOK_AT_MOST,
        )
        if done.code:
            said = done.stderr.decode("utf-8", "replace")
            raise explain(said, repository=self._repository, remote=self._remote)
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            hash_, _, ref = line.partition("\t")
            if ref == self._ref:
                return hash_
        raise explain(
            f"fatal: couldn't find remote ref {self._ref}",
            repository=self._repository,
            remote=self._remote,
        )


def git_directories(path: Path) -> tuple[Path, ...]:
    """What git calls a repository at a path: itself and where its data is."""
    return tuple(dict.fromkeys((path, path / ".git", _git_directory(path))))


def _git_directory(path: Path) -> Path:
    dot_git = path / ".git"
    if dot_git.is_file():
        # A linked working tree names its data in a file, and the shared part from there.
        data = path / dot_git.read_text().strip().removeprefix("gitdir: ")
        common = data / "commondir"
        return data / common.read_text().strip() if common.is_file() else data
    if dot_git.is_dir():
        return dot_git
    if not path.is_dir() and path.with_name(f"{path.name}.git").is_dir():
        return path.with_name(f"{path.name}.git")
    return path


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(file)  # noqa: PTH116  one call of the system, several times a second
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def check_branch_name(branch: str) -> None:
    """Refuses what git would take for an option or a pattern."""
    if not branch or branch.startswith(("-", "/")) or any(c in branch for c in " *?[:^~\\\n\0"):
        raise UserMistake(
            f"{branch!r} is not the name of a branch",
            hint="set repositories[].branch in the piped configuration",
        )
