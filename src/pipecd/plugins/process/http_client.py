# SPDX-License-Identifier: Apache-2.0
"""A client's connection to the router over HTTP/1.1."""

import asyncio
from enum import Enum
from http import HTTPStatus
from typing import cast

from pipecd.plugins.process.http_backend import BackendConnection
from pipecd.plugins.process.http_chunks import LAST_CHUNK, ChunkReader, chunk
from pipecd.plugins.process.http_head import (
    CHUNKED,
    Malformed,
    Request,
    Response,
    Sender,
    parse_request,
)
from pipecd.plugins.process.router_route import Choice, Route, Target
from pipecd.plugins.process.tcp_relay import peer_address, reset

# Requests with these methods may be sent a second time.
_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"TRACE"})
# Bodies up to this size are kept until the backend answers, to be sent a second time.
_REPLAYED = 64 * 1024
# A request that must not be sent twice goes to a connection that was used this recently, since
# backends close idle connections; else to a new one.
_SURELY_OPEN = 1.0
_MOST_ATTEMPTS = 2
_NO_BODY: list[bytes] = []


class _State(Enum):
    HEAD = 1  # reads a head, or waits for one
    BODY = 2  # reads the body of a request
    ANSWER = 3  # the request is complete, its answer is not
    TUNNEL = 4  # an upgraded connection
    LINGER = 5  # the last answer is sent, the client may still be sending


_HEAD, _BODY, _ANSWER, _TUNNEL, _LINGER = _State


