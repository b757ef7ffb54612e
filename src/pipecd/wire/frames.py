# SPDX-License-Identifier: Apache-2.0
"""The frames of gRPC-Web: one flag, four bytes of length, and so many bytes of payload."""

import struct
from urllib.parse import quote

import grpc

from pipecd.model.errors import UserMistake

_HEAD = struct.Struct(">BI")
HEAD_BYTES = _HEAD.size
_DATA, _COMPRESSED, _TRAILERS = 0x00, 0x01, 0x80
# A status message travels as printable ASCII; everything else, and "%" itself, is escaped.
_PLAIN = "".join(chr(c) for c in range(0x20, 0x7F) if chr(c) != "%")


def data_frame(message: bytes) -> bytes:
    """The message of a call or of its answer."""
    return _HEAD.pack(_DATA, len(message)) + message


def trailer_frame(code: grpc.StatusCode, message: str = "") -> bytes:
    """How the call ended; always the last frame of an answer."""
    number: int = code.value[0]
    lines = f"grpc-status:{number}\r\n"
    if message:
        lines += f"grpc-message:{quote(message, safe=_PLAIN)}\r\n"
    payload = lines.encode("ascii")
    return _HEAD.pack(_TRAILERS, len(payload)) + payload


def only_message(body: bytes) -> bytes:
    """The one message that the body of a unary call holds."""
    if len(body) < HEAD_BYTES:
        raise _no_frame("it is shorter than the head of a frame")
    flag, length = _HEAD.unpack_from(body)
    if flag & _COMPRESSED:
        raise _no_frame("its message is compressed, which is not supported")
    if flag != _DATA:
        raise _no_frame("it does not begin with a message")
    if len(body) != HEAD_BYTES + length:
        raise _no_frame(f"{len(body) - HEAD_BYTES} bytes follow where {length} are announced")
    return body[HEAD_BYTES:]


def _no_frame(why: str) -> UserMistake:
    return UserMistake(f"invalid request: the body is not one gRPC-Web message: {why}")
