# SPDX-License-Identifier: Apache-2.0
"""The event watcher: writes the values of events into files of repositories and pushes them."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import structlog

from pipecd.git.mirror import Mirror
from pipecd.git.push import PushRequest, push
from pipecd.model.backoff import Backoff
from pipecd.model.clock import Now, seconds_clock, utc_now
from pipecd.model.errors import Conflict, PipecdError, Unavailable
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.eventwatcher.definitions import DefinitionReader, EventDefinition
from pipecd.piped.eventwatcher.edits import Edit, EditBatch, EditResult
from pipecd.piped.eventwatcher.event_queue import EventQueue
from pipecd.piped.eventwatcher.pull_request import PullRequest, compare_page, open_pull_request
from pipecd.piped.eventwatcher.pushed_edits import PushedEdits
from pipecd.piped.eventwatcher.selection import (
    EventOutcome,
    combine_outcomes,
    select_events,
)
from pipecd.program.workers import WorkerPool
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The safety net for a missed change, in seconds.
_UPDATE_INTERVAL = 600.0
_BACKOFF = Backoff(first=5.0, longest=60.0)
# An event fails when its change cannot be pushed for this long.
_PUSH_DEADLINE = timedelta(minutes=10).total_seconds()
_NOT_IN_BRANCHES = re.compile(r"[^\w.-]+|\.(?=\.)")


class EventWatcher:
    """Polls events for all repositories; a repository that hangs delays no other one."""

    def __init__(self, queue: EventQueue, updaters: "Sequence[RepositoryUpdater]") -> None:
        self._queue, self._updaters = queue, updaters

    @property
    def schedule(self) -> RefreshSchedule:
        """When it polls for events."""
        return self._queue.schedule

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(), name="events")
            for updater in self._updaters:
                tasks.create_task(updater.run(), name=f"events of {updater.repository_id}")


@dataclass(frozen=True, kw_only=True)
class UpdaterContext:
    """What the updaters of all repositories share."""

    queue: EventQueue
    heads: RepositoryHeads
    applications: ApplicationCache
    workers: WorkerPool
    pushed: PushedEdits
    token: str = ""
    """The API token for pull requests: the password of Git over HTTP."""


class RepositoryUpdater:
    """Handles the events that one repository has definitions for, the newest of each key only."""

    def __init__(
        self,
        mirror: Mirror,
        definitions: DefinitionReader,
        context: UpdaterContext,
        *,
        now: Now = utc_now,
    ) -> None:
        self._clock = seconds_clock(now)
        self._mirror, self._definitions, self._context = mirror, definitions, context
        self.repository_id = mirror.repository.id
        self._queue, self._pushed = context.queue, context.pushed
        self._failing_since: dict[str, float] = {}

    async def run(self) -> None:
        heads, applications = self._context.heads, self._context.applications
        watch = watch_any(
            self._queue.changes, heads.changes_of(self.repository_id), applications.changes
        )
        await applications.wait_until_loaded()
        await self._pushed.load()
        backoff = iter(_BACKOFF)
        while True:
            if await self._handle_pending():
                backoff = iter(_BACKOFF)
                await watch.wait(_UPDATE_INTERVAL)
            else:
                await watch.wait(next(backoff))

    async def _handle_pending(self) -> bool:
        """Handles pending events; returns False when something has to be retried."""
        head = self._context.heads.of(self.repository_id).commit
        if head is None:
            return True
        try:
            applications = self._context.applications.of_repository(self.repository_id)
            definitions = await self._definitions.at(head.hash, applications)
        except PipecdError as e:
            log.warning(
                "event definitions cannot be read, retrying",
                repository=self.repository_id,
                error=str(e),
            )
            return False
        self._queue.subscribe(self.repository_id, frozenset(d.key for d in definitions))
        by_key: dict[str, list[EventDefinition]] = {}
        for definition in definitions:
            by_key.setdefault(definition.key, []).append(definition)
        pending = self._queue.pending(self.repository_id)
        ids = {received.event.id for received in pending}
        self._failing_since = {id_: at for id_, at in self._failing_since.items() if id_ in ids}
        selection = select_events(pending, self._queue.newest(), self._clock())
        self._queue.complete(self.repository_id, selection.outdated)
        return await self._apply(
            [
                Edit(received.event, definition)
                for received in selection.selected
                for definition in by_key[received.event.event_key]
            ]
        )

    async def _apply(self, edits: Sequence[Edit]) -> bool:
        """Applies edits branch by branch, and reports each event when all of it is done."""
        by_branch: dict[str, list[Edit]] = {}
        for edit in edits:
            branch = self._mirror.repository.branch
            if edit.definition.makes_pull_request:
                branch = pull_request_branch(edit.event)
            by_branch.setdefault(branch, []).append(edit)
        total = Counter(edit.event.id for edit in edits)
        outcomes: dict[str, list[EventOutcome | None]] = {}
        is_done = True
        for branch, share in by_branch.items():
            for event, outcome in await self._push(branch, share):
                of_event = outcomes.setdefault(event.id, [])
                of_event.append(outcome)
                if len(of_event) == total[event.id]:
                    is_done &= self._complete(event, of_event)
        return is_done

    async def _push(
        self, branch: str, edits: Sequence[Edit]
    ) -> list[tuple[Event, EventOutcome | None]]:
        """The outcome of the edits of one branch; None for those to retry."""
        repository = self._mirror.repository
        batch = EditBatch(
            self._mirror,
            edits,
            self._context.workers,
            lambda edit: self._pushed.of(repository.id, edit.id_in(branch)),
        )
        error: PipecdError | None = None
        commit: str | None = None
        branch_text = ""
        try:
            request = PushRequest(
                batch.commits_on,
                repository.branch,
                branch,
                before_push=partial(self._store_push, branch, batch),
            )
            commit = await push(self._mirror.clone, request)
        except PipecdError as e:
            log.warning(
                "push of event values failed", repository=repository.id, branch=branch, error=str(e)
            )
            error = e
        if commit is not None:
            log.info("event values pushed", repository=repository.id, commit=commit, branch=branch)
            if branch == repository.branch:
                self._context.heads.pushed(repository.id)
            else:
                title, _, body = batch.message.partition("\n")
                proposal = PullRequest(
                    repository.remote, branch, repository.branch, title, body.strip()
                )
                text = await open_pull_request(proposal, self._context.token)
                branch_text = f", branch {branch}" + (f": {text}" if text else "")
        elif branch != repository.branch and any(r.is_in_branch for _, r in batch.results):
            # It may have been opened, merged or closed since, so that none is opened again.
            page = compare_page(PullRequest(repository.remote, branch, repository.branch, ""))
            branch_text = f", branch {branch}" + (f": {page}" if page else "")
        if not batch.results:
            return [(edit.event, self._push_failure(edit.event, error)) for edit in edits]
        return [
            (edit.event, self._outcome(edit.event, result, error, branch_text))
            for edit, result in batch.results
        ]

    async def _store_push(self, branch: str, batch: EditBatch, commit: str) -> None:
        """Stores what a commit has, so that after a kill nothing of it is written again."""
        edits = {
            edit.id_in(branch): (result.files, result.remark)
            for edit, result in batch.results
            if result.needs_push
        }
        is_reported = partial(self._queue.is_reported, self.repository_id)
        await self._pushed.add(self.repository_id, commit, edits, is_reported=is_reported)

    def _outcome(
        self, event: Event, result: EditResult, error: PipecdError | None, branch_text: str
    ) -> EventOutcome | None:
        if result.error:
            return EventOutcome(event_pb2.EVENT_FAILURE, f"Failed to change files: {result.error}")
        if error is not None and result.needs_push:
            return self._push_failure(event, error)
        if not result.files:
            return EventOutcome(event_pb2.EVENT_SUCCESS, "Nothing to commit")
        text = f'Successfully updated {result.files} files in the "{self.repository_id}" repository'
        if result.remark:
            branch_text += f"; the commit message template was not rendered: {result.remark}"
        return EventOutcome(event_pb2.EVENT_SUCCESS, f"{text}{branch_text}")

    def _push_failure(self, event: Event, error: PipecdError | None) -> EventOutcome | None:
        """The outcome of an event whose change could not be pushed; None while it is retried."""
        since = self._failing_since.setdefault(event.id, self._clock())
        if isinstance(error, Conflict | Unavailable) and self._clock() - since < _PUSH_DEADLINE:
            return None
        return EventOutcome(event_pb2.EVENT_FAILURE, f"Failed to push changed files: {error}")

    def _complete(self, event: Event, outcomes: Iterable[EventOutcome | None]) -> bool:
        """Reports the outcome of an event; returns False when it is retried."""
        completed: list[EventOutcome] = []
        for outcome in outcomes:
            if outcome is None:
                # Retried as a whole: edits that are done already then change nothing.
                return False
            completed.append(outcome)
        combined = combine_outcomes(completed)
        write = log.info if combined.status == event_pb2.EVENT_SUCCESS else log.warning
        write(
            "event handled",
            event_name=event.name,
            event_id=event.id,
            repository=self.repository_id,
            status=combined.description,
        )
        self._queue.complete(self.repository_id, {event.id: combined})
        return True


def pull_request_branch(event: Event) -> str:
    """The branch for the pull request of an event, which is the same on a retry."""
    name = _NOT_IN_BRANCHES.sub("-", event.name).strip("-.") or "event"
    return f"{name}-{event.id}"
