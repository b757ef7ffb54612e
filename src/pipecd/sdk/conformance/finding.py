# SPDX-License-Identifier: Apache-2.0
"""What was found out about a plugin."""

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """How one question was answered."""

    OK = "ok"
    FAILED = "FAILED"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One question and its answer; `why` is for those that are not in order."""

    question: str
    verdict: Verdict
    why: str = ""

    def __str__(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.verdict.value:8}{self.question}{why}"


class Wrong(Exception):
    """The plugin does not do what it must."""


class NotTried(Exception):
    """The plugin does not offer it, or nobody said how to try it."""
