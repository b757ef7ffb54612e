# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of the control plane, and the ASGI applications that route and measure."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, cast

import h11
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from pipecd.wire.admission import Admission, ConnectionLimits
from pipecd.wire.listener import listening
from pipecd.wire.peer import client_host
from pipecd.wire.server import cannot_listen

_SHUTDOWN_SECONDS = 2.0
# How long a client may take to send the head, and the body, of a request.
HEAD_SECONDS = 15.0
BODY_SECONDS = 60.0
# A client that sends its body without waiting reads the response only if this much is discarded.
_MAX_DISCARDED_BYTES = 1024 * 1024
_WARNING_SECONDS = 60.0
_WARNINGS = {
    "Invalid HTTP request received.": "request refused: it is not valid HTTP; is TLS sent here?"
}
MAX_BODIES_BYTES = 64 * 1024 * 1024
_RETRY_AFTER = {"Retry-After": "5"}
_UNMEASURED_PATHS = ("/assets/", "/favicon.ico")

# Called with the method, the path of the route, the status, and the duration in seconds.
OnResponse = Callable[[str, str, int, float], None]


class _ProtocolFactory(Protocol):
    """The factory that uvicorn's own server calls for each connection."""

    def __call__(
        self, *, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> asyncio.Protocol: ...


class PathPrefixRouter:
    """Routes a request to the application whose prefix its path starts with."""

    def __init__(self, apps: Mapping[str, ASGIApp], default: ASGIApp) -> None:
        self._apps, self._default = tuple(apps.items()), default

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        matching = (app for prefix, app in self._apps if path.startswith(prefix))
        await next(matching, self._default)(scope, receive, send)


def single_page_app(directory: Path) -> ASGIApp:
    """Serves a single-page console from a directory, such as upstream's."""
    assets = StaticFiles(directory=directory / "assets", check_dir=False)

    async def cached_assets(scope: Scope, receive: Receive, send: Send) -> None:
        # The name of an asset changes with its content, so browsers may cache it.
        async def send_cached(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message)["Cache-Control"] = "public, max-age=31536000"
            await send(message)

        await assets(scope, receive, send_cached)

    async def icon(_request: Request) -> Response:
        return FileResponse(directory / "favicon.ico")

    async def index(_request: Request) -> Response:
        return FileResponse(directory / "index.html")

    routes = [
        Mount("/assets", cached_assets),
        Route("/favicon.ico", icon),
        Route("/{path:path}", index),
    ]
    return Starlette(routes=routes)


class RequestMetrics:
    """Reports each response; the path is that of the route, not of the request."""

    def __init__(self, app: ASGIApp, on_response: OnResponse) -> None:
        self._app, self._on_response = app, on_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_UNMEASURED_PATHS):
            await self._app(scope, receive, send)
            return
        # A request that ends without a response is a server error.
        status = 500

        async def send_measured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        started = time.perf_counter()
        try:
            await self._app(scope, receive, send_measured)
        finally:
            path: str = getattr(scope.get("route"), "path", "/")
            self._on_response(scope["method"], path, status, time.perf_counter() - started)


def without_late_responses(app: ASGIApp) -> ASGIApp:
    """Drops what the application sends after its connection was closed for an invalid request.

    uvicorn answers a body or a second request that it cannot parse with 400 while the application
    still handles the first one. A stranger could fill the log with the errors of its response.
    """

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_if_open(message: Message) -> None:
            with suppress(h11.LocalProtocolError):
                await send(message)

        await app(scope, receive, send_if_open)

    return respond


class BodyBudget:
    """Limits the bytes of request bodies that are in memory at once, of all requests together."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODIES_BYTES) -> None:
        self._app, self._limit = app, limit
        self._used = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held = 0

        async def counted_receive() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            held += size
            self._used += size
            if self._used > self._limit:
                raise HTTPException(503, "too many requests, try again later", _RETRY_AFTER)
            return message

        try:
            await self._app(scope, counted_receive, send)
        finally:
            self._used -= held


class OncePerInterval(logging.Filter):
    """Passes each warning of the web server once a minute; one request of a stranger causes one.

    A warning of the library that does not say what happened gets words that do.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        now = self._clock()
        # The text without its arguments: there are few of them.
        if now - self._logged_at.get(record.msg, float("-inf")) < _WARNING_SECONDS:
            return False
        self._logged_at[record.msg] = now
        record.msg = _WARNINGS.get(record.msg, record.msg)
        return True


