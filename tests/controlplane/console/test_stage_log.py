# SPDX-License-Identifier: Apache-2.0
"""The lines of a log and the place of a reader in it."""

import pytest

from pipecd.controlplane.console.stage_log import (
    Place,
    log_lines,
    log_text,
    log_window,
    read_place,
)
from pipecd.proto.model.logblock_pb2 import LogBlock

# The index begins with a time and jumps when a piped is started again.
BLOCKS = [
    LogBlock(index=index, log=f"line {index}\n", created_at=1_700_000_000)
    for index in (100, 101, 102, 500, 501)
]


def test_lines_are_numbered_whatever_their_index_is() -> None:
    assert [line.number for line in log_lines(BLOCKS, Place())] == [1, 2, 3, 4, 5]


def test_a_reader_goes_on_where_they_stopped() -> None:
    new = log_lines(BLOCKS, Place(102, 3))
    assert [(line.number, line.index) for line in new] == [(4, 500), (5, 501)]


def test_the_end_of_a_long_log_comes_first() -> None:
    window = log_window(BLOCKS, completed=False, size=2)
    assert [line.number for line in window.lines] == [4, 5]
    assert window.earlier == 3
    assert window.place == Place(501, 5)


def test_an_empty_log_begins_at_the_beginning() -> None:
    assert log_window([], completed=False).place == Place()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param("102:3", Place(102, 3), id="as it was told"),
        pytest.param("", Place(), id="nothing"),
        pytest.param("-1:0", Place(), id="before the first line"),
        pytest.param("x:y", Place(), id="nonsense"),
        pytest.param("\u0661:\u0662", Place(), id="digits of other scripts"),
    ],
)
def test_a_place_comes_back_from_the_browser(text: str, place: Place) -> None:
    assert read_place(text) == place


def test_a_place_survives_the_way_there_and_back() -> None:
    assert read_place(str(Place(102, 3))) == Place(102, 3)


def test_the_raw_log_is_plain_text() -> None:
    block = LogBlock(index=1, log="\x1b[31mred\x1b[0m <b>", created_at=1_700_000_000)
    assert log_text([block], ansi=False) == "2023-11-14T22:13:20Z red <b>\n"
    assert "\x1b[31m" in log_text([block], ansi=True)
