# SPDX-License-Identifier: Apache-2.0
"""What was seen from outside while an installation was used and broken, with real times.

`History` is written to a file while it grows. `Evidence` is what the model is checked on: the history and
what targets, receivers and the control plane say when everything has settled.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults.applications import FaultyApplication
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.event_pb2 import Event


@dataclass(frozen=True)
class Record:
    """One thing that happened: a step, an answer, a status, a line of a target."""

    at: float
    lane: str
    """What it happened to: an application, a program, a server, `network`, `git`."""
    text: str
    kind: str = ""
    """`fault`, `operation`, `status`, `target`, `violation` or `harness`."""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class History:
    """The records in the order in which they were made, also in a file."""

    file: Path
    records: list[Record] = field(default_factory=list[Record])

    @classmethod
    def begin(cls, file: Path) -> "History":
        """An empty history in a new file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        return cls(file)

    def add(self, lane: str, text: str, kind: str, **data: Any) -> Record:
        record = Record(time.time(), lane, text, kind, data)
        self.records.append(record)
        with self.file.open("a") as file:
            file.write(f"{json.dumps([record.at, lane, kind, text, data])}\n")
        return record


@dataclass(frozen=True)
class TruthLine:
    """One line that a target wrote: `begin`, `end` or `overlap` of a script, `start`, `apply`."""

    what: str
    application: str
    deployment: str
    commit: str
    pid: str
    at: float
    label: str


def read_truth(file: Path) -> list[TruthLine]:
    """The lines in the order in which they were written; the last one may be incomplete."""
    lines: list[TruthLine] = []
    for line in file.read_text().splitlines() if file.exists() else ():
        what, *rest = line.split()
        if len(rest) == 6:
            application, deployment, commit, pid, at, label = rest
            lines.append(TruthLine(what, application, deployment, commit, pid, float(at), label))
    return lines


@dataclass(frozen=True)
class Requested:
    """A request of a user, and whether it was acknowledged; if not, it may have had an effect."""

    kind: str
    application: str
    id: str = ""
    """The id of the command, event or deployment, if it was acknowledged."""
    person: str = ""
    deployment: str = ""
    stage: str = ""
    value: str = ""

    @property
    def is_acknowledged(self) -> bool:
        return bool(self.id)


@dataclass(frozen=True)
class SeenStatus:
    """A status when a client saw it first."""

    at: float
    status: DeploymentStatus | StageStatus


@dataclass(frozen=True)
class Notification:
    """A notification as it arrived."""

    at: float
    deployment: str
    type: str


@dataclass(frozen=True)
class Resources:
    """What a process uses."""

    pid: int
    memory: int
    threads: int
    files: int


@dataclass
class Evidence:
    """Everything that the model is checked on."""

    applications: Sequence[FaultyApplication] = ()
    deployments: Sequence[Deployment] = ()
    truth: Sequence[TruthLine] = ()
    requests: Sequence[Requested] = ()
    commands: Mapping[str, Command] = field(default_factory=dict[str, Command])
    events: Mapping[str, Event] = field(default_factory=dict[str, Event])
    event_commits: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many commits wrote the value of an event."""
    is_history_rewritten: bool = False
    """Whether commits may be gone, since the repository was created again."""
    notifications: Sequence[Notification] = ()
    lost_workspaces: frozenset[str] = frozenset()
    """The pipeds whose workspace was lost, damaged, replaced or full."""
    interruptions: Mapping[str, Sequence[float]] = field(default_factory=dict[str, Sequence[float]])
    """When a process that runs stages of a piped was started or killed, by the id of the piped."""
    completed_at: Mapping[str, float] = field(default_factory=dict[str, float])
    """When a client first saw a deployment as completed."""
    completed_stages: Mapping[tuple[str, str], float] = field(
        default_factory=dict[tuple[str, str], float]
    )
    """When a client first saw a stage as completed, by the ids of deployment and stage."""
    logs: Mapping[tuple[str, str], Sequence[str]] = field(
        default_factory=dict[tuple[str, str], Sequence[str]]
    )
    """The lines of stage logs in the end, by the ids of deployment and stage."""
    seen_logs: Mapping[tuple[str, str], Sequence[str]] = field(
        default_factory=dict[tuple[str, str], Sequence[str]]
    )
    """The lines that a client saw while the stage ran."""
    tracebacks: Sequence[str] = ()
    resources: Sequence[tuple[str, Resources, Resources]] = ()
    """Programs with what they used when they had settled first, and what they use now."""
