# SPDX-License-Identifier: Apache-2.0
"""The lines of a stage log, numbered and coloured."""

from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup

from pipecd.controlplane.console.ansi import ansi_html, strip_ansi
from pipecd.model.clock import from_unix
from pipecd.model.count import parse_count
from pipecd.model.severity import LogSeverity
from pipecd.proto.model.logblock_pb2 import LogBlock

TAIL_LINES = 1000
# A longer block is cut on the page, and is whole in the raw log.
MAX_BLOCK_CHARACTERS = 100_000
# The page shows fewer lines of a log whose lines are longer than this together.
MAX_TAIL_CHARACTERS = 4_000_000


@dataclass(frozen=True)
class LogCursor:
    """The position of a reader: index and line number of the last block read."""

    index: int = -1
    number: int = 0

    def __str__(self) -> str:
        return f"{self.index}:{self.number}"


def parse_cursor(text: str) -> LogCursor:
    """A cursor that the browser sent back; anything invalid means the start of the log."""
    index, number = map(parse_count, text.partition(":")[::2])
    return LogCursor() if index is None or number is None else LogCursor(index, number)


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
class LogView:
    """A part of a log; `omitted` lines precede it, and reading continues after `cursor`."""

    lines: tuple[LogLine, ...]
    omitted: int
    cursor: LogCursor
    completed: bool


def log_lines(blocks: Iterable[LogBlock], after: LogCursor) -> tuple[LogLine, ...]:
    """The lines after a cursor."""
    lines: list[LogLine] = []
    new = (block for block in blocks if block.index > after.index)
    for number, block in enumerate(new, after.number + 1):
        at = from_unix(block.created_at)
        lines.append(
            LogLine(
                number=number,
                index=block.index,
                severity=LogSeverity(block.severity).name.lower(),
                iso=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
                exact=at.strftime("%Y-%m-%d %H:%M:%S UTC"),
                clock=at.strftime("%H:%M:%S"),
                html=_html(block.log.rstrip("\n")),
            )
        )
    return tuple(lines)


def log_tail(blocks: Iterable[LogBlock], *, completed: bool, size: int = TAIL_LINES) -> LogView:
    """The last lines of a whole log."""
    whole = list(blocks)
    omitted, characters = len(whole), 0
    while omitted > max(len(whole) - size, 0):
        characters += min(len(whole[omitted - 1].log), MAX_BLOCK_CHARACTERS)
        if characters > MAX_TAIL_CHARACTERS:
            break
        omitted -= 1
    cursor = LogCursor(whole[-1].index, len(whole)) if whole else LogCursor()
    start = LogCursor(whole[omitted - 1].index, omitted) if omitted else LogCursor()
    return LogView(log_lines(whole[omitted:], start), omitted, cursor, completed)


def log_after(blocks: Iterable[LogBlock], after: LogCursor, *, completed: bool) -> LogView:
    """The lines after a cursor, as a view."""
    lines = log_lines(blocks, after)
    cursor = LogCursor(lines[-1].index, lines[-1].number) if lines else after
    return LogView(lines, 0, cursor, completed)


def log_text(blocks: Iterable[LogBlock], *, ansi: bool) -> str:
    """The log as a text file, with or without ANSI escape sequences."""
    return "".join(
        f"{from_unix(block.created_at):%Y-%m-%dT%H:%M:%SZ} "
        f"{block.log if ansi else strip_ansi(block.log)}".rstrip("\n")
        + "\n"
        for block in blocks
    )


def _html(text: str) -> Markup:
    if len(text) <= MAX_BLOCK_CHARACTERS:
        return ansi_html(text)
    shown = ansi_html(text[:MAX_BLOCK_CHARACTERS])
    rest = len(text) - MAX_BLOCK_CHARACTERS
    return shown + f"\n… {rest} more characters are in the raw log"
