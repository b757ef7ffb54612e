# SPDX-License-Identifier: Apache-2.0
"""The admin port: version, health, metrics and profiles over plain HTTP."""

import asyncio
import ipaddress
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.observe import debug
from pipecd.observe.version import build_version

_REQUEST_TIMEOUT_SECONDS = 10
_TEXT, _BINARY = "text/plain; charset=utf-8", "application/octet-stream"

Body = Callable[[], bytes | Awaitable[bytes]]


@dataclass(frozen=True)
class Page:
    """The response of one path; `body` may be asynchronous."""

    body: Body
    content_type: str = _TEXT
    loopback_only: bool = False


def standard_pages(
    registry: CollectorRegistry | None, ready: Callable[[], Awaitable[bytes]] | None = None
) -> dict[str, Page]:
    """Returns the pages of every program; without a registry `/metrics` is empty.

    `/healthz` reports that the process runs, and `/readyz`, if `ready` is given, whether the
    services it depends on are available. Profiles cost time: they are taken one at a time, and only
    for this machine.
    """
    profiling = asyncio.Lock()

    def profile(body: Body, content_type: str = _TEXT) -> Page:
        return Page(partial(_one_at_a_time, profiling, body), content_type, loopback_only=True)

    def metrics() -> bytes:
        return generate_latest(registry) if registry is not None else b""

    pages = {
        "/version": Page(lambda: build_version().encode()),
        "/healthz": Page(lambda: b"ok"),
        "/metrics": Page(metrics, CONTENT_TYPE_LATEST),
        "/debug/pprof/": Page(debug.index, loopback_only=True),
        "/debug/pprof/profile": profile(debug.profile, _BINARY),
        "/debug/pprof/goroutine": profile(debug.goroutines, _BINARY),
        "/debug/pprof/heap": profile(debug.heap, _BINARY),
        "/debug/tasks": profile(debug.tasks_text),
        "/debug/objects": profile(debug.objects_text),
        "/debug/loop": profile(debug.loop_text),
    }
    if ready is not None:
        pages["/readyz"] = Page(ready)
    return pages


async def _one_at_a_time(lock: asyncio.Lock, body: Body) -> bytes:
    if lock.locked():
        raise Unavailable("another profile is being taken, try again in a few seconds")
    async with lock:
        content = body()
        return content if isinstance(content, bytes) else await content


@asynccontextmanager
async def admin_server(
    pages: dict[str, Page], *, host: str, port: int
) -> AsyncGenerator[int, None]:
    """Serves the pages until the block ends; yields the bound port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError, ValueError):
            async with asyncio.timeout(_REQUEST_TIMEOUT_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                peer: tuple[str, int] = writer.get_extra_info("peername")
                writer.write(await respond(request, pages, peer=peer[0]))
                await writer.drain()
        writer.close()

    try:
        server = await asyncio.start_server(handle, host, port)
    except OSError as e:
        raise UserMistake(
            f"cannot listen on admin port {port} of {host or 'this machine'}: {e.strerror}",
            hint="stop the program that uses it or choose another with --admin-port",
        ) from e
    async with server:
        yield server.sockets[0].getsockname()[1]


async def respond(request: bytes, pages: dict[str, Page], *, peer: str) -> bytes:
    """Returns the HTTP response to a request head that came from the address `peer`."""
    parts = request.split(b"\r\n", 1)[0].split(b" ")
    if len(parts) != 3 or parts[0] not in (b"GET", b"HEAD"):
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET is allowed\n", "text/plain")
    path = parts[1].split(b"?", 1)[0].decode("latin-1")
    page = pages.get(path)
    if page is None:
        links = "".join(f'<li><a href="{p}">{p}</a></li>' for p in sorted(pages))
        return _response(HTTPStatus.OK, f"<ul>{links}</ul>\n".encode(), "text/html; charset=utf-8")
    if page.loopback_only and not _is_loopback(peer):
        return _response(
            HTTPStatus.FORBIDDEN,
            b"profiles are served to 127.0.0.1 and ::1 only: forward the port, for instance with "
            b"kubectl port-forward or ssh -L\n",
            "text/plain",
        )
    try:
        body = page.body()
        body = body if isinstance(body, bytes) else await body
    except PipecdError as e:
        return _response(HTTPStatus.SERVICE_UNAVAILABLE, f"{e}\n".encode(), "text/plain")
    return _response(HTTPStatus.OK, b"" if parts[0] == b"HEAD" else body, page.content_type)


def _is_loopback(peer: str) -> bool:
    # A link-local address of IPv6 has the name of an interface behind it.
    address = ipaddress.ip_address(peer.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _response(status: HTTPStatus, body: bytes, content_type: str) -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body
