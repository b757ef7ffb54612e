# SPDX-License-Identifier: Apache-2.0
"""The Git repository of the sample application."""

from pathlib import Path

from pipecd.config.application import DEFAULT_CONFIG_FILE
from pipecd.model.errors import UserMistake
from pipecd.program.run import run

REPOSITORY_ID = "sample"
BRANCH = "main"
APPLICATION = "hello"
SERVICE = "web"
_GIT_IDENTITY = {"user.name": "PipeCD quickstart", "user.email": "quickstart@localhost"}

_FILES = {
    "README.md": """# Sample repository

The directory `web/` is a small web service. A commit is deployed as a canary, which gets half of
the requests; when too many of them fail, PipeCD rolls back. Change the greeting in `web/server.py`
and commit.

The directory `hello/` is an application whose deployment is a script. Change `hello/greeting.txt`
and commit; PipeCD deploys the commit:

    echo "Good evening" > hello/greeting.txt
    git commit -am "Greet in the evening"
""",
    f"{APPLICATION}/{DEFAULT_CONFIG_FILE}": """apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: hello
  description: Prints greeting.txt
  labels:
    env: quickstart
  pipeline:
    stages:
      - name: SCRIPT_RUN
        desc: Print the greeting
        with:
          run: |
            echo "Deploying commit $SR_TRIGGERED_COMMIT_HASH of $SR_APPLICATION_NAME"
            cat greeting.txt
""",
    "hello/greeting.txt": "Hello, world!\n",
    f"{SERVICE}/{DEFAULT_CONFIG_FILE}": """apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  description: A web service whose new versions must prove themselves as a canary
  labels:
    env: quickstart
  plugins:
    process:
      input:
        command: python3
        args: [server.py]
        port: {service_port}
        healthCheck:
          path: /healthz
  pipeline:
    stages:
      - name: PROCESS_CANARY_ROLLOUT
      - name: PROCESS_TRAFFIC_ROUTING
        with:
          canary: 50
      - name: ANALYSIS
        with:
          duration: 10s
          https:
            - url: http://127.0.0.1:{status_port}/applications/web/canary?max-error-rate=0.05&min-requests=10
              expectedCode: 200
              interval: 1s
      - name: PROCESS_PRIMARY_ROLLOUT
      - name: PROCESS_TRAFFIC_ROUTING
        with:
          primary: 100
      - name: PROCESS_CANARY_CLEAN
""",
    f"{SERVICE}/server.py": '''"""Answers every request with a greeting and the commit that runs."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = os.environ["PIPECD_COMMIT"]


def greeting() -> str:
    return f"Hello from commit {COMMIT[:7]}!\\n"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        try:
            status, text = 200, "ok\\n" if self.path == "/healthz" else greeting()
        except Exception as e:
            print(f"GET {self.path} failed: {e!r}", flush=True)
            status, text = 500, "Something is broken.\\n"
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing: the router counts the requests."""


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
''',
}


async def create_repository(path: Path, *, service_port: int, status_port: int) -> None:
    """Creates the repository with its first commit, unless it exists."""
    if (path / ".git").exists():
        await _ensure_identity(path)
        return
    ports = {"{service_port}": str(service_port), "{status_port}": str(status_port)}
    for name, content in _FILES.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        for variable, port in ports.items():
            content = content.replace(variable, port)  # noqa: PLW2901
        file.write_text(content)
    await git(path, "init", "--quiet", f"--initial-branch={BRANCH}")
    # The event watcher pushes to this branch, and Git updates the files that are checked out.
    await git(path, "config", "receive.denyCurrentBranch", "updateInstead")
    await _ensure_identity(path)
    await git(path, "add", "--all")
    await git(path, "commit", "--quiet", "--message", "Say hello")


async def git(path: Path, *arguments: str) -> str:
    """Runs git in the repository, and returns what it prints."""
    done = await run(["git", *arguments], cwd=path)
    if done.code:
        raise UserMistake(
            f"cannot use the sample repository: git {arguments[0]} failed: {done.last_line}",
            hint=f"correct that, or remove {path} and retry",
        )
    return done.output.strip()


async def _ensure_identity(path: Path) -> None:
    """Lets users commit who have not told Git their name, as on a new machine."""
    for key, value in _GIT_IDENTITY.items():
        if (await run(["git", "config", key], cwd=path)).code:
            await git(path, "config", key, value)
