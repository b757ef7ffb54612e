# SPDX-License-Identifier: Apache-2.0
"""Base class of HTTP servers on loopback; a subclass implements `answer`."""

import json
import ssl
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


@dataclass(frozen=True)
class Request:
    """A received request; header names are case-insensitive."""

    method: str
    path: str
    query: str
    headers: "Message[str, str]"
    body: bytes

    @property
    def target(self) -> str:
        """The path with its query, as it was written."""
        return f"{self.path}?{self.query}" if self.query else self.path

    @property
    def authorization(self) -> str:
        return self.headers.get("Authorization") or ""

    @property
    def fields(self) -> dict[str, list[str]]:
        """The query by name."""
        return parse_qs(self.query)


@dataclass(frozen=True)
class Answer:
    """The response to a request; one that is cut ends in the middle of its body."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    is_cut: bool = False


def in_json(value: Any, status: int = 200) -> Answer:
    """Returns a JSON response."""
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


class WebServer(ABC):
    """Listens in a thread until it is closed."""

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        self.is_closed = False
        server = self

        class Handler(_Handler):
            web_server = server

        self._server = _HttpServer(("127.0.0.1", 0), Handler)
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @abstractmethod
    def answer(self, request: Request) -> Answer | None:
        """Returns the response; None closes the connection without one."""

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def address(self) -> str:
        return f"{self._scheme}://{self.host}"

    def close(self) -> None:
        self.is_closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _HttpServer(ThreadingHTTPServer):
    """Accepts a burst of connections."""

    request_queue_size = 200


class _Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    web_server: WebServer
    protocol_version = "HTTP/1.1"
    # A response is sent in one piece.
    wbufsize = -1

    def handle(self) -> None:
        # A client may be killed at any moment.
        with suppress(ConnectionError):
            super().handle()

    def take(self) -> None:
        body = self._body()
        # Kept-alive connections outlive the listening socket.
        if body is None or self.web_server.is_closed:
            self.close_connection = True
            return
        path, _, query = self.path.partition("?")
        answer = self.web_server.answer(Request(self.command, path, query, self.headers, body))
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if answer.is_cut:
            self.close_connection = True
            self.wfile.write(answer.body[: len(answer.body) // 2])
        elif self.command != "HEAD":
            self.wfile.write(answer.body)

    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = take  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Suppresses the access log."""

    def _body(self) -> bytes | None:
        """Returns the body, or None when the client went away while sending it."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            return body if len(body) == length else None
        body = b""
        while size := int(self.rfile.readline() or "0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body
