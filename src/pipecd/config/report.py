# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration file, every mistake with its place."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pipecd.config.spec import Reference
from pipecd.model.errors import UserMistake

Path = tuple[str | int, ...]


def dotted(path: Path) -> str:
    """Write a path as people do: `spec.pipeline.stages[3].with`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One wrong thing: where it stands, which value it is, what is wrong and what to write.

    Line and column count from 1; 0 is for a value that was never in a file.
    """

    file: str
    line: int
    column: int
    path: str
    what: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return ": ".join(part for part in (place, self.path, self.what) if part)


@dataclass(frozen=True, slots=True)
class Mention:
    """Where a file names something that another file has."""

    place: Mistake
    reference: Reference

    def mistake(self, what: str) -> Mistake:
        """Return what is wrong with the name."""
        return replace(self.place, what=what)


@dataclass(frozen=True, slots=True)
class Report:
    """Every mistake of one file, in the order of its lines.

    Mistakes keep the file from being used. Warnings do not: the file is used as upstream uses it,
    and what they name is ignored or fails later.
    """

    mistakes: tuple[Mistake, ...] = ()
    warnings: tuple[Mistake, ...] = ()

    @classmethod
    def of(cls, mistakes: Iterable[Mistake], warnings: Iterable[Mistake]) -> "Report":
        """Return a report in the order of lines, nothing told twice."""
        return cls(tuple(sorted(set(mistakes))), tuple(sorted(set(warnings))))

    def __str__(self) -> str:
        return "\n".join(str(mistake) for mistake in self.mistakes)


class ConfigMistake(UserMistake):
    """A configuration file cannot be used; `report` holds every mistake in it."""

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report
