# SPDX-License-Identifier: Apache-2.0
"""Repositories over HTTP: `git http-backend` and Git LFS behind a password, if there is one."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from servers.web import Answer, Request, WebServer

LFS_TYPE = "application/vnd.git-lfs+json"


class GitHttp(WebServer):
    """Serves, to read and to push, the repositories below a directory under their paths in it."""

    def __init__(self, root: Path, certificate: tuple[str, str] | None = None) -> None:
        self.root = root
        # The requests that passed the authentication.
        self.requests: list[str] = []
        # Another code than 200 is the answer to everything, as in an outage.
        self.answers_with = 200
        self.large_files: dict[str, bytes] = {}
        self._authorization = ""
        super().__init__(certificate)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"

    def require(self, username: str, password: str) -> None:
        """Answers from now on only to this user."""
        pair = base64.b64encode(f"{username}:{password}".encode()).decode()
        self._authorization = f"Basic {pair}"

    def answer(self, request: Request) -> Answer:
        if self.answers_with != 200:
            return Answer(self.answers_with, b"the server is down")
        if self._authorization and request.authorization != self._authorization:
            return Answer(401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        self.requests.append(request.target)
        large = re.fullmatch(r"(/.+)/info/lfs/objects/(batch|[0-9a-f]{64})", request.path)
        if large is not None:
            return self._large_file(large[1], large[2], request)
        return self._backend(request)

    def _backend(self, request: Request) -> Answer:
        git = shutil.which("git") or "git"
        config = {"safe.directory": "*", "http.receivepack": "true"}
        settings = {f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(config)}
        settings |= {f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(config.values())}
        done = subprocess.run(
            [git, "http-backend"],
            input=request.body,
            capture_output=True,
            check=False,
            env={
                **settings,
                "PATH": os.environ["PATH"],
                "GIT_CONFIG_COUNT": str(len(config)),
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": request.path,
                "QUERY_STRING": request.query,
                "REQUEST_METHOD": request.method,
                "CONTENT_TYPE": request.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(request.body)),
                "GIT_PROTOCOL": request.headers.get("Git-Protocol") or "",
                "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding") or "",
            },
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        code = int(headers.pop("Status", "200" if headers else "500").split()[0])
        return Answer(code, content, headers)

    def _large_file(self, repository: str, name: str, request: Request) -> Answer:
        if name == "batch":
            batch = json.loads(request.body)
            place = f"{self.address}{repository}/info/lfs/objects"
            objects = [
                self._action(place, batch["operation"], each, request.authorization)
                for each in batch["objects"]
            ]
            content = json.dumps({"transfer": "basic", "objects": objects}).encode()
            return Answer(body=content, headers={"Content-Type": LFS_TYPE})
        if request.method == "PUT":
            right = hashlib.sha256(request.body).hexdigest() == name
            self.large_files |= {name: request.body} if right else {}
            return Answer(200 if right else 422)
        content = self.large_files.get(name)
        return Answer(404) if content is None else Answer(body=content)

    def _action(
        self, place: str, operation: str, object_: dict[str, Any], authorization: str
    ) -> dict[str, Any]:
        name, here = object_["oid"], object_["oid"] in self.large_files
        if operation == "download" and not here:
            return {**object_, "error": {"code": 404, "message": "no such object"}}
        if operation == "upload" and here:
            return object_
        header = {"Authorization": authorization} if authorization else {}
        return {**object_, "actions": {operation: {"href": f"{place}/{name}", "header": header}}}
