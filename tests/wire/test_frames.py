# SPDX-License-Identifier: Apache-2.0
"""Frames of gRPC-Web: messages and trailers."""

from urllib.parse import unquote_to_bytes

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.model.errors import UserMistake
from pipecd.wire.frames import data_frame, only_message, trailer_frame


@given(st.binary(max_size=2000))
def test_a_message_comes_out_as_it_went_in(message: bytes) -> None:
    assert only_message(data_frame(message)) == message


@given(st.binary(max_size=40))
def test_whatever_the_body_is_it_is_read_or_refused(body: bytes) -> None:
    try:
        message = only_message(body)
    except UserMistake:
        return
    assert data_frame(message) == body


@pytest.mark.parametrize(
    ("body", "why"),
    [
        pytest.param(b"", "shorter than a frame header", id="nothing"),
        pytest.param(b"\0\0\0\0", "shorter than a frame header", id="half a header"),
        pytest.param(b"\x01\0\0\0\1x", "compressed", id="a compressed message"),
        pytest.param(b"\x80\0\0\0\0", "does not begin with a message", id="only trailers"),
        pytest.param(b"\0\0\0\0\2x", "1 bytes follow where 2 are announced", id="a cut message"),
        pytest.param(b"\0\0\0\0\0" * 2, "5 bytes follow where 0", id="two messages"),
        pytest.param(b"\0\xff\xff\xff\xffx", "4294967295 are announced", id="a huge length"),
    ],
)
def test_a_body_is_refused_that_holds(body: bytes, why: str) -> None:
    with pytest.raises(UserMistake, match=why):
        only_message(body)


def test_success_needs_no_words() -> None:
    assert trailer_frame(grpc.StatusCode.OK) == b"\x80\0\0\0\x0fgrpc-status:0\r\n"


@given(st.text(max_size=60))
def test_any_text_travels_in_one_line_of_trailers(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    frame = trailer_frame(grpc.StatusCode.NOT_FOUND, text)
    assert int.from_bytes(frame[1:5], "big") == len(frame) - 5
    status, *rest = frame[5:].split(b"\r\n")
    assert status == b"grpc-status:5"
    if text:
        assert rest[1:] == [b""]
        assert unquote_to_bytes(rest[0].removeprefix(b"grpc-message:")).decode() == text
    else:
        assert rest == [b""]
