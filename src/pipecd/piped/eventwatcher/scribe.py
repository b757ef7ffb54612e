# SPDX-License-Identifier: Apache-2.0
"""Writes the events of one repository into it: choose, edit, push, tell."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from pipecd.git.mirror import Mirror
from pipecd.git.push import PushRequest, push
from pipecd.model.backoff import Backoff
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import Conflict, PipecdError, Unavailable
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.eventwatcher.definition import Definition
from pipecd.piped.eventwatcher.definitions import Definitions
from pipecd.piped.eventwatcher.edits import Edits, Result, Task
from pipecd.piped.eventwatcher.inbox import Inbox
from pipecd.piped.eventwatcher.pullrequest import Wanted, asked_for
from pipecd.piped.eventwatcher.turn import Arrival, Outcome, choose, together
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_NET = 600.0
_BACKOFF = Backoff(first=5.0, longest=60.0)
# A remote that is away for longer than this is a failure that people have to hear of.
_PATIENCE = timedelta(minutes=10)
_NOT_IN_BRANCHES = re.compile(r"[^\w.-]+|\.(?=\.)")


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What the scribes of all repositories share."""

    inbox: Inbox
    heads: RepositoryHeads
    applications: ApplicationCache
    token: str = ""
    """What opens pull requests: the password of Git over HTTP."""


class Scribe:
    """Acts on the events that one repository has definitions for, newest of each key only."""

    def __init__(
        self,
        mirror: Mirror,
        definitions: Definitions,
        around: Surroundings,
        *,
        now: Now = utc_now,
    ) -> None:
        self._mirror, self._definitions, self._around, self._now = mirror, definitions, around, now
        self.repository_id = mirror.repository.id
        self._inbox = around.inbox
        self._failing: dict[str, datetime] = {}

    async def run(self) -> None:
        heads, applications = self._around.heads, self._around.applications
        watch = watch_any(
            self._inbox.changes, heads.changes_of(self.repository_id), applications.changes
        )
        await applications.wait_until_loaded()
        pauses = iter(_BACKOFF)
        while True:
            if await self._round():
                pauses = iter(_BACKOFF)
                await watch.wait(_NET)
            else:
                await watch.wait(next(pauses))

    async def _round(self) -> bool:
        """Acts on what is pending; False when something has to be tried again."""
        head = self._around.heads.of(self.repository_id).commit
        if head is None:
            return True
        try:
            applications = self._around.applications.of_repository(self.repository_id)
            definitions = await self._definitions.at(head.hash, applications)
            self._inbox.want(self.repository_id, frozenset(d.key for d in definitions))
        except PipecdError as e:
            log.warning("events not looked at", repository=self.repository_id, error=str(e))
            return False
        by_key: dict[str, list[Definition]] = {}
        for definition in definitions:
            by_key.setdefault(definition.key, []).append(definition)
        tasks = [
            Task(arrival.event, definition)
            for arrival in self._chosen()
            for definition in by_key[arrival.event.event_key]
        ]
        return await self._act(tasks)

    async def _act(self, tasks: Sequence[Task]) -> bool:
        """Carries out tasks branch by branch, and tells of each event when all of it is done."""
        left = Counter(task.event.id for task in tasks)
        outcomes: dict[str, list[Outcome | None]] = {}
        is_done = True
        for branch, share in self._by_branch(tasks).items():
            for event, outcome in await self._write(branch, share):
                told = outcomes.setdefault(event.id, [])
                told.append(outcome)
                if len(told) == left[event.id]:
                    is_done &= self._settle(event, told)
        return is_done

    def _chosen(self) -> tuple[Arrival, ...]:
        """The events to act on now; the others are put away."""
        pending = self._inbox.pending(self.repository_id)
        self._failing = {
            arrival.event.id: self._failing[arrival.event.id]
            for arrival in pending
            if arrival.event.id in self._failing
        }
        turn = choose(pending, self._inbox.newest(), self._now())
        self._inbox.settle(self.repository_id, turn.outdated)
        return turn.chosen

    def _by_branch(self, tasks: Iterable[Task]) -> dict[str, list[Task]]:
        found: dict[str, list[Task]] = {}
        for task in tasks:
            own = branch_of(task.event) if task.definition.makes_pull_request else ""
            found.setdefault(own or self._mirror.repository.branch, []).append(task)
        return found

    async def _write(
        self, branch: str, tasks: Sequence[Task]
    ) -> list[tuple[Event, Outcome | None]]:
        """What became of tasks on one branch; None of those to be tried again."""
        edits = Edits(self._mirror, tasks)
        error: PipecdError | None = None
        where = ""
        try:
            change = PushRequest(edits.at, self._mirror.repository.branch, branch)
            commit = await push(self._mirror.clone, change)
        except PipecdError as e:
            log.warning(
                "events not pushed", repository=self.repository_id, branch=branch, error=str(e)
            )
            error = e
        else:
            if commit is not None:
                where = await self._pushed(commit, branch, edits.message)
        if not edits.results:
            return [(task.event, self._unpushed(task.event, error)) for task in tasks]
        return [
            (task.event, self._outcome(task.event, result, error, where))
            for task, result in edits.results
        ]

    async def _pushed(self, commit: str, branch: str, message: str) -> str:
        """Lets others know of a push; returns what is to be said about its branch."""
        repository = self._mirror.repository
        log.info("events pushed", repository=repository.id, commit=commit, branch=branch)
        if branch == repository.branch:
            self._around.heads.pushed(repository.id)
            return ""
        title, _, body = message.partition("\n")
        wanted = Wanted(repository.remote, branch, repository.branch, title, body.strip())
        told = await asked_for(wanted, self._around.token)
        return f", branch {branch}" + (f": {told}" if told else "")

    def _outcome(
        self, event: Event, result: Result, error: PipecdError | None, where: str
    ) -> Outcome | None:
        if result.error:
            return Outcome(event_pb2.EVENT_FAILURE, f"Failed to change files: {result.error}")
        if error is not None and result.needs_push:
            return self._unpushed(event, error)
        if not result.files:
            return Outcome(event_pb2.EVENT_SUCCESS, "Nothing to commit")
        updated = (
            f'Successfully updated {result.files} files in the "{self.repository_id}" repository'
        )
        remark = f"; the commit message is as it was written: {result.remark}" * bool(result.remark)
        return Outcome(event_pb2.EVENT_SUCCESS, f"{updated}{where}{remark}")

    def _unpushed(self, event: Event, error: PipecdError | None) -> Outcome | None:
        """What becomes of an event whose change could not be pushed; None while it may yet be."""
        since = self._failing.setdefault(event.id, self._now())
        if isinstance(error, Conflict | Unavailable) and self._now() - since < _PATIENCE:
            return None
        return Outcome(event_pb2.EVENT_FAILURE, f"Failed to push changed files: {error}")

    def _settle(self, event: Event, outcomes: Iterable[Outcome | None]) -> bool:
        """Tells what became of an event; False when it is tried again."""
        told: list[Outcome] = []
        for outcome in outcomes:
            if outcome is None:
                # It is tried again as a whole: what was done already is then found done.
                return False
            told.append(outcome)
        whole = together(told)
        tell = log.info if whole.status == event_pb2.EVENT_SUCCESS else log.warning
        tell("event handled", event_id=event.id, status=whole.description)
        self._inbox.settle(self.repository_id, {event.id: whole})
        return True


def branch_of(event: Event) -> str:
    """The branch for the pull request of an event, which is the same when it is tried again."""
    name = _NOT_IN_BRANCHES.sub("-", event.name).strip("-.") or "event"
    return f"{name}-{event.id}"
