# SPDX-License-Identifier: Apache-2.0
"""Real repositories to be mirrored: in a directory, and behind a Git server over HTTP."""

import base64
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Origin:
    """A repository with a working tree, as a person would have it."""

    path: Path

    @property
    def remote(self) -> str:
        return f"file://{self.path}"

    def git(self, *arguments: str | bytes) -> str:
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_AUTHOR_DATE": "1700000000 +0000",
            "GIT_COMMITTER_DATE": "1700000000 +0000",
        }
        done = subprocess.run(
            ["git", "-c", "user.name=Ann", "-c", "user.email=ann@example.com", *arguments],
            cwd=self.path,
            env=env,
            check=True,
            capture_output=True,
        )
        return done.stdout.decode("utf-8", "replace").strip()

    def commit(
        self, files: dict[str, str | bytes | None] | None = None, message: str = "change"
    ) -> str:
        """Writes or deletes files and commits; returns the hash."""
        for name, content in (files or {}).items():
            file = self.path / name
            if content is None:
                file.unlink()
                continue
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.encode() if isinstance(content, str) else content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "--allow-empty-message", "-m", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def new_origin(tmp_path: Path) -> Callable[[str], Origin]:
    def new(name: str) -> Origin:
        path = tmp_path / name
        path.mkdir(parents=True)
        origin = Origin(path)
        origin.git("init", "-q", "-b", "main")
        return origin

    return new


@pytest.fixture
def origin(new_origin: Callable[[str], Origin]) -> Origin:
    made = new_origin("origin")
    made.commit({"README": "hello\n"}, "first")
    return made


@dataclass
class GitServer:
    """`git http-backend` behind a small server that asks for a password when it has one."""

    port: int
    expected: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.port}/{name}"

    def require(self, username: str, password: str) -> None:
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        self.expected[:] = [f"Basic {pair}"]


@pytest.fixture
def git_server(tmp_path: Path) -> Iterator[GitServer]:
    class Requests(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _serve(self) -> None:
            facts.requests.append(self.path)
            if facts.expected and self.headers.get("Authorization") not in facts.expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            done = subprocess.run(
                ["git", "http-backend"],
                input=body,
                capture_output=True,
                check=False,
                env={
                    "PATH": os.environ["PATH"],
                    "GIT_PROJECT_ROOT": str(tmp_path),
                    "GIT_HTTP_EXPORT_ALL": "1",
                    "GIT_CONFIG_COUNT": "1",
                    "GIT_CONFIG_KEY_0": "safe.directory",
                    "GIT_CONFIG_VALUE_0": "*",
                    "PATH_INFO": path,
                    "QUERY_STRING": query,
                    "REQUEST_METHOD": self.command,
                    "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                    "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
                    "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                },
            )
            head, _, rest = done.stdout.partition(b"\r\n\r\n")
            headers = [line.partition(b": ") for line in head.split(b"\r\n")]
            status = next((v for k, _, v in headers if k == b"Status"), b"200")
            self.send_response(int(status.split()[0]))
            for key, _, value in headers:
                if key and key != b"Status":
                    self.send_header(key.decode(), value.decode())
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    facts = GitServer(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield facts
    server.shutdown()
    thread.join()
    server.server_close()
