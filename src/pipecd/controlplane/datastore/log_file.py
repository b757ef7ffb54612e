# SPDX-License-Identifier: Apache-2.0
"""The file of a stage log: one JSON document per block, as upstream writes it."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pipecd.model.document import from_json, to_json
from pipecd.model.errors import Conflict
from pipecd.model.severity import LogSeverity
from pipecd.proto.model.logblock_pb2 import LogBlock

# The last line of the file of a completed log.
END = b"EOL"
_ERROR = b'"severity":%d' % LogSeverity.ERROR
# How JSON writes the characters of which the text that people see is not that of the block.
_ESCAPE = b"\\u001b"
_TERMINAL_CHARACTERS = (_ESCAPE, b"\\r", b"\\u000d")
_COLOUR = re.compile(rb"\\u001b\[[0-9;]*m")
_FIELDS = {"index", "log", "severity", "created_at"}


@dataclass(frozen=True)
class LogFile:
    """The content of a log file: its blocks by index, and whether the log is completed."""

    blocks: tuple[LogBlock, ...] = ()
    completed: bool = False

    @property
    def last_index(self) -> int:
        return self.blocks[-1].index if self.blocks else -1


@dataclass(frozen=True)
class StoredLog:
    """A whole log: the lines of its file, which are decoded when they are used, and its rows."""

    lines: Sequence[bytes]
    rows: tuple[LogBlock, ...]
    completed: bool
    path: str = ""

    @classmethod
    def merged(
        cls, content: bytes, rows: tuple[LogBlock, ...], path: str, *, completed: bool
    ) -> "StoredLog":
        """The log of a file and of the rows that follow it."""
        lines, ended = _lines(content)
        log = cls(lines, rows, completed or ended, path)
        # While a checkpoint moves blocks to the file they are in both.
        if lines and rows and log.block(len(lines) - 1).index >= rows[0].index:
            blocks = merge_blocks(parse_log(content, path).blocks, rows)
            return cls((), blocks, log.completed, path)
        return log

    def __len__(self) -> int:
        return len(self.lines) + len(self.rows)

    def block(self, position: int) -> LogBlock:
        """The block at a position, counted from zero."""
        if position >= len(self.lines):
            return self.rows[position - len(self.lines)]
        return _decode(self.lines[position], self.path, position + 1)

    def blocks(self) -> Iterator[LogBlock]:
        """All blocks in order."""
        return map(self.block, range(len(self)))

    def errors(self) -> list[int]:
        """The positions of the blocks whose severity is an error."""
        error = LogSeverity.ERROR
        return [
            position
            for position, line in enumerate(self.lines)
            if _ERROR in line and self.block(position).severity == error
        ] + [
            position
            for position, block in enumerate(self.rows, len(self.lines))
            if block.severity == error
        ]

    def candidates(self, text: str) -> Iterator[int]:
        """The positions of the blocks that may contain the text, whatever its case.

        The caller decides by the text that people see, without escape sequences.
        """
        wanted = text.lower().encode()
        # JSON escapes other characters in more than one way.
        is_plain = text.isascii() and text.isprintable() and not set(text) & set('"\\<>&/')
        for position, line in enumerate(self.lines):
            visible = _COLOUR.sub(b"", line) if _ESCAPE in line else line
            if (
                not is_plain
                or wanted in visible.lower()
                or any(sequence in visible for sequence in _TERMINAL_CHARACTERS)
            ):
                yield position
        yield from range(len(self.lines), len(self))


def merge_blocks(*sources: Iterable[LogBlock]) -> tuple[LogBlock, ...]:
    """Merges blocks by index; of two with the same index the one of the earlier source wins."""
    merged: dict[int, LogBlock] = {}
    for blocks in sources:
        for block in blocks:
            merged.setdefault(block.index, block)
    return tuple(merged[index] for index in sorted(merged))


def format_log(log: LogFile) -> bytes:
    lines = "".join(f"{to_json(block)}\n" for block in log.blocks)
    return lines.encode() + (END if log.completed else b"")


def parse_log(content: bytes, path: str) -> LogFile:
    lines, completed = _lines(content)
    blocks = (_decode(line, path, number) for number, line in enumerate(lines, start=1))
    return LogFile(merge_blocks(blocks), completed)


def _lines(content: bytes) -> tuple[list[bytes], bool]:
    """The lines of a file that are not empty, and whether the log is completed."""
    # Only a line feed ends a line; `splitlines` would split at other separators in a log as well.
    lines = content.split(b"\n")
    completed = lines[-1] == END
    return [line for line in (lines[:-1] if completed else lines) if line], completed


def _decode(line: bytes, path: str, number: int) -> LogBlock:
    try:
        # What this implementation and upstream write is decoded several times as fast.
        document = json.loads(line)
        if isinstance(document, dict) and document.keys() <= _FIELDS:
            return LogBlock(**cast("dict[str, Any]", document))
    except (ValueError, TypeError):
        pass
    try:
        return from_json(line, LogBlock)
    except ValueError as e:
        raise Conflict(
            f"the log file {path} is damaged at line {number}",
            hint="remove that line from the file",
        ) from e
