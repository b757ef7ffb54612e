# SPDX-License-Identifier: Apache-2.0
"""The copies of every repository that a piped is told to follow."""

import asyncio
import hashlib
import re
import shutil
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pipecd.git.access import GitAccess, git_environment
from pipecd.git.mirror import Mirror, Repository
from pipecd.git.remote import git_directories, local_path
from pipecd.model.errors import UserMistake

_PLACE = re.compile(r"[0-9a-f]{16}")


class Mirrors:
    """The mirrors of a piped by the id of their repository."""

    def __init__(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = dict(mirrors)

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


@asynccontextmanager
async def open_mirrors(
    repositories: Sequence[Repository], *, directory: Path, access: GitAccess
) -> AsyncGenerator[Mirrors]:
    """Mirrors below a directory, which keeps them for the next start; others there are removed."""
    places = {repository.id: directory / _place(repository) for repository in repositories}
    await asyncio.to_thread(_keep_only, directory, frozenset(places.values()))
    owned = [
        *places.values(),
        *(
            name
            for repository in repositories
            if (path := local_path(repository.remote)) is not None
            for name in git_directories(path)
        ),
    ]
    with git_environment(access, directory=directory / "private", owned=owned) as environment:
        yield Mirrors(
            {
                repository.id: Mirror(repository, places[repository.id], environment)
                for repository in repositories
            }
        )


def _place(repository: Repository) -> str:
    # A remote that changed is another repository and gets a fresh copy.
    name = f"{repository.id}\0{repository.remote}".encode()
    return hashlib.sha256(name).hexdigest()[:16]


def _keep_only(directory: Path, wanted: frozenset[Path]) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for found in directory.iterdir():
        if found not in wanted and _PLACE.fullmatch(found.name):
            shutil.rmtree(found, ignore_errors=True)
