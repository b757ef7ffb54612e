# SPDX-License-Identifier: Apache-2.0
"""A connection of the router to a backend that speaks HTTP/1.1."""

import asyncio
import select
from typing import TYPE_CHECKING, cast

from pipecd.plugins.process.http_chunks import ChunkReader
from pipecd.plugins.process.http_head import (
    CHUNKED,
    UNTIL_CLOSE,
    Malformed,
    Request,
    Response,
    parse_response,
)

if TYPE_CHECKING:
    from pipecd.plugins.process.http_client import ClientConnection
    from pipecd.plugins.process.router_route import Target

_LONGEST_HEAD = 64 * 1024


class BackendConnection(asyncio.Protocol):
    """Serves one client at a time and waits among the idle ones of its target in between."""

    transport: asyncio.Transport

    def __init__(self, target: "Target", most_idle: int) -> None:
        self.is_reused = False
        self.has_answered = False
        self.is_full = False
        self.idle_since = 0.0
        self._target = target
        self._most_idle = most_idle
        self._client: ClientConnection | None = None
        self._request: Request | None = None
        self._buffer = b""
        self._response: Response | None = None
        self._remaining = 0
        self._chunks: ChunkReader | None = None
        self._is_tunnel = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def is_open(self) -> bool:
        """Tells whether the backend has not closed the connection, as far as the system knows."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        # Readable is the end, or bytes that nobody asked for.
        return not poll.poll(0)

    def send(self, client: "ClientConnection", request: Request, body: bytes) -> None:
        """Sends a request, or its beginning, for a client."""
        self._client, self._request = client, request
        self.has_answered = False
        self.transport.write(request.head + body if body else request.head)

    def data_received(self, data: bytes) -> None:
        client = self._client
        if client is None:
            # Nobody asked for this.
            self.transport.abort()
            return
        self.has_answered = True
        if self._is_tunnel:
            client.relay(data)
            return
        try:
            if self._response is None:
                data = self._buffer + data if self._buffer else data
                rest = self._read_head(client, data)
                if rest is None:
                    return
                data = rest
            self._read_body(client, data)
        except Malformed as e:
            self._client = None
            self.transport.abort()
            client.backend_failed(e.reason)

    def _read_head(self, client: "ClientConnection", data: bytes) -> bytes | None:
        """Reads heads up to the final one; returns what follows, None when more must come."""
        request = cast("Request", self._request)
        while True:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _LONGEST_HEAD:
                    raise Malformed(502, "the program's answer has too long a head")
                self._buffer = data
                return None
            head, data = data[: end + 4], data[end + 4 :]
            response = parse_response(head, request.method)
            if response.status >= 200:
                break
            if response.status == 101:
                if not request.is_upgrade:
                    raise Malformed(502, "the program changed the protocol without being asked")
                self._buffer, self._is_tunnel = b"", True
                client.start_tunnel(response, data)
                return None
            client.interim(response)
        self._buffer = b""
        self._response = response
        self._remaining = response.length
        if response.length == CHUNKED:
            self._chunks = ChunkReader()
        client.start_answer(response)
        return data

    def _read_body(self, client: "ClientConnection", data: bytes) -> None:
        rest = b""
        if self._remaining >= 0:
            is_last = len(data) >= self._remaining
            if len(data) > self._remaining:
                data, rest = data[: self._remaining], data[self._remaining :]
            self._remaining -= len(data)
        elif self._chunks is not None:
            data, rest = self._chunks.feed(data)
            is_last = self._chunks.is_complete
        else:
            is_last = False
        client.answer(data, is_last=is_last)
        if is_last:
            self._finish(client, is_clean=not rest)

    def _finish(self, client: "ClientConnection", *, is_clean: bool) -> None:
        response = cast("Response", self._response)
        self._client = self._response = self._chunks = None
        target = self._target
        if (
            is_clean
            and response.keep_alive
            and client.is_request_complete
            and not target.is_retired
            and not self.transport.get_write_buffer_size()
            and len(target.idle) < self._most_idle
        ):
            self.is_reused = True
            # The client may have paused it with its last piece.
            self.transport.resume_reading()
            self.idle_since = client.now()
            target.idle.append(self)
        else:
            self.transport.close()
        client.finish()

    def eof_received(self) -> None:
        """Closes; what the backend sent before has been read."""

    def connection_lost(self, exc: Exception | None) -> None:
        client, self._client = self._client, None
        if client is None:
            if self in self._target.idle:
                self._target.idle.remove(self)
        elif self._is_tunnel:
            client.close_tunnel()
        elif self._response is not None and self._response.length == UNTIL_CLOSE and exc is None:
            client.answer(b"", is_last=True)
            client.finish()
        else:
            client.backend_lost(self)

    def pause_writing(self) -> None:
        self.is_full = True
        if self._client is not None:
            self._client.update_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        if self._client is not None:
            self._client.update_reading()

    def leave(self) -> None:
        """Ends at once, without telling the client."""
        self._client = None
        self.transport.abort()

    def leave_tunnel(self) -> None:
        """Ends when the client's last bytes are sent."""
        self._client = None
        self.transport.close()

    def close(self) -> None:
        """Closes an idle connection."""
        if self in self._target.idle:
            self._target.idle.remove(self)
        self.transport.close()
