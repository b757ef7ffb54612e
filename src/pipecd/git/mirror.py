# SPDX-License-Identifier: Apache-2.0
"""Mirrors of the configured repositories: clones that follow the head of a watched branch."""

import asyncio
import hashlib
import re
import shutil
from collections.abc import AsyncGenerator, Hashable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.git.branch_poller import branch_poller
from pipecd.git.checkout import Checkout, SharedCheckouts
from pipecd.git.clone import NEW_SUFFIX, Clone, unused
from pipecd.git.command import GitCommand
from pipecd.git.commit import Commit
from pipecd.git.credentials import GitCredentials, GitEnvironment, git_environment
from pipecd.git.objects import Objects
from pipecd.git.remote import git_directories, local_path
from pipecd.git.tree_limits import TreeLimits
from pipecd.git.validate import validate_branch
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.model.giturl import redact

_SHARED_CHECKOUTS, _SUBMODULES = "whole", "modules"
# The directory name of a clone, of an incomplete one, or of a corrupt one that was moved aside.
_CLONE_NAME = re.compile(r"[0-9a-f]{16}(?:\.new|\.[0-9a-f]{32})?")


@dataclass(frozen=True)
class Repository:
    """A repository as the piped configuration names it."""

    id: str
    remote: str
    branch: str


class Mirror:
    """A clone of one repository with the head of its watched branch.

    `objects` reads commits and files, `checkout` writes them to directories, `clone` fetches.
    """

    def __init__(
        self,
        repository: Repository,
        *,
        directory: Path,
        environment: GitEnvironment,
        submodules: "SubmoduleClones",
        limits: TreeLimits | None = None,
    ) -> None:
        self._ref = validate_branch(repository.branch)
        self.repository = repository
        self.clone = Clone(
            GitCommand(
                repository.id, repository.remote, directory=directory, environment=environment
            ),
            refspec=f"+{self._ref}:{self._ref}",
            limits=limits,
        )
        self.checkout = Checkout(self.clone, submodules.checkout)
        self._poller = branch_poller(
            repository.remote,
            repository.branch,
            repository=repository.id,
            environment=environment,
        )
        self._lock = asyncio.Lock()
        self._polled: Hashable = None
        self._head: Commit | None = None

    @property
    def objects(self) -> Objects:
        return self.clone.objects

    @property
    def poll_interval(self) -> float:
        """The seconds to wait between two updates."""
        return self._poller.interval

    @property
    def is_local(self) -> bool:
        """Whether the remote is on this machine, so that polling costs next to nothing."""
        return local_path(self.repository.remote) is not None

    @property
    def head(self) -> Commit | None:
        """The head of the branch as of the last update."""
        return self._head

    async def close(self) -> None:
        await self.clone.close()
        await self._poller.close()

    async def update(self) -> Commit:
        """Polls the remote, fetches if the branch moved, and returns its head."""
        async with self._lock:
            try:
                return await self._update()
            except PipecdError:
                if not await self.clone.command.restore_files():
                    raise
                return await self._update()

    async def _update(self) -> Commit:
        # Polled before fetching: the next poll then sees a push during the fetch.
        polled = await self._poller.poll()
        is_moved = polled != self._polled or self.clone.is_damaged()
        if self._head is not None and not is_moved:
            return self._head
        generation = self.clone.generation
        async with self.clone.locked():
            local = await self.clone.command.run("rev-parse", "--verify", "--quiet", self._ref)
            is_new = self.clone.generation != generation
            if not is_new and polled != local.stdout.decode().strip():
                await self.clone.fetch()
            self._head = await self.objects.commit(self._ref)
            self._polled = polled
        return self._head


class Mirrors:
    """The mirrors of a piped by repository id, and the whole commits they share."""

    def __init__(
        self,
        mirrors: Mapping[str, Mirror],
        shared_checkouts: SharedCheckouts,
        environment: GitEnvironment,
    ) -> None:
        self._mirrors = dict(mirrors)
        self.shared_checkouts, self.environment = shared_checkouts, environment

    def __iter__(self) -> Iterator[Mirror]:
        return iter(self._mirrors.values())

    def __contains__(self, repository_id: str) -> bool:
        return repository_id in self._mirrors

    def of(self, repository_id: str) -> Mirror:
        """Returns the mirror of a repository; raises if the piped configuration lacks it."""
        mirror = self._mirrors.get(repository_id)
        if mirror is None:
            configured = ", ".join(sorted(self._mirrors)) or "none"
            raise UserMistake(
                f"repository {repository_id!r} is not in the configuration of this piped",
                hint=f"add it under repositories; configured are: {configured}",
            )
        return mirror


class SubmoduleClones:
    """Clones of submodules by remote; several repositories may contain the same one."""

    def __init__(
        self, directory: Path, environment: GitEnvironment, limits: TreeLimits | None = None
    ) -> None:
        self._directory, self._environment, self._limits = directory, environment, limits
        self._checkouts: dict[str, Checkout] = {}

    def checkout(self, remote: str) -> Checkout:
        """Returns the checkout of a submodule, whose clone is created when it is first used."""
        checkout = self._checkouts.get(remote)
        if checkout is None:
            command = GitCommand(
                f"submodule {redact(remote)}",
                remote,
                directory=self._directory / _digest(remote),
                environment=self._environment,
            )
            clone = Clone(command, limits=self._limits)
            checkout = self._checkouts[remote] = Checkout(clone, self.checkout)
        return checkout

    async def close(self) -> None:
        for checkout in self._checkouts.values():
            await checkout.clone.close()


@asynccontextmanager
async def open_mirrors(
    repositories: Sequence[Repository],
    *,
    directory: Path,
    credentials: GitCredentials,
    limits: TreeLimits | None = None,
) -> AsyncGenerator[Mirrors]:
    """Opens mirrors below a directory, where they stay for the next start; removes all others.

    `limits` are those of working copies.
    """
    # A repository whose remote changed gets a new clone.
    clones = {each.id: directory / _digest(f"{each.id}\0{each.remote}") for each in repositories}
    await asyncio.to_thread(_remove_others, directory, frozenset(clones.values()))
    remotes = [repository.remote for repository in repositories]
    local = [path for remote in remotes if (path := local_path(remote)) is not None]
    incomplete = [clone.with_name(f"{clone.name}{NEW_SUFFIX}") for clone in clones.values()]
    safe = [
        *clones.values(),
        *incomplete,
        *(each for path in local for each in git_directories(path)),
    ]
    with git_environment(
        credentials, directory=directory, remotes=remotes, safe_directories=safe
    ) as environment:
        submodules = SubmoduleClones(directory / _SUBMODULES, environment, limits)
        mirrors = Mirrors(
            {
                repository.id: Mirror(
                    repository,
                    directory=clones[repository.id],
                    environment=environment,
                    submodules=submodules,
                    limits=limits,
                )
                for repository in repositories
            },
            SharedCheckouts(directory / _SHARED_CHECKOUTS),
            environment,
        )
        try:
            yield mirrors
        finally:
            for mirror in mirrors:
                await mirror.close()
            await submodules.close()


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _remove_others(directory: Path, clones: frozenset[Path]) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in directory.iterdir():
        if path not in clones and _CLONE_NAME.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)
    for path in unused((directory / _SUBMODULES).glob("*")):
        shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(directory / _SHARED_CHECKOUTS, ignore_errors=True)
