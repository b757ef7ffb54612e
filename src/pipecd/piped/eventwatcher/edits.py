# SPDX-License-Identifier: Apache-2.0
"""Turns events into commits for one branch, with the result of each edit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipecd.git.mirror import Mirror
from pipecd.git.objects import Blob, Missing
from pipecd.git.push import CommitDraft
from pipecd.gotemplate.printf import quote
from pipecd.gotemplate.template import has_actions, render
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.piped.eventwatcher.definitions import EventDefinition
from pipecd.piped.eventwatcher.pushed_edits import EditId, PushedEdit
from pipecd.piped.eventwatcher.replacement import apply_replacement
from pipecd.piped.planning.deployment import TRACE_TRAILER
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.event_pb2 import Event


@dataclass(frozen=True)
class Edit:
    """An event and one definition that matches it."""

    event: Event
    definition: EventDefinition

    @property
    def files(self) -> frozenset[str]:
        """The files that it may change."""
        return frozenset(r.file for r in self.definition.replacements)

    @property
    def commit_group(self) -> tuple[str, str]:
        """Edits of one group may share a commit."""
        return self.definition.message, self.event.trigger_commit_hash

    def id_in(self, branch: str) -> EditId:
        """Identifies it also after a restart; another definition makes it another edit."""
        fields = (f"{r.file} {r.format.value} {r.path}" for r in self.definition.replacements)
        return self.event.id, "\n".join((branch, self.definition.origin, *fields))


@dataclass(frozen=True)
class EditResult:
    """How many files an edit changed, or its error; `remark` is shown in any case.

    An edit that changed nothing may still need the push, if another edit made the same change. One
    that is in the branch already, whatever users have made of it since, is not made again.
    """

    files: int = 0
    needs_push: bool = False
    is_in_branch: bool = False
    error: str = ""
    remark: str = ""


@dataclass(frozen=True)
class EventMessage:
    """The commit message of one event; `error` is why its template was not rendered."""

    template: str
    text: str
    trailers: Mapping[str, str]
    error: str = ""


async def commit_message(event: Event, template: str, *, workers: WorkerPool) -> EventMessage:
    """Renders the commit message; like upstream, an invalid template is used as it is."""
    trailers = dict(event.contexts)
    if event.trigger_commit_hash:
        trailers[TRACE_TRAILER] = event.trigger_commit_hash
    data = {"Value": event.data, "EventName": event.name}
    default = f"Replace values with {quote(event.data)} set by Event {quote(event.name)}"
    text = template
    if has_actions(template):
        try:
            text = await workers.run(render, template, data, "commitMessage")
        except UserMistake as e:
            return EventMessage(template, template.strip(), trailers, str(e))
    return EventMessage(template, text.strip() or default, trailers)


@dataclass
class _PendingCommit:
    """A commit to which edits are added."""

    template: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    texts: dict[str, None] = field(default_factory=dict[str, None])
    trailers: dict[str, str] = field(default_factory=dict[str, str])

    def fits(self, message: EventMessage) -> bool:
        """Whether an edit with this message can be added: a trailer cannot have two values."""
        return self.template == message.template and all(
            self.trailers.get(key, value) == value for key, value in message.trailers.items()
        )

    def add(self, files: Mapping[str, bytes], message: EventMessage) -> None:
        self.files |= files
        self.texts[message.text] = None
        self.trailers |= message.trailers

    @property
    def draft(self) -> CommitDraft:
        return CommitDraft(self.files, "\n\n".join(self.texts), self.trailers)


class EditBatch:
    """Applies edits to a commit; `results` are those of the last call of `commits_on`.

    Each edit changes all of its files or none, so that no commit has half of a failed edit.
    `pushed` returns what is known of earlier pushes of an edit.
    """

    def __init__(
        self,
        mirror: Mirror,
        edits: Sequence[Edit],
        workers: WorkerPool,
        pushed: Callable[[Edit], PushedEdit | None],
    ) -> None:
        self._mirror, self._workers, self._pushed = mirror, workers, pushed
        # Sorted, so that edits that can share a commit are neighbours.
        self._edits = sorted(edits, key=lambda edit: edit.commit_group)
        self.results: list[tuple[Edit, EditResult]] = []
        self._drafts: list[CommitDraft] = []

    @property
    def message(self) -> str:
        """The message of the first commit."""
        return self._drafts[0].message if self._drafts else ""

    async def commits_on(self, base: str) -> list[CommitDraft]:
        """The commits to create on top of a base commit."""
        self.results, self._drafts = [], []
        files, commits = await self._read(base), list[_PendingCommit]()
        before, is_contained = dict(files), dict[str, bool]()
        for edit in self._edits:
            if (earlier := await self._push_in(base, edit, is_contained)) is not None:
                result = EditResult(earlier.files, is_in_branch=True, remark=earlier.remark)
                self.results.append((edit, result))
                continue
            message = await commit_message(
                edit.event, edit.definition.message, workers=self._workers
            )
            try:
                changed = await self._changed_files(edit, files)
            except PipecdError as e:
                self.results.append((edit, EditResult(error=str(e))))
                continue
            files |= changed
            needs_push = any(files[name] != before[name] for name in edit.files)
            result = EditResult(len(changed), needs_push, remark=message.error)
            self.results.append((edit, result))
            if not changed:
                continue
            if not commits or not commits[-1].fits(message):
                commits.append(_PendingCommit(message.template))
            commits[-1].add(changed, message)
        self._drafts = [commit.draft for commit in commits]
        return self._drafts

    async def _push_in(
        self, base: str, edit: Edit, is_contained: dict[str, bool]
    ) -> PushedEdit | None:
        """The earlier push of an edit that is part of the history of a commit.

        Edits of one push have the same commits, each of which is looked up once.
        """
        if (earlier := self._pushed(edit)) is None:
            return None
        for commit in reversed(earlier.commits):
            if commit not in is_contained:
                is_contained[commit] = await self._mirror.objects.is_ancestor(commit, base)
            if is_contained[commit]:
                return earlier
        return None

    async def _read(self, commit: str) -> dict[str, bytes | PipecdError]:
        """The files to change, or the errors why they cannot be."""
        names = frozenset[str]().union(*(edit.files for edit in self._edits))
        objects = self._mirror.objects
        located = await objects.locate(commit, names)
        blobs = [blob for blob in located.values() if isinstance(blob, Blob)]
        contents = await objects.read(blobs)
        files: dict[str, bytes | PipecdError] = {}
        for name, blob in located.items():
            if isinstance(blob, Missing):
                files[name] = NotFound(f"{name} {blob.reason}")
            elif (entry := await objects.entry(commit, name)) is None or entry.is_symlink:
                # A link would be replaced by a file, and its target would not change.
                files[name] = UserMistake(
                    f"{name} is reached by a symbolic link", hint="name the file it leads to"
                )
            else:
                files[name] = contents[blob.id]
        return files

    async def _changed_files(
        self, edit: Edit, files: Mapping[str, bytes | PipecdError]
    ) -> dict[str, bytes]:
        """The new content of the files that an edit changes."""
        if edit.definition.problem:
            raise UserMistake(edit.definition.problem)
        after: dict[str, bytes] = {}
        for replacement in edit.definition.replacements:
            before = after.get(replacement.file, files[replacement.file])
            if isinstance(before, PipecdError):
                raise before
            after[replacement.file] = await apply_replacement(
                before, replacement, edit.event.data, workers=self._workers
            )
        return {name: content for name, content in after.items() if content != files[name]}
