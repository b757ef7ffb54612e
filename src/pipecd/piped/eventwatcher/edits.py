# SPDX-License-Identifier: Apache-2.0
"""The commits that events make of one branch, with what became of each event in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipecd.git.mirror import Mirror
from pipecd.git.objects import Blob, Missing
from pipecd.git.push import CommitDraft
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.piped.eventwatcher.definition import Definition
from pipecd.piped.eventwatcher.message import Message, message_of
from pipecd.piped.eventwatcher.replace.replacement import replaced
from pipecd.proto.model.event_pb2 import Event


@dataclass(frozen=True)
class Task:
    """An event and one definition that it fits."""

    event: Event
    definition: Definition

    @property
    def files(self) -> frozenset[str]:
        """The files that it may change."""
        return frozenset(r.file for r in self.definition.replacements)

    @property
    def words(self) -> tuple[str, str]:
        """What decides with whom it may share a commit."""
        return self.definition.message, self.event.trigger_commit_hash


@dataclass(frozen=True)
class Result:
    """How many files a task changed, or why it could not; `remark` is shown in any case.

    One that changed nothing may need the push nevertheless, if another task was faster.
    """

    files: int = 0
    needs_push: bool = False
    error: str = ""
    remark: str = ""


@dataclass
class _Page:
    """A commit in the making."""

    template: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    texts: dict[str, None] = field(default_factory=dict[str, None])
    trailers: dict[str, str] = field(default_factory=dict[str, str])

    def fits(self, message: Message) -> bool:
        """Whether a commit can say this too: one trailer cannot have two values."""
        return self.template == message.template and all(
            self.trailers.get(key, value) == value for key, value in message.trailers.items()
        )

    def add(self, files: Mapping[str, bytes], message: Message) -> None:
        self.files |= files
        self.texts[message.text] = None
        self.trailers |= message.trailers

    @property
    def draft(self) -> CommitDraft:
        return CommitDraft(self.files, "\n\n".join(self.texts), self.trailers)


class Edits:
    """Applies tasks to whatever commit they are asked for; `results` are those of the last one.

    Each task changes all of its files or none, so that what failed is in no commit.
    """

    def __init__(self, mirror: Mirror, tasks: Sequence[Task]) -> None:
        self._mirror = mirror
        # Those that can share a commit stand together.
        self._tasks = sorted(tasks, key=lambda task: task.words)
        self.results: list[tuple[Task, Result]] = []
        self._drafts: list[CommitDraft] = []

    @property
    def message(self) -> str:
        """What the first of the commits says."""
        return self._drafts[0].message if self._drafts else ""

    async def at(self, commit: str) -> list[CommitDraft]:
        """The commits to put on top of one."""
        self.results, self._drafts = [], []
        files, pages = await self._read(commit), list[_Page]()
        before = dict(files)
        for task in self._tasks:
            message = message_of(task.event, task.definition.message)
            try:
                changed = await _changed(task, files)
            except PipecdError as e:
                self.results.append((task, Result(error=str(e))))
                continue
            files |= changed
            needs_push = any(files[name] != before[name] for name in task.files)
            result = Result(len(changed), needs_push, remark=message.mistake)
            self.results.append((task, result))
            if not changed:
                continue
            if not pages or not pages[-1].fits(message):
                pages.append(_Page(message.template))
            pages[-1].add(changed, message)
        self._drafts = [page.draft for page in pages]
        return self._drafts

    async def _read(self, commit: str) -> dict[str, bytes | PipecdError]:
        """The files that are to be changed, or why they cannot be."""
        names = frozenset[str]().union(*(task.files for task in self._tasks))
        objects = self._mirror.objects
        places = await objects.locate(commit, names)
        blobs = [place for place in places.values() if isinstance(place, Blob)]
        contents = await objects.read(blobs)
        files: dict[str, bytes | PipecdError] = {}
        for name, place in places.items():
            if isinstance(place, Missing):
                files[name] = NotFound(f"{name} {place.reason}")
            elif (entry := await objects.entry(commit, name)) is None or entry.is_symlink:
                # A link would be replaced by a file; what it leads to has a name of its own.
                files[name] = UserMistake(
                    f"{name} is reached by a symbolic link", hint="name the file it leads to"
                )
            else:
                files[name] = contents[place.id]
        return files


async def _changed(task: Task, files: Mapping[str, bytes | PipecdError]) -> dict[str, bytes]:
    """The files that a task makes different."""
    if task.definition.problem:
        raise UserMistake(task.definition.problem)
    after: dict[str, bytes] = {}
    for replacement in task.definition.replacements:
        before = after.get(replacement.file, files[replacement.file])
        if isinstance(before, PipecdError):
            raise before
        after[replacement.file] = await replaced(before, replacement, task.event.data)
    return {name: content for name, content in after.items() if content != files[name]}
