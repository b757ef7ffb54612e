# SPDX-License-Identifier: Apache-2.0
"""An OCI registry in memory, with tokens like those of public ones; it also serves plain files."""

import base64
import hashlib
import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

TOKEN = "let-me-in"


class OciRegistry:
    """Keeps blobs by digest, manifests by digest and tag, and files by name."""

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        # What was asked for, in order.
        self.requests: list[str] = []
        # So many requests are answered with 503 first.
        self.outages = 0
        self.wants_token = False
        # Who gets a token; nobody in particular when it is empty.
        self.login = ""
        self.scopes: list[str] = []
        registry = self

        class Door(_Door):
            kept = registry

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def address(self) -> str:
        return f"{self._scheme}://{self.host}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class _Door(BaseHTTPRequestHandler):
    kept: OciRegistry
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""

    def _answer(self, code: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            content = b""
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return content
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _handle(self) -> None:
        body = self._body()
        path = urlsplit(self.path).path
        self.kept.requests.append(f"{self.command} {path}")
        if self.kept.outages:
            self.kept.outages -= 1
            return self._answer(503)
        if path == "/token":
            return self._give_token()
        if path in self.kept.redirects:
            return self._answer(307, Location=self.kept.redirects[path])
        if path.startswith("/files/"):
            content = self.kept.files.get(path.removeprefix("/files/"))
            return self._answer(404) if content is None else self._answer(200, content)
        if self.kept.wants_token and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            scope = "repository:team/plugin:pull,push"
            how = f'Bearer realm="{self.kept.address}/token",service="here",scope="{scope}"'
            return self._answer(401, WWW_Authenticate=how)
        return self._registry(path, body)

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_PUT(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _give_token(self) -> None:
        self.kept.scopes += parse_qs(urlsplit(self.path).query).get("scope", [])
        wanted = f"Basic {base64.b64encode(self.kept.login.encode()).decode()}"
        if self.kept.login and self.headers.get("Authorization") != wanted:
            return self._answer(401)
        return self._answer(200, json.dumps({"token": TOKEN}).encode())

    def _registry(self, path: str, body: bytes) -> None:
        if path == "/v2/":
            return self._answer(200)
        found = re.fullmatch(r"/v2/(.+)/(blobs|manifests)/(.+|uploads/)", path)
        if found is None:
            return self._answer(404)
        repository, kind, name = found.groups()
        if kind == "manifests":
            return self._manifest(repository, name, body)
        return self._blob(repository, name, body)

    def _manifest(self, repository: str, name: str, body: bytes) -> None:
        if self.command == "PUT":
            kept = (self.headers["Content-Type"], body)
            self.kept.manifests[(repository, name)] = kept
            self.kept.manifests[(repository, digest_of(body))] = kept
            return self._answer(201, Docker_Content_Digest=digest_of(body))
        media_type, content = self.kept.manifests.get((repository, name), ("", b""))
        if not content:
            return self._answer(404)
        digest = digest_of(content)
        return self._answer(200, content, Content_Type=media_type, Docker_Content_Digest=digest)

    def _blob(self, repository: str, name: str, body: bytes) -> None:
        if self.command == "POST":
            return self._answer(202, Location=f"/v2/{repository}/blobs/uploads/{uuid4()}?state=x")
        if self.command == "PUT":
            (digest,) = parse_qs(urlsplit(self.path).query)["digest"]
            if digest_of(body) != digest:
                return self._answer(400)
            self.kept.blobs[digest] = body
            return self._answer(201)
        content = self.kept.blobs.get(name)
        return self._answer(404) if content is None else self._answer(200, content)
