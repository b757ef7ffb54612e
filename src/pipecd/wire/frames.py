# SPDX-License-Identifier: Apache-2.0
"""The frames of gRPC-Web: a flag, the length in four bytes, and the payload."""

import struct
from urllib.parse import quote

import grpc

from pipecd.model.errors import UserMistake

_HEADER = struct.Struct(">BI")
HEADER_BYTES = _HEADER.size
_DATA, _COMPRESSED, _TRAILERS = 0x00, 0x01, 0x80
# A status message travels as printable ASCII; everything else, and "%" itself, is escaped.
_PLAIN = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")


def data_frame(message: bytes) -> bytes:
    """Returns the frame of a request or response message."""
    return _HEADER.pack(_DATA, len(message)) + message


def trailer_frame(code: grpc.StatusCode, message: str = "") -> bytes:
    """Returns the frame with the status of a call, the last one of a response."""
    number: int = code.value[0]
    lines = f"grpc-status:{number}\r\n"
    if message:
        lines += f"grpc-message:{quote(message, safe=_PLAIN)}\r\n"
    payload = lines.encode("ascii")
    return _HEADER.pack(_TRAILERS, len(payload)) + payload


def only_message(body: bytes) -> bytes:
    """Returns the message in the body of a unary call."""
    if len(body) < HEADER_BYTES:
        raise _invalid_body("it is shorter than a frame header")
    flag, length = _HEADER.unpack_from(body)
    if flag & _COMPRESSED:
        raise _invalid_body("its message is compressed, which is not supported")
    if flag != _DATA:
        raise _invalid_body("it does not begin with a message")
    if len(body) != HEADER_BYTES + length:
        raise _invalid_body(f"{len(body) - HEADER_BYTES} bytes follow where {length} are announced")
    return body[HEADER_BYTES:]


def _invalid_body(reason: str) -> UserMistake:
    return UserMistake(f"invalid request: the body is not one gRPC-Web message: {reason}")
