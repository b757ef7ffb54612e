# SPDX-License-Identifier: Apache-2.0
"""The web server of the control plane, fed with connections by the splitter or its own port."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.server import ServerState

from pipecd.model.errors import UserMistake

_GRACE_SECONDS = 2.0
_UNCOUNTED = ("/assets/", "/favicon.ico")

# The method, the path of the route, the status and the seconds that an answer took.
Answered = Callable[[str, str, int, float], None]


class _ProtocolFactory(Protocol):
    """What uvicorn's own server calls for each connection."""

    def __call__(
        self, *, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any]
    ) -> asyncio.Protocol: ...


class ByPrefix:
    """Hands a request on by the beginning of its path."""

    def __init__(self, doors: Mapping[str, ASGIApp], otherwise: ASGIApp) -> None:
        self._doors, self._otherwise = tuple(doors.items()), otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        found = (door for prefix, door in self._doors if path.startswith(prefix))
        await next(found, self._otherwise)(scope, receive, send)


def site_of(directory: Path) -> ASGIApp:
    """A console of one page and its assets from a directory, as upstream builds its own."""
    page = directory / "index.html"

    async def anything(_request: Request) -> Response:
        return FileResponse(page)

    async def icon(_request: Request) -> Response:
        return FileResponse(directory / "favicon.ico")

    assets = StaticFiles(directory=directory / "assets", check_dir=False)
    routes = [
        Mount("/assets", _Kept(assets)),
        Route("/favicon.ico", icon),
        Route("/{path:path}", anything),
    ]
    return Starlette(routes=routes)


class _Kept:
    """Lets browsers keep files whose names change with their content."""

    def __init__(self, files: ASGIApp) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def kept(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 200:
                MutableHeaders(scope=message)["Cache-Control"] = "public, max-age=31536000"
            await send(message)

        await self._files(scope, receive, kept)


class Counted:
    """Tells how each request was answered; the path is that of the route, never of the visitor."""

    def __init__(self, pages: ASGIApp, answered: Answered) -> None:
        self._pages, self._answered = pages, answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_UNCOUNTED):
            await self._pages(scope, receive, send)
            return
        # What ends without an answer was our fault.
        code = 500

        async def noted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        started = time.perf_counter()
        try:
            await self._pages(scope, receive, noted)
        finally:
            route = scope.get("route")
            path: str = getattr(route, "path", "/")
            self._answered(scope["method"], path, code, time.perf_counter() - started)


class WebServer:
    """Speaks HTTP/1.1 on the connections it is given."""

    def __init__(self, pages: ASGIApp) -> None:
        self._config = uvicorn.Config(
            pages,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
        )
        self._config.load()
        self._state = ServerState()

    def protocol(self) -> asyncio.Protocol:
        """A protocol for one new connection."""
        make = cast("_ProtocolFactory", self._config.http_protocol_class)
        return make(config=self._config, server_state=self._state, app_state={})

    async def stop(self) -> None:
        """Lets running answers finish for a moment, then ends them, as streams never do."""
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks = set(self._state.tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_GRACE_SECONDS)
        for task in tasks:
            task.cancel()
        for connection in list(self._state.connections):
            connection.transport.close()


@asynccontextmanager
async def http_port(web: WebServer, *, host: str, port: int) -> AsyncGenerator[int, None]:
    """A port for pages alone, as upstream's layouts have it."""
    loop = asyncio.get_running_loop()
    try:
        server = await loop.create_server(web.protocol, host, port)
    except OSError as e:
        raise UserMistake(
            f"cannot listen on port {port} of {host}: {e.strerror}",
            hint="stop the program that uses it or choose another with --http-port",
        ) from e
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
