# SPDX-License-Identifier: Apache-2.0
"""Which commits have the values of events that are not reported yet, on disk.

A piped that is killed between push and report, or does not learn whether a push arrived, finds
the commit in the branch later. It writes nothing again then, although a user may have reverted that
commit meanwhile. Without the file it would write a reverted value again.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, StringConstraints, TypeAdapter

from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.piped.state_file import StateFile

# Events are reported within minutes, and outdated after an hour. Clocks may be stepped.
_KEPT_SECONDS = 24 * 3600
# A push whose end is unknown is tried again for ten minutes.
_COMMITS_KEPT = 20

EditId = tuple[str, str]
"""The id of an event, and what identifies one of its edits."""


@dataclass(frozen=True)
class PushedEdit:
    """The commits one of which has an edit, if it is in the branch, and how that is reported."""

    commits: tuple[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40,64}$")], ...]
    at: int
    files: int
    remark: str


_EditsOfEvents = dict[str, dict[str, PushedEdit]]
_FILE = TypeAdapter(dict[str, _EditsOfEvents], config=ConfigDict(strict=True))


class PushedEdits:
    """The edits of all repositories that were pushed, or may have been, and are not reported."""

    def __init__(self, file: Path, *, now: Now = utc_now) -> None:
        self._file = StateFile(file, "a restart may write values of events again")
        self._now = now
        self._edits: dict[str, _EditsOfEvents] = {}
        self._is_loaded = False
        self._lock = asyncio.Lock()

    async def load(self) -> None:
        """Reads the file of an earlier process, once; a missing or invalid one is not an error."""
        async with self._lock:
            if not self._is_loaded:
                self._edits = await asyncio.to_thread(self._file.read, _FILE.validate_json) or {}
                self._is_loaded = True

    def of(self, repository_id: str, edit: EditId) -> PushedEdit | None:
        """Returns what is known of an edit; None if it was never about to be pushed."""
        event_id, name = edit
        return self._edits.get(repository_id, {}).get(event_id, {}).get(name)

    async def add(
        self,
        repository_id: str,
        commit: str,
        edits: Mapping[EditId, tuple[int, str]],
        *,
        is_reported: Callable[[str], bool],
    ) -> None:
        """Stores the commit that has these edits, with their count of files and their remark.

        Events of this repository that are reported are dropped, and old ones.
        """
        async with self._lock:
            at = to_unix(self._now())
            kept = self._edits.setdefault(repository_id, {})
            for (event_id, name), (files, remark) in edits.items():
                before = self.of(repository_id, (event_id, name))
                commits = (*(before.commits if before else ()), commit)[-_COMMITS_KEPT:]
                kept.setdefault(event_id, {})[name] = PushedEdit(commits, at, files, remark)
            for event_id, of_event in tuple(kept.items()):
                is_old = all(abs(at - edit.at) > _KEPT_SECONDS for edit in of_event.values())
                if is_old or is_reported(event_id):
                    del kept[event_id]
            await asyncio.to_thread(self._file.write, _FILE.dump_json(self._edits))
