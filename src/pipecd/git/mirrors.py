# SPDX-License-Identifier: Apache-2.0
"""The copies of every repository that a piped is told to follow."""

import asyncio
import hashlib
import re
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pipecd.git.access import GitAccess, GitEnvironment, git_environment
from pipecd.git.bare import BareCopy
from pipecd.git.contained.unused import unused
from pipecd.git.mirror import Mirror, Repository
from pipecd.git.remote.address import git_directories, local_path, without_secrets
from pipecd.git.whole import WholeCommits
from pipecd.model.errors import UserMistake

_WHOLE, _MODULES = "whole", "modules"
# The place of a copy, or of a damaged one that was put aside.
_PLACE = re.compile(r"[0-9a-f]{16}(?:\.[0-9a-f]{32})?")


class Mirrors:
    """The mirrors of a piped by the id of their repository, and whole commits of them."""

    def __init__(
        self, mirrors: Mapping[str, Mirror], whole: WholeCommits, environment: GitEnvironment
    ) -> None:
        self._mirrors, self.whole, self.environment = dict(mirrors), whole, environment

    def __iter__(self) -> Iterator[Mirror]:
        return iter(self._mirrors.values())

    def __contains__(self, repository_id: str) -> bool:
        return repository_id in self._mirrors

    def of(self, repository_id: str) -> Mirror:
        """The mirror of a repository; one that is not configured is the user's mistake."""
        mirror = self._mirrors.get(repository_id)
        if mirror is None:
            known = ", ".join(sorted(self._mirrors)) or "none"
            raise UserMistake(
                f"repository {repository_id!r} is not in the configuration of this piped",
                hint=f"add it under repositories; there are: {known}",
            )
        return mirror


class _Modules:
    """Copies of submodules, by their address; several repositories may contain the same one."""

    def __init__(self, directory: Path, environment: GitEnvironment) -> None:
        self._directory, self._environment = directory, environment
        self._copies: dict[str, BareCopy] = {}

    def of(self, remote: str) -> BareCopy:
        copy = self._copies.get(remote)
        if copy is None:
            copy = self._copies[remote] = BareCopy(
                f"submodule {without_secrets(remote)}",
                remote,
                directory=self._directory / _digest(remote),
                environment=self._environment,
                modules=self.of,
            )
        return copy

    async def close(self) -> None:
        for copy in self._copies.values():
            await copy.close()


@asynccontextmanager
async def open_mirrors(
    repositories: Sequence[Repository], *, directory: Path, access: GitAccess
) -> AsyncGenerator[Mirrors]:
    """Mirrors below a directory, which keeps them for the next start; others there are removed."""
    # A remote that changed is another repository and gets a fresh copy.
    places = {each.id: directory / _digest(f"{each.id}\0{each.remote}") for each in repositories}
    await asyncio.to_thread(_keep_only, directory, frozenset(places.values()))
    remotes = [repository.remote for repository in repositories]
    owned = [*places.values(), *_local_directories(remotes)]
    with git_environment(access, directory=directory, remotes=remotes, owned=owned) as environment:
        modules = _Modules(directory / _MODULES, environment)
        mirrors = Mirrors(
            {
                repository.id: Mirror(
                    repository,
                    directory=places[repository.id],
                    environment=environment,
                    modules=modules.of,
                )
                for repository in repositories
            },
            WholeCommits(directory / _WHOLE),
            environment,
        )
        try:
            yield mirrors
        finally:
            for mirror in mirrors:
                await mirror.close()
            await modules.close()


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _local_directories(remotes: Sequence[str]) -> Iterator[Path]:
    for remote in remotes:
        if (path := local_path(remote)) is not None:
            yield from git_directories(path)


def _keep_only(directory: Path, wanted: frozenset[Path]) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for found in directory.iterdir():
        if found not in wanted and _PLACE.fullmatch(found.name):
            shutil.rmtree(found, ignore_errors=True)
    for found in unused((directory / _MODULES).glob("*")):
        shutil.rmtree(found, ignore_errors=True)
    shutil.rmtree(directory / _WHOLE, ignore_errors=True)
