# SPDX-License-Identifier: Apache-2.0
"""A gRPC client that uses hardly any CPU, so that a benchmark measures the server.

Client and server share the CPUs of the machine, and grpcio's client uses about as much as the
server does; real pipeds run elsewhere. This one implements just enough HTTP/2 on a plain socket:
one connection, one call at a time. Requests are encoded in advance; of a response it reads the
length of every frame and the status.
"""

import socket
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
# No header table, so that the status is plain text in every response.
OWN_SETTINGS = bytes([0, 1, 0, 0, 0, 0]) + bytes([0, 4, 0x7F, 0xFF, 0xFF, 0xFF])
# Two gigabytes of responses, more than any benchmark reads.
WIDE_WINDOW = (2**31 - 1 - 65535).to_bytes(4)
SUCCEEDED = b"grpc-status\x010"
HEAD = 9


class CallFailed(Exception):
    """A call failed, or the connection was closed."""


class Request(NamedTuple):
    """The headers and the message of a call, as they go over the wire."""

    headers: bytes
    body: bytes


def request(path: str, message: bytes, authorization: str) -> Request:
    """Encodes a call of the method at this path."""
    return Request(_headers(path, authorization), b"\0" + len(message).to_bytes(4) + message)


@cache
def _headers(path: str, authorization: str) -> bytes:
    """Encodes the headers, which are the same for every call of a method by a client."""
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


class GrpcClient:
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
        """Starts a call; the previous one must have ended."""
        self._stream += 2
        self._socket.sendall(
            _frame(HEADERS, END_HEADERS, self._stream, call.headers)
            + _frame(DATA, END_STREAM, self._stream, call.body)
        )

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> bool:
        """Waits for data and returns whether the call has ended."""
        arrived = self._socket.recv(1 << 18)
        if not arrived:
            raise CallFailed("the server closed the connection")
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
                raise CallFailed(f"the call failed: {payload!r}")
            return True
        if kind == SETTINGS and not flags & ACK:
            self._socket.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self._socket.sendall(_frame(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise CallFailed(f"the server goes away: {payload[8:]!r}")
        return False


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _literal(name: str, value: str) -> bytes:
    """Encodes a header without the header table."""
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
