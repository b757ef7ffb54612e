# SPDX-License-Identifier: Apache-2.0
"""The copy of a followed repository, brought up to date only when its branch has moved."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

from pipecd.git.access import GitEnvironment
from pipecd.git.bare import BareCopy
from pipecd.git.commit import Commit
from pipecd.git.merge import Merging
from pipecd.git.remote.address import check_branch_name, local_path
from pipecd.git.remote.branch import remote_branch


@dataclass(frozen=True)
class Repository:
    """A repository as the piped configuration names it."""

    id: str
    remote: str
    branch: str


class Mirror(Merging):
    """A bare copy of one repository, with the head of its watched branch."""

    def __init__(
        self,
        repository: Repository,
        *,
        directory: Path,
        environment: GitEnvironment,
        modules: Callable[[str], BareCopy],
    ) -> None:
        super().__init__(
            repository.id,
            repository.remote,
            directory=directory,
            environment=environment,
            modules=modules,
        )
        check_branch_name(repository.branch)
        self.repository = repository
        self._ref = f"refs/heads/{repository.branch}"
        self._branch = remote_branch(
            repository.remote,
            repository.branch,
            repository=repository.id,
            environment=environment,
        )
        self._seen: Hashable = None
        self._head: Commit | None = None

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

    @property
    def _refspec(self) -> str:
        return f"+{self._ref}:{self._ref}"

    async def close(self) -> None:
        await super().close()
        await self._branch.close()

    async def update(self) -> Commit:
        """Looks at the remote, fetches if the branch moved, and returns its head."""
        async with self._lock:
            # The look comes first: a push during the fetch is then seen by the next look.
            seen = await self._branch.look()
            if self._head is not None and seen == self._seen and not self._is_doubted:
                return self._head
            await self._prepare()
            if seen != await self._local_hash():
                await self._fetch(self._refspec)
            self._head = await self.commit(self._ref)
            self._seen = seen
            return self._head

    async def _local_hash(self) -> str:
        done = await self._git("rev-parse", "--verify", "--quiet", self._ref)
        return done.stdout.decode().strip()
