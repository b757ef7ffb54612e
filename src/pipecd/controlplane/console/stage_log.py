# SPDX-License-Identifier: Apache-2.0
"""The lines of a stage log, numbered and coloured; a page shows a window of them."""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from markupsafe import Markup

from pipecd.controlplane.console.ansi import ansi_html, visible_text
from pipecd.controlplane.console.first_error import ErrorExcerpt
from pipecd.controlplane.console.formatting import zone_name
from pipecd.controlplane.datastore.log_file import StoredLog
from pipecd.model.clock import from_unix
from pipecd.model.count import counted, parse_count
from pipecd.model.severity import LogSeverity
from pipecd.proto.model.logblock_pb2 import LogBlock

WINDOW_LINES = 1000
# A longer block is cut on the page, and is whole in the raw log.
MAX_BLOCK_CHARACTERS = 100_000
# The page shows fewer lines of a log whose lines are longer than this together.
MAX_WINDOW_CHARACTERS = 4_000_000
MAX_FIND_CHARACTERS = 200
ERRORS, MATCHES = "errors", "matches"


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
class LogQuery:
    """What a page shows of a log; line numbers and matches count from one, 0 means none.

    `only` is ERRORS, MATCHES or empty for all lines, `first` the line that the window starts with,
    and `chosen` the first and last line of a permalink.
    """

    find: str = ""
    match: int = 0
    only: str = ""
    first: int = 0
    chosen: tuple[int, int] = (0, 0)

    @property
    def key(self) -> str:
        """Differs where the lines of two pages do; empty for the end of the log."""
        if self == LogQuery():
            return ""
        chosen = "-".join(map(str, self.chosen))
        return f"{self.only}:{self.first}:{chosen}:{self.match}:{self.find}"

    @property
    def pattern(self) -> re.Pattern[str] | None:
        return re.compile(re.escape(self.find), re.IGNORECASE) if self.find else None


def parse_log_query(params: Mapping[str, str]) -> LogQuery:
    """The query in the parameters of a page; what is invalid is as if it were not there."""
    text = params.get("find", "")
    # Spaces count, as in "batch 5 ", but nothing else than spaces is nothing to find.
    find = text[:MAX_FIND_CHARACTERS] if text.strip() else ""
    only = params.get("only", "")
    is_known = only == ERRORS or (only == MATCHES and find)
    return LogQuery(
        find=find,
        match=(parse_count(params.get("match", "")) or 1) if find else 0,
        only=only if is_known else "",
        first=parse_count(params.get("from", "")) or 0,
        chosen=parse_lines(params.get("at", "")),
    )


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
    is_current: bool = False
    is_chosen: bool = False
    # The anchor of a permalink to several lines, at the first of them.
    anchor: str = ""


