# SPDX-License-Identifier: Apache-2.0
"""The head of every repository's branch, followed as closely as the remote allows."""

import asyncio
from dataclasses import dataclass

import structlog

from pipecd.git.commit import Commit
from pipecd.git.mirror import Mirror, Mirrors
from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError
from pipecd.piped.mirror.changes import Changes, Watch

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_BACKOFF = Backoff(first=1.0, longest=30.0)
# The safety net where pushes are told of.
_NET = 30.0
# Looks are shared out among the repositories: those at a server cost it a request each.
_LOOKS_PER_SECOND, _LOCAL_LOOKS_PER_SECOND = 10, 40


@dataclass(frozen=True)
class Rhythm:
    """What decides when to look at a remote again.

    `is_told` means that pushes to this repository have been told of by wake-ups, none has been
    missed since, and wake-ups arrive.
    """

    every: float
    failures: int = 0
    is_told: bool = False

    @property
    def pause(self) -> float:
        """Seconds until the next look, unless somebody asks for one."""
        if self.failures:
            return max(self.every, _BACKOFF.after(self.failures))
        return max(self.every, _NET) if self.is_told else self.every


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
        self._asked = {id_: Watch() for id_ in self._heads}
        self._changes = {id_: Changes() for id_ in self._heads}
        # Repositories whose pushes are told of, and those with news since the last look.
        self._told: set[str] = set()
        self._news: set[str] = set()
        self._is_streaming = False
        self._failures = dict.fromkeys(self._heads, 0)

    def of(self, repository_id: str) -> Head:
        return self._heads.get(repository_id, Head())

    def changes_of(self, repository_id: str) -> Changes:
        """Tells when the head, or the trouble with it, is another."""
        return self._changes[repository_id]

    def look_soon(self, repository_id: str) -> None:
        """A push is known to have happened; an unknown repository is none of ours."""
        if repository_id in self._asked:
            self._told.add(repository_id)
            self._news.add(repository_id)
            self._asked[repository_id].mark()

    def pushed(self, repository_id: str) -> None:
        """This piped has pushed; where pushes are told of, it hears of this one like of any."""
        if not (self._is_streaming and repository_id in self._told):
            self._asked[repository_id].mark()

    def streaming(self, is_up: bool) -> None:
        """Wake-ups began or ceased to arrive; what happened in between is not known."""
        self._is_streaming = is_up
        for asked in self._asked.values():
            asked.mark()

    async def look(self, repository_id: str) -> Head:
        """Looks at the remote now and returns what is there."""
        await self._look(self._mirrors.of(repository_id))
        return self._heads[repository_id]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for mirror in self._mirrors:
                tasks.create_task(self._follow(mirror), name=f"head of {mirror.repository.id}")

    def pause_of(self, repository_id: str) -> float:
        """How many seconds pass until the next look, unless somebody asks for one."""
        mirror = self._mirrors.of(repository_id)
        return Rhythm(
            every=mirror.poll_interval * self._share(mirror),
            failures=self._failures[repository_id],
            is_told=(self._is_streaming and not mirror.is_local and repository_id in self._told),
        ).pause

    async def _follow(self, mirror: Mirror) -> None:
        id_ = mirror.repository.id
        while True:
            self._failures[id_] = 0 if await self._look(mirror) else self._failures[id_] + 1
            await mirror.clone.repack_if_due()
            await self._asked[id_].wait(self.pause_of(id_))

    async def _look(self, mirror: Mirror) -> bool:
        id_ = mirror.repository.id
        before = self._heads[id_]
        is_news = id_ in self._news
        self._news.discard(id_)
        try:
            head = Head(commit=await mirror.update())
        except PipecdError as e:
            head = Head(commit=before.commit, error=e)
        _tell(id_, before, head)
        if (head.commit != before.commit) is not is_news:
            # Nobody told of this push in time, or what was told of is not to be seen yet, as hosts
            # with replicas have it. Looks of our own are needed until the next one fits.
            self._told.discard(id_)
        if _differs(before, head):
            self._heads[id_] = head
            self._changes[id_].notify()
        return head.error is None

    def _share(self, mirror: Mirror) -> float:
        """By how much looks are rarer because there are many repositories."""
        alike = sum(each.is_local == mirror.is_local for each in self._mirrors)
        rate = _LOCAL_LOOKS_PER_SECOND if mirror.is_local else _LOOKS_PER_SECOND
        return max(1.0, alike / (rate * mirror.poll_interval))


def _tell(repository: str, before: Head, after: Head) -> None:
    """Says once what is wrong, and once that it no longer is."""
    if after.error is not None and str(before.error) != str(after.error):
        log.warning("repository cannot be followed", repository=repository, error=str(after.error))
    if after.error is None and before.error is not None:
        log.info("repository is followed again", repository=repository)


def _differs(before: Head, after: Head) -> bool:
    def key(head: Head) -> tuple[str, str]:
        return head.commit.hash if head.commit else "", str(head.error or "")

    return key(before) != key(after)
