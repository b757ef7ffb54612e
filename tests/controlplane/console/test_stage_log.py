# SPDX-License-Identifier: Apache-2.0
"""The lines of a log and the cursor of a reader."""

import pytest

from pipecd.controlplane.console import stage_log
from pipecd.controlplane.console.stage_log import (
    LogCursor,
    LogQuery,
    lines_after,
    log_lines,
    log_text,
    log_view,
    parse_cursor,
    parse_log_query,
)
from pipecd.controlplane.datastore.log_file import StoredLog
from pipecd.proto.model.logblock_pb2 import ERROR, INFO, LogBlock

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


def stored(*texts: str, errors: tuple[int, ...] = (), completed: bool = True) -> StoredLog:
    """A log with these lines, of which some are errors; their numbers count from one."""
    blocks = (
        LogBlock(index=100 + n, log=text, severity=ERROR if n in errors else INFO, created_at=1)
        for n, text in enumerate(texts, 1)
    )
    return StoredLog((), tuple(blocks), completed)


TEN = stored(*(f"line {n}" for n in range(1, 11)), errors=(3, 8))


@pytest.mark.parametrize(
    ("query", "numbers", "before", "after"),
    [
        pytest.param(LogQuery(), [7, 8, 9, 10], 6, 0, id="the end of a long log"),
        pytest.param(LogQuery(first=1), [1, 2, 3, 4], 0, 6, id="its first lines"),
        pytest.param(LogQuery(first=9), [9, 10], 8, 0, id="from a line on"),
        pytest.param(LogQuery(first=99), [10], 9, 0, id="from behind its end on"),
        pytest.param(LogQuery(chosen=(5, 6)), [3, 4, 5, 6], 2, 4, id="around a chosen line"),
        pytest.param(LogQuery(chosen=(10, 10)), [7, 8, 9, 10], 6, 0, id="the last line is chosen"),
        pytest.param(LogQuery(chosen=(99, 99)), [7, 8, 9, 10], 6, 0, id="no line is chosen"),
        pytest.param(LogQuery(only="errors"), [3, 8], 0, 0, id="errors only"),
        pytest.param(LogQuery("line 1", 1), [1, 2, 3, 4], 0, 6, id="around the first match"),
        pytest.param(LogQuery("line 1", 2), [7, 8, 9, 10], 6, 0, id="around the second match"),
        pytest.param(LogQuery("LINE 1", 9), [7, 8, 9, 10], 6, 0, id="there are fewer matches"),
        pytest.param(LogQuery("line 1", 1, "matches"), [1, 10], 0, 0, id="matches only"),
        pytest.param(LogQuery("line 8", 1, "errors"), [8], 0, 0, id="errors that match"),
        pytest.param(LogQuery("nothing", 1), [7, 8, 9, 10], 6, 0, id="a text that is not there"),
        pytest.param(LogQuery("nothing", 1, "matches"), [], 0, 0, id="only that"),
    ],
)
def test_the_window_of_a_page(query: LogQuery, numbers: list[int], before: int, after: int) -> None:
    view = log_view(TEN, query, size=4)
    assert [line.number for line in view.lines] == numbers
    assert (view.before, view.after) == (before, after)
    assert (view.total, view.errors) == (10, 2)
    assert view.cursor == LogCursor(110, 10)


def test_the_windows_beside_a_window_leave_nothing_out() -> None:
    view = log_view(TEN, LogQuery(chosen=(5, 5)), size=4)
    assert (view.earlier, view.later) == (1, 7)
    assert [line.number for line in log_view(TEN, LogQuery(first=7), size=4).lines] == [7, 8, 9, 10]


def test_matches_are_counted_and_marked() -> None:
    view = log_view(stored("a \x1b[31mfo\x1b[0mo", "b", "<FOO>"), LogQuery("foo", 2))
    assert (view.matches, view.match) == (2, 2)
    assert [line.is_current for line in view.lines] == [False, False, True]
    assert view.lines[2].html == "&lt;<mark>FOO</mark>&gt;"
    assert view.lines[0].html == 'a <span class="fg1"><mark>fo</mark></span><mark>o</mark>'
    assert "<mark>" not in view.lines[1].html


def test_a_permalink_marks_its_lines() -> None:
    view = log_view(TEN, LogQuery(chosen=(2, 3)))
    assert [line.number for line in view.lines if line.is_chosen] == [2, 3]
    assert [line.anchor for line in view.lines if line.anchor] == ["L2-L3"]


def test_what_is_too_long_for_a_page_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_log, "MAX_WINDOW_CHARACTERS", 25)
    log = stored(*("x" * 10 for _ in range(6)))
    assert [line.number for line in log_view(log, LogQuery()).lines] == [5, 6]
    assert [line.number for line in log_view(log, LogQuery(first=1)).lines] == [1, 2]
    assert 3 in [line.number for line in log_view(log, LogQuery(chosen=(3, 3))).lines]


def test_new_lines_follow_the_same_query() -> None:
    blocks = [LogBlock(index=7, log="ok"), LogBlock(index=8, log="bad", severity=ERROR)]
    view = lines_after(blocks, LogCursor(6, 6), LogQuery(only="errors"), completed=False)
    assert [line.number for line in view.lines] == [8]
    assert view.cursor == LogCursor(8, 8)


@pytest.mark.parametrize(
    ("params", "query"),
    [
        pytest.param({}, LogQuery(), id="nothing"),
        pytest.param({"find": "x"}, LogQuery("x", 1), id="a text, its first match"),
        pytest.param({"find": " x "}, LogQuery(" x ", 1), id="spaces are part of the text"),
        pytest.param({"find": "  "}, LogQuery(), id="nothing but spaces"),
        pytest.param({"find": "x", "match": "3"}, LogQuery("x", 3), id="another match"),
        pytest.param({"match": "3"}, LogQuery(), id="a match of nothing"),
        pytest.param({"only": "errors"}, LogQuery(only="errors"), id="errors only"),
        pytest.param({"only": "matches"}, LogQuery(), id="matches of nothing"),
        pytest.param({"only": "<b>"}, LogQuery(), id="nonsense"),
        pytest.param({"at": "20-10"}, LogQuery(chosen=(10, 20)), id="lines, backwards"),
        pytest.param({"at": "7"}, LogQuery(chosen=(7, 7)), id="one line"),
        pytest.param({"at": "-7"}, LogQuery(), id="no first line"),
        pytest.param({"at": "9" * 5000}, LogQuery(), id="more digits than Python reads"),
        pytest.param({"from": "x"}, LogQuery(), id="no number"),
    ],
)
def test_queries_from_the_address(params: dict[str, str], query: LogQuery) -> None:
    assert parse_log_query(params) == query


def test_a_long_text_is_cut() -> None:
    assert len(parse_log_query({"find": "x" * 5000}).find) == 200


def test_the_cursor_of_an_empty_log_is_its_start() -> None:
    assert log_view(stored(), LogQuery()).cursor == LogCursor()


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
    assert log_text([block], ansi=False, times=False) == "red <b>\n"