@dataclass(frozen=True)
class LogView:
    """A window of a log, and what there is besides it.

    `before` and `after` are numbers of lines that the window leaves out, and `earlier` and `later`
    the first lines of the windows next to it. `match` is the number of the current match.
    `first_error` is set if the stage failed and its first error is not near the end of the log.
    """

    lines: tuple[LogLine, ...]
    total: int
    completed: bool
    cursor: LogCursor
    before: int = 0
    after: int = 0
    earlier: int = 0
    later: int = 0
    errors: int = 0
    matches: int = 0
    match: int = 0
    first_error: ErrorExcerpt | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether new lines of the log continue the window."""
        return not self.after


def log_lines(
    blocks: Iterable[LogBlock], after: LogCursor, zone: tzinfo = UTC
) -> tuple[LogLine, ...]:
    """The lines after a cursor, with times in that zone."""
    new = (block for block in blocks if block.index > after.index)
    return tuple(_line(block, number, zone) for number, block in enumerate(new, after.number + 1))


def _line(
    block: LogBlock,
    number: int,
    zone: tzinfo,
    *,
    mark: re.Pattern[str] | None = None,
    is_current: bool = False,
    chosen: tuple[int, int] = (0, 0),
) -> LogLine:
    at = from_unix(block.created_at)
    local = at.astimezone(zone)
    return LogLine(
        number=number,
        index=block.index,
        severity=LogSeverity(block.severity).name.lower(),
        iso=at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        exact=f"{local:%Y-%m-%d %H:%M:%S} {zone_name(local)}",
        clock=local.strftime("%H:%M:%S"),
        html=_html(block.log.rstrip("\n"), mark),
        is_current=is_current,
        is_chosen=chosen[0] <= number <= chosen[1],
        anchor=f"L{chosen[0]}-L{chosen[1]}" if number == chosen[0] < chosen[1] else "",
    )


def log_view(
    log: StoredLog, query: LogQuery, zone: tzinfo = UTC, *, size: int = WINDOW_LINES
) -> LogView:
    """The part of a log that the query asks for, by default its end."""
    errors = log.errors()
    matches = find_text(log, query.pattern, query.find) if query.pattern else []
    match = min(query.match, len(matches))
    shown: Sequence[int] = range(len(log))
    if query.only == ERRORS:
        shown = sorted(set(errors) & set(matches)) if query.find else errors
    elif query.only == MATCHES:
        shown = matches
    current = matches[match - 1] if match else -1
    target = (query.first or query.chosen[0]) - 1
    target = target if target >= 0 else current
    start, stop = _window(shown, target, size, is_first=bool(query.first))
    start, stop = _shortened(log, shown, start, stop, target)
    found = set(matches)
    lines = tuple(
        _line(
            log.block(position),
            position + 1,
            zone,
            mark=query.pattern if position in found else None,
            is_current=position == current,
            chosen=query.chosen,
        )
        for position in shown[start:stop]
    )
    return LogView(
        lines=lines,
        total=len(log),
        completed=log.completed,
        cursor=LogCursor(log.block(len(log) - 1).index, len(log)) if len(log) else LogCursor(),
        before=start,
        after=len(shown) - stop,
        earlier=shown[max(start - size, 0)] + 1 if start else 0,
        later=shown[stop] + 1 if stop < len(shown) else 0,
        errors=len(errors),
        matches=len(matches),
        match=match,
    )


def _window(shown: Sequence[int], target: int, size: int, *, is_first: bool) -> tuple[int, int]:
    """Where the window starts and stops among the lines to show.

    The target is its first line or in its middle; without one it is the end of the log.
    """
    last = max(len(shown) - size, 0)
    start = last
    if target >= 0 and is_first:
        start = min(bisect_left(shown, target), max(len(shown) - 1, 0))
    elif target >= 0:
        start = min(max(bisect_left(shown, target) - size // 2, 0), last)
    return start, min(start + size, len(shown))


def _shortened(
    log: StoredLog, shown: Sequence[int], start: int, stop: int, kept: int
) -> tuple[int, int]:
    """The window without the lines that are too much for a page, farthest from `kept` first.

    Without a line to keep it is the end of the window that stays.
    """
    lengths = [min(len(log.block(p).log), MAX_BLOCK_CHARACTERS) for p in shown[start:stop]]
    excess = sum(lengths) - MAX_WINDOW_CHARACTERS
    centre = bisect_left(shown, kept) if kept >= 0 else stop
    while excess > 0 and stop - start > 1:
        if centre - start >= stop - 1 - centre:
            excess -= lengths.pop(0)
            start += 1
        else:
            excess -= lengths.pop()
            stop -= 1
    return start, stop


def find_text(log: StoredLog, pattern: re.Pattern[str], text: str) -> list[int]:
    """The positions of the lines that show the text."""
    return [
        position
        for position in log.candidates(text)
        if pattern.search(visible_text(log.block(position).log))
    ]


def lines_after(
    blocks: Iterable[LogBlock],
    after: LogCursor,
    query: LogQuery,
    zone: tzinfo = UTC,
    *,
    completed: bool,
) -> LogView:
    """The lines after a cursor that the query asks for, for a window at the end of the log."""
    new = log_lines(blocks, after, zone)
    cursor = LogCursor(new[-1].index, new[-1].number) if new else after
    if query.only == ERRORS:
        new = tuple(line for line in new if line.severity == "error")
    if query.find and query.only:
        new = tuple(line for line in new if query.find.lower() in line.html.striptags().lower())
    return LogView(new, cursor.number, completed, cursor)


def parse_lines(text: str) -> tuple[int, int]:
    """The first and last line of `10-20` or `10`, counted from one; zeros if it is neither."""
    first, _, last = text.partition("-")
    start = parse_count(first) or 0
    end = parse_count(last) or start
    return (min(start, end), max(start, end)) if start else (0, 0)


def log_text(blocks: Iterable[LogBlock], *, ansi: bool, times: bool = True) -> str:
    """The log as a text file, with or without ANSI escape sequences and times."""
    return "".join(
        (f"{from_unix(block.created_at):%Y-%m-%dT%H:%M:%SZ} " if times else "")
        + (block.log if ansi else visible_text(block.log)).rstrip("\n")
        + "\n"
        for block in blocks
    )


def _html(text: str, mark: re.Pattern[str] | None) -> Markup:
    if len(text) <= MAX_BLOCK_CHARACTERS:
        return ansi_html(text, mark)
    shown = ansi_html(text[:MAX_BLOCK_CHARACTERS], mark)
    rest = len(text) - MAX_BLOCK_CHARACTERS
    return shown + f"\n… {counted(rest, 'more character is', 'more characters are')} in the raw log"
