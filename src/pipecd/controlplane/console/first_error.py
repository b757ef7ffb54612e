# SPDX-License-Identifier: Apache-2.0
"""The first error in the log of a failed stage, with the lines around it.

A script that fails says why somewhere in its output, often long before its last line. What it
writes has no severity, so that lines are recognized by what programs commonly write.
"""

import re
from dataclasses import dataclass
from itertools import chain

from pipecd.controlplane.console.ansi import visible_text, without_escapes
from pipecd.controlplane.datastore.log_file import StoredLog
from pipecd.model.severity import LogSeverity

# What broke a stage is hardly farther from its end.
SEARCHED_LINES = 10_000
# The page opens at the end of the log and shows about as many lines.
SHOWN_ANYWAY = 15
_BEFORE, _AFTER = 2, 6
_MAX_CHARACTERS = 500
# A line that is an error says so at its beginning.
_SEARCHED_CHARACTERS = 2_000
# What a terminal shows of a line of progress takes a thousand times as long to find out as to read
# it. After so many characters, lines are taken as they are sent.
_RENDERED_CHARACTERS = 200_000
# One of these is in every line of which the pattern below matches.
_WORDS = (b"err", b"fatal", b"panic", b"exception", b"traceback", b"critical", b"failure")
_ERROR = re.compile(
    r"(?i:\b(?:error|fatal|panic|exception|failure)\b\s*[:\]])"
    r"|\b[A-Za-z]+(?:Error|Exception)\b\s*:"
    r"|\b(?:ERROR|FATAL|CRITICAL)\b(?=\s)|\bERR!(?=\s|$)"
    r"|^\s*Traceback \(most recent call last\)"
    r"|\blevel=\"?(?:error|fatal)\b|\"level\":\s*\"(?:error|fatal)\""
)


@dataclass(frozen=True)
class ErrorExcerpt:
    """An error and the lines around it; `number` is that of its line, `first` of the first one."""

    number: int
    first: int
    lines: tuple[str, ...]


def is_error(text: str) -> bool:
    """Whether a line of output looks like an error."""
    return _ERROR.search(text) is not None


def first_error(log: StoredLog) -> ErrorExcerpt | None:
    """The first error of a log, unless it is among the lines that the page opens with."""
    last = len(log) - SHOWN_ANYWAY
    rendered = 0
    for position in _candidates(log, max(len(log) - SEARCHED_LINES, 0), last):
        block = log.block(position)
        output = block.log[:_SEARCHED_CHARACTERS]
        if block.severity != LogSeverity.ERROR:
            if not is_error(without_escapes(output)):
                continue
            # A terminal may show it no more: it was overwritten or erased.
            rendered += len(output)
            if rendered <= _RENDERED_CHARACTERS and not is_error(visible_text(output)):
                continue
        return _excerpt(log, position)
    return None


def _candidates(log: StoredLog, start: int, stop: int) -> "chain[int]":
    """The positions of the blocks that may be errors, in order."""
    in_file = min(stop, len(log.lines))
    severity = b'"severity":%d' % LogSeverity.ERROR
    found = (
        position
        for position in range(start, in_file)
        for line in (log.lines[position].lower(),)
        if severity in line or any(word in line for word in _WORDS)
    )
    return chain(found, range(max(start, in_file), stop))


def _excerpt(log: StoredLog, position: int) -> ErrorExcerpt:
    start = max(position - _BEFORE, 0)
    lines = (_line(log, at) for at in range(start, min(position + _AFTER + 1, len(log))))
    return ErrorExcerpt(position + 1, start + 1, tuple(lines))


def _line(log: StoredLog, position: int) -> str:
    output = log.block(position).log
    # Sequences of colours may be longer than what they colour.
    text = visible_text(output[: 10 * _SEARCHED_CHARACTERS]).rstrip()
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def markdown(title: str, reason: str, link: str, error: ErrorExcerpt) -> str:
    """The error as a comment for an issue or a chat, with a link to its line."""
    # A fence is longer than every one in the text.
    longest = max((len(run) for run in re.findall(r"`{3,}", "\n".join(error.lines))), default=2)
    fence = "`" * (longest + 1)
    text = "\n".join(error.lines)
    return f"**{title}**: {reason}\n\n{fence}\n{text}\n{fence}\n\n[Line {error.number}]({link})\n"
