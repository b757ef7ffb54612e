# SPDX-License-Identifier: Apache-2.0
"""What happened to an installation, with real times: `History` is written to a file while it grows."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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
