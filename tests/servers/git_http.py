# SPDX-License-Identifier: Apache-2.0
"""Repositories over HTTP: `git http-backend` and Git LFS behind a password, if there is one."""

import base64
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

LFS_TYPE = "application/vnd.git-lfs+json"


class GitHttp:
    """Serves, to read and to push, the repositories below a directory under their paths in it."""

    def __init__(self, root: Path, certificate: tuple[str, str] | None = None) -> None:
        self.root = root
        # What was asked for, without what the password kept out.
        self.requests: list[str] = []
        # Another code than 200 is the answer to everything, as in an outage.
        self.answers_with = 200
        self.large_files: dict[str, bytes] = {}
        self._authorization = ""
        server = self

        class Door(GitDoor):
            git = server

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
    def address(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    def require(self, username: str, password: str) -> None:
        """Answers from now on only to this user."""
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        self._authorization = f"Basic {pair}"

    def lets_in(self, authorization: str | None) -> bool:
        return not self._authorization or authorization == self._authorization

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class GitDoor(BaseHTTPRequestHandler):
    """Answers one client."""

    git: GitHttp
    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        path, _, query = self.path.partition("?")
        body = self._body()
        if self.git.answers_with != 200:
            return self._send(self.git.answers_with, b"as told", {})
        if not self.git.lets_in(self.headers.get("Authorization")):
            return self._send(401, b"", {"WWW-Authenticate": 'Basic realm="git"'})
        self.git.requests.append(self.path)
        if large := re.fullmatch(r"(/.+)/info/lfs/objects/(batch|[0-9a-f]{64})", path):
            return self._large_file(large[1], large[2], body)
        return self._backend(path, query, body)

    do_GET = do_POST = do_PUT = answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps quiet."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        # A client that was killed does not wait for its answer.
        with suppress(ConnectionError):
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def _backend(self, path: str, query: str, body: bytes) -> None:
        git = shutil.which("git") or "git"
        config = {"safe.directory": "*", "http.receivepack": "true"}
        settings = {f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(config)}
        settings |= {f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(config.values())}
        done = subprocess.run(
            [git, "http-backend"],
            input=body,
            capture_output=True,
            check=False,
            env={
                **settings,
                "PATH": os.environ["PATH"],
                "GIT_CONFIG_COUNT": str(len(config)),
                "GIT_PROJECT_ROOT": str(self.git.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        code = int(headers.pop("Status", "200" if headers else "500").split()[0])
        self._send(code, content, headers)

    def _large_file(self, repository: str, name: str, body: bytes) -> None:
        if name == "batch":
            asked = json.loads(body)
            objects = [self._action(repository, asked["operation"], o) for o in asked["objects"]]
            answer = json.dumps({"transfer": "basic", "objects": objects}).encode()
            return self._send(200, answer, {"Content-Type": LFS_TYPE})
        if self.command == "PUT":
            right = hashlib.sha256(body).hexdigest() == name
            self.git.large_files |= {name: body} if right else {}
            return self._send(200 if right else 422, b"", {})
        content = self.git.large_files.get(name)
        return self._send(404 if content is None else 200, content or b"", {})

    def _action(self, repository: str, operation: str, wanted: dict[str, Any]) -> dict[str, Any]:
        name, here = wanted["oid"], wanted["oid"] in self.git.large_files
        if operation == "download" and not here:
            return {**wanted, "error": {"code": 404, "message": "no such object"}}
        if operation == "upload" and here:
            return wanted
        href = f"{self.git.address}{repository}/info/lfs/objects/{name}"
        authorization = self.headers.get("Authorization")
        header = {"Authorization": authorization} if authorization else {}
        return {**wanted, "actions": {operation: {"href": href, "header": header}}}
