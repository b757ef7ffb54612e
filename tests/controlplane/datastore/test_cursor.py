# SPDX-License-Identifier: Apache-2.0
"""Cursors have upstream's form, and nothing else is taken for one."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.datastore.cursor import Position, decode_cursor, encode_cursor
from pipecd.model.errors import UserMistake


def as_cursor(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_a_cursor_is_that_of_upstream(spec_dir: Path) -> None:
    vectors = json.loads((spec_dir / "vectors" / "mysql_documents.json").read_text())
    wanted = vectors["cursors"]["orders UpdatedAt desc, Id asc over the Application document"]
    position = Position("f47ac10b-58cc-4372-a567-0e02b2c3d479", 1_700_000_100)
    assert encode_cursor(position, "UpdatedAt") == wanted
    assert decode_cursor(wanted, "UpdatedAt") == position


@given(st.text(), st.integers(min_value=-(2**62), max_value=2**62))
def test_a_cursor_leads_back_to_its_position(id: str, value: int) -> None:
    position = Position(id, value)
    assert decode_cursor(encode_cursor(position, "UpdatedAt"), "UpdatedAt") == position


@pytest.mark.parametrize(
    "cursor",
    [
        pytest.param("!", id="no base64"),
        pytest.param("e30", id="base64 without its padding"),
        pytest.param(as_cursor("{"), id="no JSON"),
        pytest.param(as_cursor("[1]"), id="no object"),
        pytest.param(as_cursor("null"), id="null"),
        pytest.param("e30=", id="no fields, as of a list without order"),
        pytest.param(as_cursor('{"Id":"a"}'), id="without the ordering field"),
        pytest.param(as_cursor('{"UpdatedAt":1}'), id="without the id"),
        pytest.param(as_cursor('{"Id":"a","CreatedAt":1}'), id="a cursor of another list"),
        pytest.param(as_cursor('{"Id":1,"UpdatedAt":1}'), id="an id that is a number"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":"1"}'), id="a time that is a text"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":true}'), id="a time that is a flag"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":1.5}'), id="a time that is no whole number"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":NaN}'), id="a time that is no number"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":1e300}'), id="a time beyond all columns"),
        pytest.param(as_cursor('{"Id":"\\ud800","UpdatedAt":1}'), id="half a surrogate pair"),
        pytest.param(as_cursor("[" * 100_000), id="a pit of brackets"),
        pytest.param(base64.b64encode(b"\xff\xfe{}").decode(), id="bytes that are no text"),
    ],
)
def test_anything_else_is_refused(cursor: str) -> None:
    with pytest.raises(UserMistake, match="is not one of this list"):
        decode_cursor(cursor, "UpdatedAt")


@given(st.text() | st.binary().map(lambda b: base64.b64encode(b).decode()))
def test_no_text_at_all_breaks_the_reader(cursor: str) -> None:
    try:
        decode_cursor(cursor, "UpdatedAt")
    except UserMistake:
        return


def test_a_time_with_a_decimal_point_as_go_may_write_it_is_read() -> None:
    assert decode_cursor(as_cursor('{"Id":"a","UpdatedAt":1.7e9}'), "UpdatedAt") == Position(
        "a", 1_700_000_000
    )
