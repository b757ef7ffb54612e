# SPDX-License-Identifier: Apache-2.0
"""The lines of a stage log, numbered and coloured."""

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from pipecd.controlplane.console.ansi import ansi_html, plain
from pipecd.model.clock import from_unix
from pipecd.model.severity import LogSeverity
from pipecd.proto.model.logblock_pb2 import LogBlock

WINDOW = 1000


@dataclass(frozen=True)
class Place:
    """Where a reader of a log stands: the index of the last block read and its number."""

    index: int = -1
    number: int = 0

    def __str__(self) -> str:
        return f"{self.index}:{self.number}"


def read_place(text: str) -> Place:
    """A place as it comes back from the browser; anything else is the beginning."""
    index, _, number = text.partition(":")
    if index.isascii() and number.isascii() and index.isdigit() and number.isdigit():
        return Place(int(index), int(number))
    return Place()


@dataclass(frozen=True)
class LogLine:
    """One block; its text may have several lines."""

    number: int
    index: int
    severity: str
    iso: str
    exact: str
    clock: str
    html: Markup


@dataclass(frozen=True)
class LogWindow:
    """The end of a log; `earlier` says how many lines stand before it."""

    lines: tuple[LogLine, ...]
    earlier: int
    place: Place
    completed: bool


def log_lines(blocks: Iterable[LogBlock], after: Place) -> tuple[LogLine, ...]:
    """The blocks that follow a place."""
    new = [block for block in blocks if block.index > after.index]
    return tuple(_line(block, number) for number, block in enumerate(new, after.number + 1))


def log_window(blocks: Iterable[LogBlock], *, completed: bool, size: int = WINDOW) -> LogWindow:
    """The last lines of a whole log."""
    whole = list(blocks)
    earlier = max(len(whole) - size, 0)
    place = Place(whole[-1].index, len(whole)) if whole else Place()
    start = Place(whole[earlier - 1].index, earlier) if earlier else Place()
    return LogWindow(log_lines(whole[earlier:], start), earlier, place, completed)


def log_rest(blocks: Iterable[LogBlock], after: Place, *, completed: bool) -> LogWindow:
    """What follows a place."""
    lines = log_lines(blocks, after)
    place = Place(lines[-1].index, lines[-1].number) if lines else after
    return LogWindow(lines, 0, place, completed)


def log_text(blocks: Iterable[LogBlock], *, ansi: bool) -> str:
    """The log as a text file."""
    return "".join(
        f"{from_unix(block.created_at):%Y-%m-%dT%H:%M:%SZ} "
        f"{block.log if ansi else plain(block.log)}".rstrip("\n")
        + "\n"
        for block in blocks
    )


def _line(block: LogBlock, number: int) -> LogLine:
    at = from_unix(block.created_at)
    return LogLine(
        number=number,
        index=block.index,
        severity=LogSeverity(block.severity).name.lower(),
        iso=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        exact=at.strftime("%Y-%m-%d %H:%M:%S UTC"),
        clock=at.strftime("%H:%M:%S"),
        html=ansi_html(block.log.rstrip("\n")),
    )
