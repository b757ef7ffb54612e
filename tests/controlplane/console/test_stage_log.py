# SPDX-License-Identifier: Apache-2.0
"""The lines of a log and the cursor of a reader."""

import pytest

from pipecd.controlplane.console.stage_log import (
    LogCursor,
    log_lines,
    log_tail,
    log_text,
    parse_cursor,
)
from pipecd.proto.model.logblock_pb2 import LogBlock

# The index begins with a time and jumps when a piped is started again.
BLOCKS = [
    LogBlock(index=index, log=f"line {index}\n", created_at=1_700_000_000)
    for index in (100, 101, 102, 500, 501)
]


def test_lines_are_numbered_independently_of_their_index() -> None:
    assert [line.number for line in log_lines(BLOCKS, LogCursor())] == [1, 2, 3, 4, 5]


def test_reading_continues_after_the_cursor() -> None:
    new = log_lines(BLOCKS, LogCursor(102, 3))
    assert [(line.number, line.index) for line in new] == [(4, 500), (5, 501)]


def test_a_long_log_shows_its_end() -> None:
    view = log_tail(BLOCKS, completed=False, size=2)
    assert [line.number for line in view.lines] == [4, 5]
    assert view.omitted == 3
    assert view.cursor == LogCursor(501, 5)


def test_the_cursor_of_an_empty_log_is_its_start() -> None:
    assert log_tail([], completed=False).cursor == LogCursor()


@pytest.mark.parametrize(
    ("text", "cursor"),
    [
        pytest.param("102:3", LogCursor(102, 3), id="as sent"),
        pytest.param("", LogCursor(), id="nothing"),
        pytest.param("-1:0", LogCursor(), id="before the first line"),
        pytest.param("x:y", LogCursor(), id="nonsense"),
        pytest.param(f"{'9' * 5000}:1", LogCursor(), id="more digits than Python reads"),
        pytest.param("\u0661:\u0662", LogCursor(), id="digits of other scripts"),
    ],
)
def test_cursors_from_the_browser(text: str, cursor: LogCursor) -> None:
    assert parse_cursor(text) == cursor


def test_a_cursor_round_trips() -> None:
    assert parse_cursor(str(LogCursor(102, 3))) == LogCursor(102, 3)


def test_the_raw_log_is_plain_text() -> None:
    block = LogBlock(index=1, log="\x1b[31mred\x1b[0m <b>", created_at=1_700_000_000)
    assert log_text([block], ansi=False) == "2023-11-14T22:13:20Z red <b>\n"
    assert "\x1b[31m" in log_text([block], ansi=True)
