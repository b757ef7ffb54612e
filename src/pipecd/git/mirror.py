# SPDX-License-Identifier: Apache-2.0
"""One bare copy of a remote repository, brought up to date only when its branch has moved."""

import asyncio
import re
import shutil
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

import structlog

from pipecd.git.access import GitEnvironment
from pipecd.git.commit import Commit
from pipecd.git.failure import explain, is_damaged, without_secrets
from pipecd.git.objects import Objects
from pipecd.git.remote import address, check_branch_name, local_path, remote_branch
from pipecd.model.errors import NotFound, PipecdError
from pipecd.program.capture import Captured, capture

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The first fetch of a large repository takes its time.
_FETCH_AT_MOST = 1800.0
_TIDY_AFTER = 200
_HASH = re.compile(r"[0-9a-fA-F]{4,64}")


@dataclass(frozen=True)
class Repository:
    """A repository as the piped configuration names it."""

    id: str
    remote: str
    branch: str


class Mirror(Objects):
    """A bare copy of one repository, with the head of its watched branch."""

    def __init__(
        self, repository: Repository, directory: Path, environment: GitEnvironment
    ) -> None:
        super().__init__(directory, environment)
        check_branch_name(repository.branch)
        self.repository = repository
        self._branch = remote_branch(
            repository.remote,
            repository.branch,
            repository=repository.id,
            environment=environment,
        )
        self._seen: Hashable = None
        self._head: Commit | None = None
        self._lock = asyncio.Lock()
        self._is_ready = False
        self._fetches = 0

    @property
    def look_every(self) -> float:
        """How often the remote may be looked at."""
        return self._branch.every

    @property
    def is_local(self) -> bool:
        """Whether a look costs next to nothing because the remote is on this machine."""
        return local_path(self.repository.remote) is not None

    @property
    def head(self) -> Commit | None:
        """The newest commit of the branch that is known here."""
        return self._head

    async def update(self) -> Commit:
        """Looks at the remote, fetches if the branch moved, and returns its head."""
        async with self._lock:
            # The look comes first: a push during the fetch is then seen by the next look.
            seen = await self._branch.look()
            if self._head is not None and seen == self._seen:
                return self._head
            await self._prepare()
            ref = f"refs/heads/{self.repository.branch}"
            if seen != await self._local_hash(ref):
                await self._fetch(f"+{ref}:{ref}")
            self._head = await self.commit(ref)
            self._seen = seen
            return self._head

    async def ensure(self, commit: str) -> None:
        """Makes sure that a commit is here, also one that the branch no longer contains."""
        if not _HASH.fullmatch(commit):
            raise NotFound(f"{commit!r} is not the hash of a commit")
        if self._is_ready and await self.has(commit):
            return
        async with self._lock:
            await self._prepare()
            if await self.has(commit):
                return
            ref = f"refs/heads/{self.repository.branch}"
            await self._fetch(f"+{ref}:{ref}")
            if await self.has(commit):
                return
            try:
                await self._fetch(commit)
            except PipecdError as e:
                raise NotFound(
                    f"commit {commit} is not in {self._name}",
                    hint="it may have been removed by a force push; deploy a newer commit",
                ) from e

    @property
    def _name(self) -> str:
        remote = without_secrets(self.repository.remote)
        return f"repository {self.repository.id!r} ({remote})"

    async def _local_hash(self, ref: str) -> str:
        done = await self._git("rev-parse", "--verify", "--quiet", ref)
        return done.stdout.decode().strip()

    async def _prepare(self) -> None:
        """Creates the copy, or takes over the one of an earlier run."""
        if self._is_ready:
            return
        await asyncio.to_thread(_remove_leftovers, self.directory)
        if not await self._is_sound():
            await self._create()
        self._is_ready = True

    async def _is_sound(self) -> bool:
        if not await asyncio.to_thread((self.directory / "HEAD").is_file):
            return False
        return (await self._git("rev-parse", "--git-dir")).code == 0

    async def _create(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self.directory, ignore_errors=True)
        await asyncio.to_thread(self.directory.mkdir, mode=0o700, parents=True)
        done = await self._git("init", "--quiet", "--bare", "--template=", str(self.directory))
        if done.code:
            raise self._failure(done)

    async def _fetch(self, refspec: str) -> None:
        done = await self._try_fetch(refspec)
        if done.code and is_damaged(_said(done)):
            log.warning("local copy is damaged, made anew", repository=self.repository.id)
            await self._create()
            done = await self._try_fetch(refspec)
        if done.code:
            raise self._failure(done)
        self._fetches += 1
        if self._fetches % _TIDY_AFTER == 0:
            await self._git("gc", "--auto", "--quiet", at_most=_FETCH_AT_MOST)

    async def _try_fetch(self, refspec: str) -> Captured:
        return await capture(
            ["git", "fetch", "--quiet", "--no-tags", "--no-auto-gc", "--force", "origin", refspec],
            cwd=self.directory,
            env=self._environment.of(address(self.repository.remote))
            | {"GIT_DIR": str(self.directory)},
            at_most=_FETCH_AT_MOST,
        )

    def _failure(self, done: Captured) -> PipecdError:
        return explain(_said(done), repository=self.repository.id, remote=self.repository.remote)


def _said(done: Captured) -> str:
    return done.stderr.decode("utf-8", "replace")


def _remove_leftovers(directory: Path) -> None:
    """Removes what a killed run left: git refuses to work beside a lock, whoever holds it."""
    if not directory.is_dir():
        return
    for file in (*directory.rglob("*.lock"), *directory.glob("index-*")):
        file.unlink(missing_ok=True)