class ClientConnection(asyncio.Protocol):
    """Reads requests one after the other and has each of them answered by a backend."""

    _transport: asyncio.Transport
    _sender: Sender
    _request: Request
    _choice: Choice

    def __init__(self, route: Route) -> None:
        self.deadline = 0.0
        self._route = route
        self._limits = route.limits
        self._loop = asyncio.get_running_loop()
        self.now = self._loop.time
        self._state = _HEAD
        self._buffer = b""
        self._is_full = False
        self._has_ended = False
        self._started = 0.0
        # The request that is being served:
        self._backend: BackendConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._is_assigned = False
        self._tried: list[Target] = []
        self._attempts = 0
        self._remaining = 0
        self._chunks: ChunkReader | None = None
        self._body = _NO_BODY
        self._body_size = 0
        self._is_replayable = True
        # The answer to it:
        self._response: Response | None = None
        self._answer_head = b""
        self._is_chunked = False
        self._closes = False

    @property
    def is_request_complete(self) -> bool:
        """Whether all of the request has come from the client."""
        return self._state is not _BODY

    # The connection.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        route = self._route
        address = peer_address(transport)
        if not route.admit(self, address):
            self._transport.write(_plain(503, "too many connections"))
            self._transport.close()
            return
        own = transport.get_extra_info("sockname")
        authority = f"{own[0]}:{own[1]}" if len(own) == 2 else f"[{own[0]}]:{own[1]}"
        self._sender = Sender(address.encode(), route.is_trusted(address), authority.encode())
        self.deadline = self.now() + self._limits.head

    def connection_lost(self, exc: Exception | None) -> None:
        self._route.leave(self)
        if self._state is _TUNNEL and self._backend is not None:
            self._backend.leave_tunnel()
            self._backend = None
        self._leave_backend()
        self._release()

    def eof_received(self) -> bool:
        """Lets a client that has sent its last request read the answer."""
        self._has_ended = True
        return self._state is _ANSWER

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is _HEAD:
            self._read_head(self._buffer + data if self._buffer else data)
        elif state is _BODY:
            self.deadline = self.now() + self._limits.body
            self._read_body(data)
        elif state is _ANSWER:
            self._buffer += data
            self.update_reading()
        elif state is _TUNNEL and self._backend is not None:
            self.deadline = self.now() + self._limits.tunnel
            self._backend.transport.write(data)

    def pause_writing(self) -> None:
        self._is_full = True
        if self._backend is not None:
            self._backend.transport.pause_reading()

    def resume_writing(self) -> None:
        self._is_full = False
        if self._backend is not None:
            self._backend.transport.resume_reading()
        elif self._state is _HEAD:
            self._continue()

    def update_reading(self) -> None:
        """Reads from the client only what can be sent on."""
        match self._state:
            case _State.HEAD:
                is_blocked = self._is_full
            case _State.ANSWER:
                is_blocked = bool(self._buffer)
            case _State.BODY | _State.TUNNEL:
                is_blocked = self._backend is None or self._backend.is_full
            case _State.LINGER:
                is_blocked = False
        if self._transport.is_closing() or self._has_ended:
            return
        if is_blocked:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # The request.

    def _read_head(self, data: bytes) -> None:
        if data.startswith(b"\r\n"):
            # Some clients send an empty line after a body.
            data = data[2:]
        end = data.find(b"\r\n\r\n")
        if end < 0 or end > self._limits.head_size:
            if not self._buffer:
                self.deadline = self.now() + self._limits.head
            self._buffer = data
            if len(data) > self._limits.head_size:
                self._refuse(431, "the head of the request is too long")
            elif _has_bare_line_feed(data):
                self._refuse(400, "a line of the head ends without a carriage return")
            return
        try:
            request = parse_request(data[: end + 4], self._sender)
        except Malformed as e:
            self._refuse(e.status, e.reason)
            return
        self._buffer = data[end + 4 :]
        self._request = request
        self._started = self.now()
        self.deadline = self._started + self._limits.answer
        if request.length == 0:
            self._state, self._body, self._is_replayable = _ANSWER, _NO_BODY, True
            if self._buffer:
                self.update_reading()
        else:
            self._begin_body(request.length)
        if self._state is not _LINGER and not self._transport.is_closing():
            self._assign(self._route.choose(self._started))

    def _begin_body(self, length: int) -> None:
        self._state = _BODY
        self._remaining = length
        self._chunks = ChunkReader() if length == CHUNKED else None
        self._body, self._body_size, self._is_replayable = [], 0, True
        data, self._buffer = self._buffer, b""
        if data:
            self._read_body(data)

    def _read_body(self, data: bytes) -> None:
        rest = b""
        if self._chunks is None:
            if len(data) > self._remaining:
                data, rest = data[: self._remaining], data[self._remaining :]
            self._remaining -= len(data)
            is_last = self._remaining == 0
        else:
            try:
                body, rest = self._chunks.feed(data)
            except Malformed as e:
                self._refuse(e.status, e.reason)
                return
            is_last = self._chunks.is_complete
            data = chunk(body) if body else b""
            if is_last:
                data += LAST_CHUNK
        if is_last:
            self._state, self._buffer = _ANSWER, rest
            self.deadline = self.now() + self._limits.answer
            if rest:
                self.update_reading()
        if self._backend is not None:
            self._backend.transport.write(data)
        if self._is_replayable:
            self._body.append(data)
            self._body_size += len(data)
            self._forget_long_body()
        if self._backend is None:
            self.update_reading()

    def _forget_long_body(self) -> None:
        if self._backend is not None and self._body_size > _REPLAYED:
            self._body, self._is_replayable = _NO_BODY, False

    # The backend.

    def _assign(self, choice: Choice | None) -> None:
        """Sends the request to a backend, or answers that there is none."""
        if choice is None:
            self._route.unserved += 1
            self._answer_itself(503, "no program serves this address at the moment")
            return
        self._choice = choice
        variant, target = choice
        self._is_assigned = True
        target.begin()
        variant.meter.in_flight += 1
        idle = target.idle
        if idle and (self._request.method in _IDEMPOTENT or self._is_surely_open(idle[-1])):
            self._send(idle.pop())
        else:
            self._connecting = self._loop.create_task(self._connect(target))

    def _is_surely_open(self, connection: BackendConnection) -> bool:
        return connection.idle_since > self._started - _SURELY_OPEN and connection.is_open()

    def _release(self) -> None:
        if self._is_assigned:
            self._is_assigned = False
            variant, target = self._choice
            target.end()
            variant.meter.in_flight -= 1

    def _leave_backend(self) -> None:
        """Gives up the request at the backend."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._backend is not None:
            self._backend.leave()
            self._backend = None

    async def _connect(self, target: Target) -> None:
        backend = target.backend
        try:
            async with asyncio.timeout(self._limits.connect):
                _, connection = await self._loop.create_connection(
                    lambda: BackendConnection(target, self._limits.idle_backends),
                    backend.host,
                    backend.port,
                )
        except OSError as e:
            self._connecting = None
            self._not_connected(e)
        else:
            self._connecting = None
            self._send(connection)

    def _not_connected(self, error: OSError) -> None:
        """Asks another backend; nothing was sent to this one."""
        now = self.now()
        variant, target = self._choice
        cause = "did not accept a connection in time" if isinstance(error, TimeoutError) else (
            f"refused a connection: {error.strerror or error}"
        )  # fmt: skip
        variant.meter.failed_to_connect(now, f"{target.backend} {cause}")
        self._route.skip(target, now)
        self._release()
        self._tried.append(target)
        other = self._route.choose_other(variant, self._tried, now)
        if other is not None:
            self._route.retries += 1
            self._assign(other)
        elif isinstance(error, TimeoutError):
            self._answer_itself(504, "no program accepted a connection in time")
        else:
            self._answer_itself(503, "no program accepted a connection")

    def _send(self, connection: BackendConnection) -> None:
        self._backend = connection
        body = self._body
        connection.send(self, self._request, b"".join(body) if body else b"")
        self.deadline = self.now() + self._limits.answer
        if body is not _NO_BODY:
            self._forget_long_body()
            self.update_reading()

    def backend_lost(self, connection: BackendConnection) -> None:
        """Sends the request once more when that can do no harm."""
        self._backend = None
        if self._response is not None or connection.has_answered:
            self.backend_failed("the program closed the connection within its answer")
            return
        variant, target = self._choice
        may_repeat = self._request.method in _IDEMPOTENT and self._is_replayable
        if may_repeat and connection.is_reused:
            # The backend closed an idle connection at the moment of the request.
            self._route.retries += 1
            self._connecting = self._loop.create_task(self._connect(target))
            return
        self._attempts += 1
        if may_repeat and self._attempts < _MOST_ATTEMPTS:
            self._tried.append(target)
            now = self.now()
            if other := self._route.choose_other(variant, self._tried, now):
                variant.meter.failed(now, f"{target.backend} closed the connection unanswered")
                self._route.retries += 1
                self._release()
                self._assign(other)
                return
        self.backend_failed("the program closed the connection without an answer")

    def backend_failed(self, reason: str) -> None:
        """Reports an answer that cannot be forwarded, or not to its end."""
        self._backend = None
        self._failed(502, reason)

    def _failed(self, status: int, reason: str) -> None:
        variant, target = self._choice
        variant.meter.failed(self.now(), f"{target.backend}: {reason}")
        self._release()
        if self._response is None:
            self._answer_itself(status, reason)
        else:
            reset(self._transport)

    # The answer.

    def interim(self, response: Response) -> None:
        """Forwards a response like 100 Continue."""
        if not self._request.is_http_1_0:
            self._transport.write(response.head + b"\r\n")

    def start_answer(self, response: Response) -> None:
        """Prepares the head of the answer, which is sent with the first piece of the body."""
        self._response = response
        request, head = self._request, response.head
        self._is_chunked = response.length < 0 and not request.is_http_1_0
        self._closes = (
            not request.keep_alive
            or self._route.is_closing
            or self._has_ended
            or self._state is _BODY
            or (response.length < 0 and request.is_http_1_0)
        )
        if self._is_chunked:
            head += b"Transfer-Encoding: chunked\r\n"
        if self._closes:
            head += b"Connection: close\r\n"
        elif request.is_http_1_0:
            head += b"Connection: keep-alive\r\n"
        if response.status == 426 and response.upgrade:
            head += b"Upgrade: " + response.upgrade + b"\r\n"
        self._answer_head = head + b"\r\n"

    def answer(self, data: bytes, *, is_last: bool) -> None:
        """Forwards a piece of the answer's body."""
        out = self._answer_head
        self._answer_head = b""
        if self._is_chunked:
            if data:
                out += chunk(data)
            if is_last:
                out += LAST_CHUNK
        else:
            out = out + data if out else data
        if out:
            self._transport.write(out)
        self.deadline = self.now() + self._limits.stream

    def finish(self) -> None:
        """Ends the exchange after the last piece of the answer and reads the next request."""
        self._backend = None
        now = self.now()
        response, self._response = cast("Response", self._response), None
        variant, _ = self._choice
        variant.meter.answered(now, now - self._started, response.status)
        self._release()
        if self._tried:
            self._tried, self._attempts = [], 0
        if self._closes or self._has_ended or self._state is _BODY:
            self._close()
            return
        self._state = _HEAD
        self.deadline = now + self._limits.idle
        if self._buffer or self._is_full:
            self.update_reading()
            if not self._is_full:
                self._loop.call_soon(self._continue)

    def _continue(self) -> None:
        """Reads the requests that came before the answer to the one before them."""
        if self._state is not _HEAD or self._is_full or self._transport.is_closing():
            return
        self.update_reading()
        if data := self._buffer:
            self._buffer = b""
            self._read_head(data)

    def _answer_itself(self, status: int, reason: str) -> None:
        """Answers in place of a backend."""
        self._release()
        keep_alive = (
            self._state is _ANSWER
            and self._request.keep_alive
            and not self._request.is_http_1_0
            and not self._has_ended
            and not self._route.is_closing
        )
        is_head = self._state in {_ANSWER, _BODY} and self._request.method == b"HEAD"
        self._transport.write(_plain(status, reason, keep_alive=keep_alive, is_head=is_head))
        if not keep_alive:
            self._close()
            return
        self._tried, self._attempts = [], 0
        self._state = _HEAD
        self.deadline = self.now() + self._limits.idle
        self._loop.call_soon(self._continue)

    def _refuse(self, status: int, reason: str) -> None:
        """Answers a request that cannot be understood; nothing after it can be either."""
        self._route.malformed += 1
        self._leave_backend()
        self._release()
        if self._response is not None:
            self._transport.abort()
            return
        self._transport.write(_plain(status, reason))
        self._close()

    def _close(self) -> None:
        """Closes after the answer, and lets a client that is still sending read it."""
        if self._state is not _ANSWER and not self._has_ended and self._transport.can_write_eof():
            self._state = _LINGER
            self.deadline = self.now() + self._limits.linger
            self.update_reading()
            self._transport.write_eof()
        else:
            self._transport.close()

    # Upgraded connections.

    def start_tunnel(self, response: Response, data: bytes) -> None:
        """Forwards what both sides say from now on."""
        now = self.now()
        self._response = response
        self._state = _TUNNEL
        variant, _ = self._choice
        variant.meter.answered(now, now - self._started, response.status)
        upgrade = b"Connection: Upgrade\r\nUpgrade: " + response.upgrade + b"\r\n\r\n"
        self._transport.write(response.head + upgrade + data)
        self.deadline = now + self._limits.tunnel
        if self._backend is not None and self._buffer:
            self._backend.transport.write(self._buffer)
        self._buffer = b""
        self.update_reading()

    def relay(self, data: bytes) -> None:
        """Forwards bytes of the backend."""
        self.deadline = self.now() + self._limits.tunnel
        self._transport.write(data)

    def close_tunnel(self) -> None:
        """Closes when the backend's last bytes are sent."""
        self._backend = None
        self._transport.close()

    # Deadlines.

    def expire(self, now: float) -> None:
        """Ends what has taken longer than its deadline."""
        self.deadline = now + self._limits.linger
        if self._transport.is_closing():
            # The client does not read the rest of its last answer.
            self.abort()
        elif self._state is _LINGER or self._state is _TUNNEL or self._response is not None:
            self.abort()
        elif self._state is _HEAD:
            if self._buffer:
                self._refuse(408, "the head of the request did not come in time")
            else:
                self._transport.close()
        elif self._state is _BODY and self._backend is not None and not self._backend.is_full:
            self._refuse(408, "the body of the request did not come in time")
        elif self._is_assigned:
            self._leave_backend()
            self._failed(504, "the program did not answer in time")

    def abort(self) -> None:
        """Ends at once."""
        self._transport.abort()


def _has_bare_line_feed(data: bytes) -> bool:
    return data.count(b"\n") != data.count(b"\r\n")


def _plain(status: int, reason: str, *, keep_alive: bool = False, is_head: bool = False) -> bytes:
    phrase = HTTPStatus(status).phrase
    text = f"{status} {phrase}: {reason}\n"
    retry = "Retry-After: 1\r\n" if status == 503 else ""
    connection = "" if keep_alive else "Connection: close\r\n"
    return (
        f"HTTP/1.1 {status} {phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n{retry}{connection}\r\n{'' if is_head else text}"
    ).encode()
