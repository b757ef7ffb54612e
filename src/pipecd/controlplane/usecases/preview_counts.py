# SPDX-License-Identifier: Apache-2.0
"""How many applications a plan preview has, by what became of them.

A list of previews shows it, and must not read the results for that, which may be megabytes long:
the counts are stored with the command when its piped reports the result.
"""

import re
from dataclasses import dataclass

from pipecd.model.document import from_json
from pipecd.proto.model.planpreview_pb2 import (
    ApplicationPlanPreviewResult,
    PlanPreviewCommandResult,
)

_STORED = re.compile(r"([0-9]{1,6}) ([0-9]{1,6}) ([0-9]{1,6})")


@dataclass(frozen=True)
class PreviewCounts:
    """Applications that would change, that would not, and whose preview failed."""

    changed: int = 0
    unchanged: int = 0
    failed: int = 0

    def __add__(self, other: "PreviewCounts") -> "PreviewCounts":
        return PreviewCounts(
            self.changed + other.changed,
            self.unchanged + other.unchanged,
            self.failed + other.failed,
        )

    def __str__(self) -> str:
        """As it is stored."""
        return f"{self.changed} {self.unchanged} {self.failed}"


_CHANGED, _UNCHANGED, _FAILED = (
    PreviewCounts(changed=1),
    PreviewCounts(unchanged=1),
    PreviewCounts(failed=1),
)


def count_of(result: ApplicationPlanPreviewResult) -> PreviewCounts:
    """What became of one application."""
    if result.error:
        return _FAILED
    return _UNCHANGED if result.no_change else _CHANGED


def count_applications(output: bytes) -> PreviewCounts | None:
    """The counts of a result; None for one that failed as a whole or cannot be read."""
    try:
        result = from_json(output, PlanPreviewCommandResult)
    except (ValueError, RecursionError):
        return None
    if result.error:
        return None
    return sum(map(count_of, result.results), PreviewCounts())


def parse_counts(stored: str) -> PreviewCounts | None:
    found = _STORED.fullmatch(stored)
    return PreviewCounts(*map(int, found.groups())) if found else None
