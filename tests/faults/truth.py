# SPDX-License-Identifier: Apache-2.0
"""What targets wrote themselves: lines of scripts, programs and provisioners, and the cluster's audit log.

Both files only grow, so that every line is read once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from faults.applications import SETTING_LABEL

# What the message of a commit says before the value of an event.
_EVENT = "event "


@dataclass(frozen=True)
class TruthLine:
    """One line that a target wrote.

    `begin`, `end` and `overlap` are of scripts, `apply` and `overlap` of Terraform, `start` of programs,
    `launch` of the piped that a launcher starts.
    """

    what: str
    application: str
    deployment: str
    commit: str
    pid: str
    at: float
    label: str
    setting: str = ""
    """The value that the configuration sets; empty if the target was not given any."""


@dataclass(frozen=True)
class ClusterWrite:
    """A change of an object of an application, as the API server of the cluster logged it."""

    at: float
    application: str
    kind: str
    verb: str
    revision: str = ""
    """The revision that it writes, if the object has one."""


@dataclass
class GrowingFile:
    """The complete lines of a file that others append to."""

    file: Path
    _offset: int = 0

    def new_lines(self) -> list[str]:
        """Returns the lines since the last call; a last line without an end waits for it."""
        if not self.file.exists():
            return []
        with self.file.open("rb") as opened:
            opened.seek(self._offset)
            content = opened.read()
        complete, end, _ = content.rpartition(b"\n")
        self._offset += len(complete) + len(end)
        return complete.decode(errors="replace").splitlines()


@dataclass
class Truth:
    """Everything that targets have written so far."""

    file: GrowingFile
    audit_log: GrowingFile | None = None
    lines: list[TruthLine] = field(default_factory=list[TruthLine])
    writes: list[ClusterWrite] = field(default_factory=list[ClusterWrite])

    @classmethod
    def of(cls, file: Path, audit_log: Path | None = None) -> "Truth":
        return cls(GrowingFile(file), GrowingFile(audit_log) if audit_log else None)

    def read(self) -> list[TruthLine]:
        """Reads what is new; returns all lines in the order in which they were written."""
        for line in self.file.new_lines():
            if parsed := parse_line(line):
                self.lines.append(parsed)
        if self.audit_log is not None:
            for line in self.audit_log.new_lines():
                if write := parse_audit(line):
                    self.writes.append(write)
        return self.lines


def parse_line(line: str) -> TruthLine | None:
    """One line; None if a full disk or a kill has cut it off."""
    what, *rest = line.split() or [""]
    if len(rest) not in (6, 7):
        return None
    application, deployment, commit, pid, at, label, *setting = rest
    return TruthLine(what, application, deployment, commit, pid, float(at), label, *setting)


def parse_audit(line: str) -> ClusterWrite | None:
    """An entry of the audit log; None if nothing of an application was changed by it."""
    try:
        entry: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    is_ours = "kube-" not in entry.get("userAgent", "") and "dryRun" not in entry["requestURI"]
    if not is_ours or entry.get("responseStatus", {}).get("code", 500) >= 400:
        return None
    at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
    reference: dict[str, str] = entry["objectRef"]
    # Variants are objects of their own.
    application = reference.get("name", "").removesuffix("-canary").removesuffix("-baseline")
    application = application.removesuffix(f"-{SETTING_LABEL}")
    data: dict[str, str] = (entry.get("requestObject") or {}).get("data") or {}
    return ClusterWrite(
        at, application, reference["resource"], entry["verb"], data.get("revision", "")
    )


def event_commits(
    messages: Mapping[str, str], parents: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """How many commits of one history wrote the value of each event, by the value.

    A commit may write the values of several events, each in a paragraph of its message. A value whose
    commit is gone after a force push is rightly written again.
    """
    values = {commit: _values(message) for commit, message in messages.items()}
    most: dict[str, int] = {}
    for commit, written in values.items():
        if not written:
            continue
        history, left = set[str](), [commit]
        while left:
            if (each := left.pop()) not in history:
                history.add(each)
                left += parents.get(each, ())
        for value in written:
            count = sum(value in values.get(each, ()) for each in history)
            most[value] = max(count, most.get(value, 0))
    return most


def _values(message: str) -> frozenset[str]:
    lines = message.splitlines()
    return frozenset(each.removeprefix(_EVENT) for each in lines if each.startswith(_EVENT))
