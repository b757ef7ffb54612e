# SPDX-License-Identifier: Apache-2.0
"""Who holds the lock of a state, and whether it is an apply of ours that was killed.

Terraform unlocks the state when it ends, but not when it is killed. Such a lock is removed only if
it is certainly our own: it was taken on this machine, by the user of piped, for an apply, while an
apply of this application ran that did not end by itself, and no process of this machine that may
have taken it runs any more.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipecd.plugins.terraform.apply_process import ApplyProcess

_FIELD = re.compile(r"^\s*(ID|Operation|Who|Created):\s*(.+?)\s*$", re.MULTILINE)
# The backend `http` of Terraform shows the lock that it wanted, and only the id of the one it met.
_MET = re.compile(r"already locked: ID=(\S+)")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d)(\.\d+)? \+0000")
_APPLY = "OperationTypeApply"
# The kernel tells when a process started to the second, and the clock may have been adjusted.
_CLOCK_ERROR = timedelta(seconds=3)


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

    def possible_holders(self, running: Iterable[ApplyProcess]) -> tuple[ApplyProcess, ...]:
        """Returns the processes of this machine that may have taken the lock."""
        taken_at = self.taken_at
        return tuple(
            process
            for process in running
            if taken_at is None or process.started_at <= taken_at + _CLOCK_ERROR
        )


@dataclass(frozen=True)
class UnfinishedApply:
    """An apply that did not end by itself: on which machine it ran, and between which times.

    `run` is in the environment of its process.
    """

    who: str
    started_at: datetime
    ended_at: datetime
    run: str = ""

    def may_be(self, process: ApplyProcess) -> bool:
        """Reports whether the process began while this apply ran."""
        return self.started_at - _CLOCK_ERROR <= process.started_at <= self.ended_at + _CLOCK_ERROR

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
