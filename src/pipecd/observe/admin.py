# SPDX-License-Identifier: Apache-2.0
"""The admin port: version, health, metrics and profiles over plain HTTP."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe import debug
from pipecd.observe.version import build_version

_REQUEST_TIMEOUT_SECONDS = 10
_BINARY = "application/octet-stream"


@dataclass(frozen=True)
class Page:
    """The response of one path; `body` may be asynchronous."""

    body: Callable[[], bytes | Awaitable[bytes]]
    content_type: str = "text/plain; charset=utf-8"


def standard_pages(
    registry: CollectorRegistry | None, ready: Callable[[], Awaitable[bytes]] | None = None
) -> dict[str, Page]:
    """Returns the pages of every program; without a registry `/metrics` is empty.

    `/healthz` reports that the process runs, and `/readyz`, if `ready` is given, whether the
    services it depends on are available.
    """

    def metrics() -> bytes:
        return generate_latest(registry) if registry is not None else b""

    pages = {
        "/version": Page(lambda: build_version().encode()),
        "/healthz": Page(lambda: b"ok"),
        "/metrics": Page(metrics, CONTENT_TYPE_LATEST),
        "/debug/pprof/": Page(debug.index),
        "/debug/pprof/profile": Page(debug.profile, _BINARY),
        "/debug/pprof/goroutine": Page(debug.goroutines, _BINARY),
        "/debug/pprof/heap": Page(debug.heap, _BINARY),
        "/debug/tasks": Page(debug.tasks_text),
        "/debug/objects": Page(debug.objects_text),
        "/debug/loop": Page(debug.loop_text),
    }
    if ready is not None:
        pages["/readyz"] = Page(ready)
    return pages


@asynccontextmanager
async def admin_server(
    pages: dict[str, Page], *, host: str, port: int
) -> AsyncGenerator[int, None]:
    """Serves the pages until the block ends; yields the bound port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await respond(request, pages))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(handle, host, port)
    except OSError as e:
        raise UserMistake(
            f"cannot listen on admin port {port} of {host}: {e.strerror}",
            hint="stop the program that uses it or choose another with --admin-port",
        ) from e
    async with server:
        yield server.sockets[0].getsockname()[1]


async def respond(request: bytes, pages: dict[str, Page]) -> bytes:
    """Returns the HTTP response to a request head."""
    parts = request.split(b"\r\n", 1)[0].split(b" ")
    if len(parts) != 3 or parts[0] not in (b"GET", b"HEAD"):
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is allowed\n", "text/plain")
    path = parts[1].split(b"?", 1)[0].decode("latin-1")
    page = pages.get(path)
    if page is None:
        links = "".join(f'<li><a href="{p}">{p}</a></li>' for p in sorted(pages))
        return _response(HTTPStatus.OK, f"<ul>{links}</ul>\n".encode(), "text/html; charset=utf-8")
    try:
        body = page.body()
        body = body if isinstance(body, bytes) else await body
    except PipecdError as e:
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{e}\n".encode(), "text/plain")
    return _response(HTTPStatus.OK, b"" if parts[0] == b"HEAD" else body, page.content_type)


def _response(status: HTTPStatus, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
