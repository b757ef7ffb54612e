# SPDX-License-Identifier: Apache-2.0
"""A gRPC client that costs next to nothing, so that a figure is that of the server.

Client and server share the processors of the machine; the client of grpcio takes about as much of
them as the server does, pipeds elsewhere do not. This one speaks just enough HTTP/2 on a plain
socket: one connection, one call at a time. Its requests are encoded in advance; of an answer it
reads the length of every frame and the status at the end.
"""

import socket
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
# No table of headers is kept, so that the status stands in plain letters in every answer.
OWN_SETTINGS = bytes([0, 1, 0, 0, 0, 0]) + bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF])
# Two gigabytes of answers, more than any figure takes.
WIDE_WINDOW = (2**31 - 1 - 65535).to_bytes(4)
SUCCEEDED = b"grpc-status\x010"
HEAD = 9


class Failed(Exception):
    """A call was refused, or the connection broke."""


class Request(NamedTuple):
    """The headers and the message of a call, as they go over the wire."""

    headers: bytes
    body: bytes


def request(path: str, message: bytes, authorization: str) -> Request:
    """A call of the method at this path."""
    return Request(_headers(path, authorization), b"\0" + len(message).to_bytes(4) + message)


@cache
def _headers(path: str, authorization: str) -> bytes:
    """The same for every call of a method by the same caller."""
    fields: Mapping[str, str] = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "bench",
        "content-type": "application/grpc",
        "te": "trailers",
        "authorization": authorization,
    }
    return b"".join(_literal(name, value) for name, value in fields.items())


class Caller:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self._stream = -1
        window = _frame(WINDOW_UPDATE, 0, 0, WIDE_WINDOW)
        self._socket.sendall(PREFACE + _frame(SETTINGS, 0, 0, OWN_SETTINGS) + window)

    def send(self, call: Request) -> None:
        """Begins a call; the one before it must have ended."""
        self._stream += 2
        self._socket.sendall(
            _frame(HEADERS, END_HEADERS, self._stream, call.headers)
            + _frame(DATA, END_STREAM, self._stream, call.body)
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> bool:
        """Takes what has arrived, and waits for something; whether the call has ended with it."""
        arrived = self._socket.recv(1 << 18)
        if not arrived:
            raise Failed("the server closed the connection")
        data = self._received + arrived
        at, ended = 0, False
        while len(data) >= at + HEAD:
            end = at + HEAD + int.from_bytes(data[at : at + 3])
            if len(data) < end:
                break
            ended = self._take(data[at + 3], data[at + 4], data[at + HEAD : end]) or ended
            at = end
        self._received = data[at:]
        return ended

    def call(self, call: Request) -> None:
        """Makes a call and waits for its end."""
        self.send(call)
        while not self.receive():
            pass

    def close(self) -> None:
        self._socket.close()

    def _take(self, kind: int, flags: int, payload: bytes) -> bool:
        if kind == HEADERS and flags & END_STREAM:
            if SUCCEEDED not in payload:
                raise Failed(f"a call was refused: {payload!r}")
            return True
        if kind == SETTINGS and not flags & ACK:
            self._socket.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(_frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise Failed(f"the server goes away: {payload[8:]!r}")
        return False


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _literal(name: str, value: str) -> bytes:
    """A header that nobody remembers."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode()
    length = len(data)
    if length < 127:
        return bytes([length]) + data
    # Seven bits, then seven more; enough for anything under 16 kilobytes.
    rest = length - 127
    return (
        bytes([127, rest & 0x7F | (0x80 if rest > 127 else 0)])
        + (bytes([rest >> 7]) if rest > 127 else b"")
        + data
    )
