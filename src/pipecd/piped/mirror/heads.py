# SPDX-License-Identifier: Apache-2.0
"""The head of every repository's branch, followed as closely as the remote allows."""

import asyncio
from dataclasses import dataclass

import structlog

from pipecd.git.commit import Commit
from pipecd.git.mirror import Mirror
from pipecd.git.mirrors import Mirrors
from pipecd.model.errors import PipecdError
from pipecd.piped.mirror.changes import Changes, Watch

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_LONGEST_PAUSE = 30.0
# Each look at a server costs a program and a connection, so many repositories share this many.
_LOOKS_PER_SECOND = 10


@dataclass(frozen=True)
class Head:
    """The newest known commit, and what kept piped from looking again, if anything."""

    commit: Commit | None = None
    error: PipecdError | None = None


class RepositoryHeads:
    """Watches every repository in a task of its own, so that a broken one holds up no other."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._heads = {mirror.repository.id: Head() for mirror in mirrors}
        self._told = {id_: Watch() for id_ in self._heads}
        self._changes = {id_: Changes() for id_ in self._heads}
        self._slowness = max(1.0, sum(not m.is_local for m in mirrors) / _LOOKS_PER_SECOND)

    def of(self, repository_id: str) -> Head:
        return self._heads.get(repository_id, Head())

    def changes_of(self, repository_id: str) -> Changes:
        """Tells when the head, or the trouble with it, is another."""
        return self._changes[repository_id]

    def look_soon(self, repository_id: str) -> None:
        """A push is known to have happened; an unknown repository is none of ours."""
        if repository_id in self._told:
            self._told[repository_id].mark()

    async def look(self, repository_id: str) -> Head:
        """Looks at the remote now and returns what is there."""
        await self._look(self._mirrors.of(repository_id))
        return self._heads[repository_id]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for mirror in self._mirrors:
                tasks.create_task(self._follow(mirror), name=f"head of {mirror.repository.id}")

    async def _follow(self, mirror: Mirror) -> None:
        told = self._told[mirror.repository.id]
        failures = 0
        while True:
            failures = 0 if await self._look(mirror) else failures + 1
            pause = min(_LONGEST_PAUSE, 2.0 ** min(failures - 1, 10)) if failures else 0.0
            every = mirror.look_every * (1 if mirror.is_local else self._slowness)
            await told.wait(max(pause, every))

    async def _look(self, mirror: Mirror) -> bool:
        id_ = mirror.repository.id
        before = self._heads[id_]
        try:
            head = Head(commit=await mirror.update())
        except PipecdError as e:
            head = Head(commit=before.commit, error=e)
            if str(before.error) != str(e):
                log.warning("repository cannot be followed", repository=id_, error=str(e))
        if _differs(before, head):
            self._heads[id_] = head
            self._changes[id_].notify()
        return head.error is None


def _differs(before: Head, after: Head) -> bool:
    def key(head: Head) -> tuple[str, str]:
        return head.commit.hash if head.commit else "", str(head.error or "")

    return key(before) != key(after)
