# SPDX-License-Identifier: Apache-2.0
"""A promise that was not kept."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """A rule that did not hold, and where."""

    rule: str
    text: str
    lane: str = ""
    """The application, piped or program."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"
