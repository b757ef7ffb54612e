# SPDX-License-Identifier: Apache-2.0
"""Cursors have upstream's format, and any other text is refused."""

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


def test_a_cursor_equals_that_of_upstream(spec_dir: Path) -> None:
    vectors = json.loads((spec_dir / "vectors" / "mysql_documents.json").read_text())
    expected = vectors["cursors"]["orders UpdatedAt desc, Id asc over the Application document"]
    position = Position("f47ac10b-58cc-4372-a567-0e02b2c3d479", 1_700_000_100)
    assert encode_cursor(position, "UpdatedAt") == expected
    assert decode_cursor(expected, "UpdatedAt") == position


@given(st.text(), st.integers(min_value=-(2**62), max_value=2**62))
def test_decoding_a_cursor_returns_its_position(id: str, value: int) -> None:
    position = Position(id, value)
    assert decode_cursor(encode_cursor(position, "UpdatedAt"), "UpdatedAt") == position


@pytest.mark.parametrize(
    "cursor",
    [
        pytest.param("!", id="not base64"),
        pytest.param("e30", id="base64 without its padding"),
        pytest.param(as_cursor("{"), id="not JSON"),
        pytest.param(as_cursor("[1]"), id="not an object"),
        pytest.param(as_cursor("null"), id="null"),
        pytest.param("e30=", id="no fields"),
        pytest.param(as_cursor('{"Id":"a"}'), id="without the ordering field"),
        pytest.param(as_cursor('{"UpdatedAt":1}'), id="without the id"),
        pytest.param(as_cursor('{"Id":"a","CreatedAt":1}'), id="a cursor of another list"),
        pytest.param(as_cursor('{"Id":1,"UpdatedAt":1}'), id="an id that is a number"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":"1"}'), id="a time that is a string"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":true}'), id="a time that is a boolean"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":1.5}'), id="a time that is a fraction"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":NaN}'), id="a time that is not a number"),
        pytest.param(as_cursor('{"Id":"a","UpdatedAt":1e300}'), id="a time larger than 64 bits"),
        pytest.param(as_cursor('{"Id":"\\ud800","UpdatedAt":1}'), id="half a surrogate pair"),
        pytest.param(as_cursor("[" * 100_000), id="deeply nested brackets"),
        pytest.param(base64.b64encode(b"\xff\xfe{}").decode(), id="bytes that are not UTF-8"),
    ],
)
def test_a_malformed_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(UserMistake, match="is not one of this list"):
        decode_cursor(cursor, "UpdatedAt")


@given(st.text() | st.binary().map(lambda b: base64.b64encode(b).decode()))
def test_any_text_is_decoded_or_refused(cursor: str) -> None:
    try:
        decode_cursor(cursor, "UpdatedAt")
    except UserMistake:
        return


def test_a_number_in_the_exponent_form_of_go_is_decoded() -> None:
    assert decode_cursor(as_cursor('{"Id":"a","UpdatedAt":1.7e9}'), "UpdatedAt") == Position(
        "a", 1_700_000_000
    )
