# SPDX-License-Identifier: Apache-2.0
"""The head of each repository's branch, polled as often as the remote allows."""

import asyncio
from dataclasses import dataclass

import structlog

from pipecd.git.commit import Commit
from pipecd.git.mirror import Mirror, Mirrors, Repository
from pipecd.model.backoff import Backoff
from pipecd.model.errors import PipecdError
from pipecd.model.giturl import redact
from pipecd.piped.cache.changes import Changes, Watch

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_BACKOFF = Backoff(first=1.0, longest=30.0)
# The interval of the safety net where wake-ups announce pushes.
_RESYNC = 30.0
# A remote that has not answered its first poll by then is logged; a large one may just take longer.
_SLOW_SECONDS = 2.0
# All repositories share these rates; each poll of a remote costs its server a request.
_POLLS_PER_SECOND, _LOCAL_POLLS_PER_SECOND = 10, 40


@dataclass(frozen=True)
class PollInterval:
    """What decides when to poll a remote again.

    `is_announced` means that wake-ups arrive and have announced every push to this repository
    since the first one that they announced.
    """

    every: float
    failures: int = 0
    is_announced: bool = False

    @property
    def seconds(self) -> float:
        """Seconds until the next poll, unless one is requested."""
        if self.failures:
            return max(self.every, _BACKOFF.after(self.failures))
        return max(self.every, _RESYNC) if self.is_announced else self.every


@dataclass(frozen=True)
class RepositoryHead:
    """The newest commit that was fetched, and the error of the last poll, if it failed."""

    commit: Commit | None = None
    error: PipecdError | None = None

    def is_same(self, other: "RepositoryHead") -> bool:
        """Whether the commit and the text of the error are the same."""
        hashes = [head.commit.hash if head.commit else "" for head in (self, other)]
        return hashes[0] == hashes[1] and str(self.error or "") == str(other.error or "")


class RepositoryHeads:
    """Polls each repository in a task of its own, so that a broken one delays no other."""

    def __init__(self, mirrors: Mirrors) -> None:
        self._mirrors = mirrors
        self._heads = {mirror.repository.id: RepositoryHead() for mirror in mirrors}
        self._requested = {id_: Watch() for id_ in self._heads}
        self._changes = {id_: Changes() for id_ in self._heads}
        # Repositories whose pushes are announced, and those with a push since the last poll.
        self._announced: set[str] = set()
        self._pushed: set[str] = set()
        self._is_streaming = False
        self._failures = dict.fromkeys(self._heads, 0)

    def of(self, repository_id: str) -> RepositoryHead:
        return self._heads.get(repository_id, RepositoryHead())

    def changes_of(self, repository_id: str) -> Changes:
        """Notifies when the head of a repository, or the error of its polls, changes."""
        return self._changes[repository_id]

    def push_announced(self, repository_id: str) -> None:
        """Polls soon because a wake-up announced a push; ignores unknown repositories."""
        if repository_id in self._requested:
            self._announced.add(repository_id)
            self._pushed.add(repository_id)
            self._requested[repository_id].mark()

    def pushed(self, repository_id: str) -> None:
        """Polls soon after a push of this piped, unless a wake-up will announce it anyway."""
        if not (self._is_streaming and repository_id in self._announced):
            self._requested[repository_id].mark()

    def set_streaming(self, is_up: bool) -> None:
        """The wake-up stream came up or went down; either way pushes may have been missed."""
        self._is_streaming = is_up
        for requested in self._requested.values():
            requested.mark()

    async def poll(self, repository_id: str) -> RepositoryHead:
        """Polls the remote now and returns the head."""
        await self._poll(self._mirrors.of(repository_id))
        return self._heads[repository_id]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for mirror in self._mirrors:
                tasks.create_task(self._follow(mirror), name=f"head of {mirror.repository.id}")

    def poll_interval(self, repository_id: str) -> float:
        """Seconds until the next poll of a repository, unless one is requested."""
        mirror = self._mirrors.of(repository_id)
        alike = sum(each.is_local == mirror.is_local for each in self._mirrors)
        rate = _LOCAL_POLLS_PER_SECOND if mirror.is_local else _POLLS_PER_SECOND
        return PollInterval(
            # With many repositories each is polled less often.
            every=max(mirror.poll_interval, alike / rate),
            failures=self._failures[repository_id],
            is_announced=(
                self._is_streaming and not mirror.is_local and repository_id in self._announced
            ),
        ).seconds

    async def _follow(self, mirror: Mirror) -> None:
        id_ = mirror.repository.id
        while True:
            self._failures[id_] = 0 if await self._poll(mirror) else self._failures[id_] + 1
            await mirror.clone.repack_if_due()
            await self._requested[id_].wait(self.poll_interval(id_))

    async def _poll(self, mirror: Mirror) -> bool:
        id_ = mirror.repository.id
        before = self._heads[id_]
        was_announced = id_ in self._pushed
        self._pushed.discard(id_)
        waiting = None
        if before == RepositoryHead():
            loop = asyncio.get_running_loop()
            waiting = loop.call_later(_SLOW_SECONDS, _log_waiting, mirror.repository)
        try:
            head = RepositoryHead(commit=await mirror.update())
        except PipecdError as e:
            head = RepositoryHead(commit=before.commit, error=e)
        finally:
            if waiting is not None:
                waiting.cancel()
        if head.error is not None and str(before.error) != str(head.error):
            log.warning("repository cannot be fetched", repository=id_, error=str(head.error))
        if head.error is None and before.error is not None:
            log.info("repository can be fetched again", repository=id_)
        if (head.commit != before.commit) is not was_announced:
            # No wake-up announced this push in time, or the announced push is not visible yet, as
            # with hosts that have replicas. Poll often until a wake-up and a push match again.
            self._announced.discard(id_)
        if not head.is_same(before):
            self._heads[id_] = head
            self._changes[id_].notify()
        return head.error is None


def _log_waiting(repository: Repository) -> None:
    log.warning(
        "still waiting for a repository",
        repository=repository.id,
        remote=redact(repository.remote),
        hint="a large one takes its time; otherwise check repositories[].remote, and whether a "
        "firewall is between",
    )
