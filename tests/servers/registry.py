# SPDX-License-Identifier: Apache-2.0
"""An OCI registry in memory, with tokens like those of public ones; it also serves plain files."""

import base64
import hashlib
import re
from dataclasses import replace
from uuid import uuid4

from servers.web import Answer, Request, WebServer, in_json

TOKEN = "let-me-in"


class OciRegistry(WebServer):
    """Keeps blobs by digest, manifests by digest and tag, and files by name."""

    def __init__(self, certificate: tuple[str, str] | None = None) -> None:
        self.blobs: dict[str, bytes] = {}
        self.manifests: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.files: dict[str, bytes] = {}
        # The files whose downloads are cut in the middle.
        self.cut: set[str] = set()
        self.redirects: dict[str, str] = {}
        # The requests in order.
        self.requests: list[str] = []
        # So many requests are answered with 503 first.
        self.outages = 0
        self.wants_token = False
        # The `user:password` that gets a token; every caller gets one when it is empty.
        self.login = ""
        self.scopes: list[str] = []
        super().__init__(certificate)

    def answer(self, request: Request) -> Answer:
        path = request.path
        self.requests.append(f"{request.method} {path}")
        if self.outages:
            self.outages -= 1
            return Answer(503)
        if path == "/token":
            return self._token(request)
        if path in self.redirects:
            return Answer(307, headers={"Location": self.redirects[path]})
        if path.startswith("/files/"):
            name = path.removeprefix("/files/")
            return replace(_found(self.files.get(name)), is_cut=name in self.cut)
        if self.wants_token and request.authorization != f"Bearer {TOKEN}":
            scope = "repository:team/plugin:pull,push"
            how = f'Bearer realm="{self.address}/token",service="here",scope="{scope}"'
            return Answer(401, headers={"WWW-Authenticate": how})
        return self._registry(request)

    def _token(self, request: Request) -> Answer:
        self.scopes += request.fields.get("scope", [])
        expected = f"Basic {base64.b64encode(self.login.encode()).decode()}"
        if self.login and request.authorization != expected:
            return Answer(401)
        return in_json({"token": TOKEN})

    def _registry(self, request: Request) -> Answer:
        if request.path == "/v2/":
            return Answer()
        found = re.fullmatch(r"/v2/(.+)/(blobs|manifests)/(.+|uploads/)", request.path)
        if found is None:
            return Answer(404)
        repository, kind, name = found.groups()
        if kind == "manifests":
            return self._manifest(repository, name, request)
        return self._blob(repository, name, request)

    def _manifest(self, repository: str, name: str, request: Request) -> Answer:
        if request.method == "PUT":
            kept, digest = (request.headers["Content-Type"], request.body), digest_of(request.body)
            self.manifests[(repository, name)] = self.manifests[(repository, digest)] = kept
            return Answer(201, headers={"Docker-Content-Digest": digest})
        media_type, content = self.manifests.get((repository, name), ("", b""))
        if not content:
            return Answer(404)
        about = {"Content-Type": media_type, "Docker-Content-Digest": digest_of(content)}
        return Answer(200, content, about)

    def _blob(self, repository: str, name: str, request: Request) -> Answer:
        if request.method == "POST":
            place = f"/v2/{repository}/blobs/uploads/{uuid4()}?state=x"
            return Answer(202, headers={"Location": place})
        if request.method == "PUT":
            (digest,) = request.fields["digest"]
            if digest_of(request.body) != digest:
                return Answer(400)
            self.blobs[digest] = request.body
            return Answer(201)
        return _found(self.blobs.get(name))


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _found(content: bytes | None) -> Answer:
    return Answer(404) if content is None else Answer(body=content)
