# SPDX-License-Identifier: Apache-2.0
"""Cheap looks at a branch of a remote repository: has it moved since the last look?"""

import asyncio
import os
import random
from collections.abc import Hashable
from pathlib import Path
from typing import Protocol

from pipecd.git.access import GitEnvironment
from pipecd.git.failure import explain
from pipecd.git.remote.address import git_directory, is_http, local_path, read_address
from pipecd.git.remote.smart import RefsOverHttp, Unsure
from pipecd.program.capture import capture

LOCAL_EVERY = 0.25
HTTP_EVERY = 1.0
OTHER_EVERY = 3.0

_LOOK_AT_MOST = 30.0
# A server that only the git program can talk to is left to it, for some five minutes.
_PATIENCE, _REPENTANCE = 3, 100


class RemoteBranch(Protocol):
    """A branch somewhere else."""

    @property
    def every(self) -> float:
        """How many seconds may pass between two looks."""
        ...

    async def look(self) -> Hashable:
        """A value that changes whenever the branch moves."""
        ...

    async def close(self) -> None:
        """Ends what was kept open between two looks."""
        ...


def remote_branch(
    remote: str, branch: str, *, repository: str, environment: GitEnvironment
) -> RemoteBranch:
    """The cheapest way to look at a branch of this remote."""
    if (path := local_path(remote)) is not None:
        return LocalBranch(path, branch)
    served = ServedBranch(remote, branch, repository=repository, environment=environment)
    return HttpBranch(served, remote, environment) if is_http(remote) else served


class LocalBranch:
    """A branch in a directory of this machine: its files tell whether it moved."""

    every = LOCAL_EVERY

    def __init__(self, path: Path, branch: str) -> None:
        self._path, self._branch = path, branch

    async def look(self) -> Hashable:
        # A file system that hangs must not stop the rest of piped.
        return await asyncio.to_thread(self._fingerprint)

    async def close(self) -> None:
        pass

    def _fingerprint(self) -> Hashable:
        directory = git_directory(self._path)
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
    """A branch on a Git server: the git program asks for its hash."""

    def __init__(
        self, remote: str, branch: str, *, repository: str, environment: GitEnvironment
    ) -> None:
        self._remote, self.ref = remote, f"refs/heads/{branch}"
        self._repository, self._environment = repository, environment

    @property
    def every(self) -> float:
        return _about(OTHER_EVERY)

    async def look(self) -> str:
        done = await capture(
            ["git", "ls-remote", "--refs", "--quiet", "origin", self.ref],
            cwd=Path("/"),
            env=self._environment.of(self._remote),
            at_most=_LOOK_AT_MOST,
        )
        if done.code:
            said = done.stderr.decode("utf-8", "replace")
            raise explain(said, repository=self._repository, remote=self._remote)
        for line in done.stdout.decode("utf-8", "replace").splitlines():
            hash_, _, ref = line.partition("\t")
            if ref == self.ref:
                return hash_
        raise explain(
            f"fatal: couldn't find remote ref {self.ref}",
            repository=self._repository,
            remote=self._remote,
        )

    async def close(self) -> None:
        pass


class HttpBranch:
    """A branch on a Git server over HTTP, asked over a connection that stays open.

    Whatever this does not understand is left to the git program, which knows more of proxies,
    certificates and credentials, and whose word on a failure is the one that counts.
    """

    def __init__(self, served: ServedBranch, remote: str, environment: GitEnvironment) -> None:
        self._served = served
        url = read_address(remote).url
        self._refs = RefsOverHttp(
            url,
            served.ref,
            tls=environment.tls if url.startswith("https") else None,
            authorization=environment.authorization(remote),
        )
        self._disagreements = 0

    @property
    def every(self) -> float:
        return self._served.every if self._gave_up else _about(HTTP_EVERY)

    async def look(self) -> str:
        if self._gave_up:
            # Once in a while it is tried again.
            self._disagreements = (self._disagreements + 1) % _REPENTANCE
            return await self._served.look()
        try:
            seen = await self._refs.look()
        except Unsure:
            seen = await self._served.look()
            self._disagreements += 1
            if self._gave_up:
                await self._refs.close()
        else:
            self._disagreements = 0
        return seen

    async def close(self) -> None:
        await self._refs.close()

    @property
    def _gave_up(self) -> bool:
        return self._disagreements >= _PATIENCE


def _about(seconds: float) -> float:
    # Many repositories on one server are not asked about in the same moment.
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(file)  # noqa: PTH116  one call of the system, several times a second
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
