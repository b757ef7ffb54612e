# SPDX-License-Identifier: Apache-2.0
"""The mistakes of a configuration file, each with its position."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipecd.config.spec import Reference
from pipecd.model.errors import UserMistake

Path = tuple[str | int, ...]


def dotted(path: Path) -> str:
    """Return a path as text: `spec.pipeline.stages[3].with`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """A mistake: its position, the path of the value, what is wrong and what to write instead.

    Line and column count from 1, and are 0 for a value that did not come from a file.
    """

    file: str
    line: int
    column: int
    path: str
    what: str

    def __str__(self) -> str:
        position = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (position, self.path, self.what) if part)


@dataclass(frozen=True, slots=True)
class LocatedReference:
    """A reference to an entry of another file, with its position."""

    location: Mistake
    reference: Reference

    def mistake(self, what: str) -> Mistake:
        """Return a mistake at the position of the reference."""
        return replace(self.location, what=what)


@dataclass(frozen=True, slots=True)
class Report:
    """Every mistake of one file, in the order of lines.

    A file with mistakes cannot be used. A file with warnings is used as upstream uses it: the
    values with warnings are ignored, or fail later. `unplannable` are the warnings about what fails
    whenever a deployment is planned.
    """

    mistakes: tuple[Mistake, ...] = ()
    warnings: tuple[Mistake, ...] = ()
    unplannable: frozenset[Mistake] = frozenset()

    @classmethod
    def of(
        cls,
        mistakes: Iterable[Mistake],
        warnings: Iterable[Mistake],
        unplannable: Iterable[Mistake] = (),
    ) -> "Report":
        """Return a report in the order of lines, without duplicates."""
        failing = frozenset(unplannable)
        return cls(tuple(sorted(set(mistakes))), tuple(sorted({*warnings, *failing})), failing)

    def __str__(self) -> str:
        return "\n".join(str(mistake) for mistake in self.mistakes)


class ConfigMistake(UserMistake):
    """A configuration file cannot be used; `report` has its mistakes."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
