# SPDX-License-Identifier: Apache-2.0
"""The lock of the state that a killed apply leaves behind.

Terraform unlocks the state when it ends, but not when it is killed, for example with piped. Such a
lock is removed only if it is certainly our own: it was taken on this machine, by the user of piped,
for an apply, while an apply of this application ran that did not end by itself, and no other one
runs on this machine.
"""

import asyncio
import json
import os
import pwd
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_FIELD = re.compile(r"^\s*(ID|Operation|Who|Created):\s*(.+?)\s*$", re.MULTILINE)
# The backend `http` of Terraform shows the lock that it wanted, and only the id of the one it met.
_MET = re.compile(r"already locked: ID=(\S+)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d+)? \+0000")
_APPLY = "OperationTypeApply"


@dataclass(frozen=True)
class StateLock:
    """Who holds the lock of a state, as Terraform prints it."""

    id: str = ""
    who: str = ""
    operation: str = ""
    created: str = ""

    @classmethod
    def read(cls, text: str) -> "StateLock":
        """Reads the error of a command that could not lock the state."""
        found = {match[1]: match[2] for match in _FIELD.finditer(text)}
        if (met := _MET.search(text)) and met[1] != found.get("ID"):
            return cls(met[1])
        return cls(
            found.get("ID", ""),
            found.get("Who", ""),
            found.get("Operation", ""),
            found.get("Created", ""),
        )

    @property
    def taken_at(self) -> datetime | None:
        """When the lock was taken; None if that is not known."""
        if (found := _TIME.match(self.created)) is None:
            return None
        fraction = (found[3] or ".0")[1:7].ljust(6, "0")
        return datetime.fromisoformat(f"{found[1]}T{found[2]}.{fraction}+00:00")


@dataclass(frozen=True)
class UnfinishedApply:
    """An apply that did not end by itself: on which machine it ran, and between which times."""

    who: str
    started_at: datetime
    ended_at: datetime

    def holds(self, lock: StateLock) -> bool:
        """Reports whether the lock was taken by this apply."""
        taken_at = lock.taken_at
        return (
            bool(lock.id)
            and lock.who == self.who
            and lock.operation == _APPLY
            and taken_at is not None
            and self.started_at <= taken_at <= self.ended_at
        )


class ApplyRecords:
    """Files about the applies that run, which are there after a kill, too."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # An apply without an end was killed with the former process of piped.
        self._opened_at = datetime.now(UTC)

    async def unfinished(self, application_id: str) -> UnfinishedApply | None:
        """Returns the last apply of an application if it did not end by itself."""
        try:
            text = await asyncio.to_thread(self._file(application_id).read_bytes)
            read: Any = json.loads(text)
            started_at = datetime.fromisoformat(read["started"])
            ended_at = datetime.fromisoformat(read["ended"]) if "ended" in read else self._opened_at
            return UnfinishedApply(str(read["who"]), started_at, ended_at)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @asynccontextmanager
    async def applying(
        self, application_id: str, *, after: UnfinishedApply | None
    ) -> AsyncIterator[None]:
        """Records an apply while it runs; one that is cancelled may be killed in the end.

        The lock of an apply that it follows may still be there when it is killed itself.
        """
        who = _who()
        is_same = after is not None and after.who == who
        started = after.started_at.isoformat() if after is not None and is_same else _now()
        file, record = self._file(application_id), {"who": who, "started": started}
        await asyncio.to_thread(_write, file, record)
        try:
            yield
        except BaseException:
            _write(file, {**record, "ended": _now()})
            raise
        await asyncio.to_thread(file.unlink, missing_ok=True)

    def _file(self, application_id: str) -> Path:
        return self._directory / f"{application_id}.json"


def is_any_running() -> bool:
    """Reports whether any apply runs on this machine, or cannot be excluded."""
    try:
        processes = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
    except OSError:
        return True
    return not processes or any(_is_apply(process) for process in processes)


def _is_apply(process: Path) -> bool:
    try:
        program, *arguments = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    name = Path(os.fsdecode(program)).name
    return name.startswith(("terraform", "tofu")) and b"apply" in arguments


def _write(file: Path, record: dict[str, str]) -> None:
    file.parent.mkdir(exist_ok=True, mode=0o700)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(record))
    new.replace(file)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _who() -> str:
    """Returns this user and machine in the way of Terraform."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = os.environ.get("USER", "")
    return f"{user}@{socket.gethostname()}"