_limit_warnings = OncePerInterval()


class _Phase(Enum):
    """What a connection does: the client sends a head or a body, or the server responds."""

    HEAD = "head"
    BODY = "body"
    RESPONSE = "response"


# The web server itself ends connections that are idle between requests.
_PHASE_SECONDS = {_Phase.HEAD: HEAD_SECONDS, _Phase.BODY: BODY_SECONDS, _Phase.RESPONSE: None}


class HttpConnection(asyncio.Protocol):
    """A connection of the web server, with deadlines for the head and the body of a request."""

    def __init__(self, inner: Any, admission: Admission) -> None:
        self._inner, self._admission = inner, admission
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._phase = _Phase.HEAD
        self._discarded_bytes = 0
        self.address = ""
        self.deadline: float | None = self._loop.time() + HEAD_SECONDS

    @property
    def is_waiting(self) -> bool:
        return self._current_phase() is not _Phase.RESPONSE

    def close(self) -> None:
        """Aborts the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.address = client_host(transport)
        self._admission.add(self)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._is_body_unwanted():
            self._discarded_bytes += len(data)
            if self._discarded_bytes > _MAX_DISCARDED_BYTES:
                self.close()
                return
        else:
            self._discarded_bytes = 0
        self._inner.data_received(data)
        phase = self._current_phase()
        if phase is not self._phase:
            self._phase = phase
            seconds = _PHASE_SECONDS[phase]
            self.deadline = None if seconds is None else self._loop.time() + seconds

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._admission.remove(self)
        self._inner.connection_lost(exc)

    def _is_body_unwanted(self) -> bool:
        """Whether the client sends the rest of a body although the response is complete."""
        cycle = self._inner.cycle
        is_answered = cycle is not None and cycle.response_complete
        return is_answered and self._inner.conn.their_state is h11.SEND_BODY

    def _current_phase(self) -> _Phase:
        cycle = self._inner.cycle
        if cycle is None or cycle.response_complete:
            return _Phase.HEAD
        return _Phase.BODY if cycle.more_body else _Phase.RESPONSE


class WebServer:
    """Serves an ASGI application over HTTP/1.1 on the connections it is given.

    `admission` limits the connections that wait for their clients.
    """

    def __init__(self, app: ASGIApp, admission: Admission | None = None) -> None:
        self.admission = admission or Admission(ConnectionLimits())
        self._config = uvicorn.Config(
            BodyBudget(without_late_responses(app)),
            http="h11",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
        )
        self._config.load()
        # Of the whole process, however many servers it has.
        logging.getLogger("uvicorn.error").addFilter(_limit_warnings)
        self._state = ServerState()

    def protocol(self) -> asyncio.Protocol:
        """Creates the protocol of one new connection."""
        create = cast("_ProtocolFactory", self._config.http_protocol_class)
        inner = create(config=self._config, server_state=self._state, app_state={})
        return HttpConnection(inner, self.admission)

    async def stop(self) -> None:
        """Waits a moment for running requests, then cancels them; streams never end themselves."""
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_SHUTDOWN_SECONDS)
        for task in tasks:
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.close()


@asynccontextmanager
async def http_server(
    web: WebServer, *, host: str, port: int, flag: str = "--http-port"
) -> AsyncGenerator[int, None]:
    """Listens on a port for HTTP alone; yields the bound port."""
    async with AsyncExitStack() as stack:
        listener = listening(web.protocol, web.admission, host=host, port=port)
        try:
            bound = await stack.enter_async_context(listener)
        except OSError as e:
            raise cannot_listen(host, port, e, flag=flag) from e
        yield bound
