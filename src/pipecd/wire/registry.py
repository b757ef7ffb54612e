# SPDX-License-Identifier: Apache-2.0
"""A client of OCI registries that pulls and pushes programs and verifies every digest."""

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any, cast

import httpx2

from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable, UserMistake
from pipecd.wire import oci
from pipecd.wire.oci import DIGEST, Descriptor, Document, Platform, Reference, digest_of

_MANIFEST_LIMIT = 4 << 20
# The limit of all layers of a program together.
_PROGRAM_LIMIT = 2 << 30
_CHUNK = 1 << 20
_TIMEOUT = httpx2.Timeout(60.0, connect=15.0)
_BINARY_HEADERS: Mapping[str, str] = {"content-type": "application/octet-stream"}
_PARAMETER = re.compile(r'\b(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Login:
    """A username and a password or token; both are empty for an anonymous client."""

    username: str = ""
    password: str = ""

    @property
    def basic(self) -> str:
        """The value of the Authorization header."""
        return f"Basic {base64.b64encode(f'{self.username}:{self.password}'.encode()).decode()}"


@dataclass(frozen=True)
class Challenge:
    """The authentication that a registry requires."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenge(header: str) -> Challenge:
    """Parses the WWW-Authenticate header."""
    scheme, _, rest = header.partition(" ")
    return Challenge(scheme.lower(), dict(_PARAMETER.findall(rest)))


def docker_login(host: str) -> Login:
    """Reads the credentials of a registry from Docker's configuration file."""
    directory = os.environ.get("DOCKER_CONFIG")
    path = Path(directory) if directory else Path.home() / ".docker"
    try:
        return login_of((path / "config.json").read_bytes(), host)
    except FileNotFoundError:
        return Login()
    except (OSError, ValueError) as e:
        raise UserMistake(
            f"cannot read registry credentials from {path / 'config.json'}: {e}",
            hint="run docker login again, or set DOCKER_CONFIG to another directory",
        ) from e


def login_of(content: bytes, host: str) -> Login:
    """Returns a registry's entry in `auths`; credential helpers are not supported."""
    try:
        parsed: Any = json.loads(content)
    except RecursionError as e:
        raise ValueError("it is nested too deeply") from e
    logins: Any = cast("dict[str, Any]", parsed).get("auths") if isinstance(parsed, dict) else None
    if not isinstance(logins, dict):
        return Login()
    for address, value in cast("dict[str, Any]", logins).items():
        name = address.partition("://")[2] or address
        if name.partition("/")[0] != host or not isinstance(value, dict):
            continue
        entry = cast("dict[str, Any]", value)
        if "username" in entry:
            return Login(str(entry["username"]), str(entry.get("password", "")))
        try:
            text = base64.b64decode(str(entry.get("auth", "")), validate=True).decode()
        except ValueError as e:
            raise ValueError(f"the entry of {address} is not base64: {e}") from e
        username, _, password = text.partition(":")
        return Login(username, password.strip("\0"))
    return Login()


class Registry:
    """One repository of one registry."""

    def __init__(self, client: httpx2.AsyncClient, reference: Reference, *, login: Login) -> None:
        self._client, self._reference, self._login = client, reference, login
        self._authorization = ""

    @staticmethod
    @asynccontextmanager
    async def open(
        reference: Reference, *, login: Login | None = None, insecure: bool = False
    ) -> AsyncGenerator["Registry", None]:
        """Opens the repository; a registry on loopback may use plain HTTP."""
        async with httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=True) as client:
            scheme = "http" if insecure else "https"
            if reference.is_on_loopback and not insecure:
                try:
                    await client.get(f"https://{reference.host}/v2/")
                except httpx2.HTTPError:
                    scheme = "http"
            client.base_url = f"{scheme}://{reference.host}/v2/{reference.repository}/"
            yield Registry(client, reference, login=login or Login())

    async def pull(self, platform: Platform, *, layer_type: str, into: IO[bytes]) -> None:
        """Writes the layers of one type, for one platform, one after the other."""
        document = await self._manifest(self._reference.identifier)
        if document.is_index:
            document = await self._manifest(document.for_platform(platform).digest)
        layers = document.layers(layer_type)
        if sum(max(layer.size, 0) for layer in layers) > _PROGRAM_LIMIT:
            raise PipecdError(f"{self._reference} is larger than {_PROGRAM_LIMIT >> 20} MiB")
        for layer in layers:
            if not DIGEST.fullmatch(layer.digest):
                raise PipecdError(f"{self._reference} uses the digest {layer.digest}, not a sha256")
            checksum, size = hashlib.sha256(), 0
            async with self._request("GET", f"blobs/{layer.digest}") as response:
                async for chunk in response.aiter_bytes(_CHUNK):
                    size += len(chunk)
                    if size > layer.size:
                        break
                    checksum.update(chunk)
                    await asyncio.to_thread(into.write, chunk)
            if f"sha256:{checksum.hexdigest()}" != layer.digest:
                raise Unavailable(
                    f"{self._reference} sent a blob that does not match its digest {layer.digest}"
                )

    async def push(
        self, files: Sequence[tuple[Platform, Path]], *, layer_type: str, artifact_type: str
    ) -> str:
        """Pushes one program for each platform under the tag; returns the digest of the index."""
        await self._push_blob(oci.EMPTY_CONFIG)
        manifests: list[tuple[Platform, Descriptor]] = []
        for platform, path in files:
            content = await asyncio.to_thread(path.read_bytes)
            layer = Descriptor(layer_type, await self._push_blob(content), len(content))
            text = oci.image_manifest(layer, artifact_type=artifact_type)
            manifest = Descriptor(oci.MANIFEST, digest_of(text), len(text))
            await self._put_manifest(manifest.digest, text, manifest.media_type)
            manifests.append((platform, manifest))
        index = oci.image_index(manifests)
        await self._put_manifest(self._reference.tag, index, oci.INDEX)
        return digest_of(index)

    async def _manifest(self, identifier: str) -> Document:
        headers = {"accept": ", ".join(oci.MEDIA_TYPES)}
        content = bytearray()
        async with self._request("GET", f"manifests/{identifier}", headers=headers) as response:
            async for chunk in response.aiter_bytes(_CHUNK):
                content += chunk
                if len(content) > _MANIFEST_LIMIT:
                    raise PipecdError(
                        f"{self._reference} has a manifest of more than {_MANIFEST_LIMIT} bytes"
                    )
            media_type = response.headers.get("content-type", "")
        if DIGEST.fullmatch(identifier) and digest_of(bytes(content)) != identifier:
            raise PipecdError(
                f"the manifest of {self._reference} does not match its digest {identifier}"
            )
        return Document(bytes(content), media_type, source=str(self._reference))

    async def _push_blob(self, content: bytes) -> str:
        digest = digest_of(content)
        async with self._request("HEAD", f"blobs/{digest}", may_be_missing=True) as existing:
            if existing.is_success:
                return digest
        async with self._request("POST", "blobs/uploads/", content=b"") as upload:
            location = upload.url.join(upload.headers.get("location", ""))
        location = location.copy_merge_params({"digest": digest})
        async with self._request("PUT", str(location), content=content, headers=_BINARY_HEADERS):
            return digest

    async def _put_manifest(self, name: str, text: bytes, media_type: str) -> None:
        headers = {"content-type": media_type}
        async with self._request("PUT", f"manifests/{name}", content=text, headers=headers):
            pass

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        may_be_missing: bool = False,
    ) -> AsyncGenerator[httpx2.Response, None]:
        """Sends a request, and sends it again with a token if the registry requires one."""
        try:
            response = await self._send(method, path, content, headers)
            if response.status_code == HTTPStatus.UNAUTHORIZED and not self._authorization:
                await response.aclose()
                challenge = parse_challenge(response.headers.get("www-authenticate", ""))
                self._authorization = await self._authorize(challenge)
                response = await self._send(method, path, content, headers)
            try:
                if not (may_be_missing and response.status_code == HTTPStatus.NOT_FOUND):
                    self._check_status(response)
                yield response
            finally:
                await response.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            error = str(e) or type(e).__name__
            raise Unavailable(f"the registry {self._reference.host} is unavailable: {error}") from e

    async def _send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] | None
    ) -> httpx2.Response:
        request = self._client.build_request(method, path, content=content, headers=headers)
        if self._authorization:
            request.headers["authorization"] = self._authorization
        return await self._client.send(request, stream=True)

    async def _authorize(self, challenge: Challenge) -> str:
        """Returns basic credentials, or a token of the authorization server of the challenge."""
        if challenge.scheme == "basic" and self._login.username:
            return self._login.basic
        realm = challenge.parameters.get("realm", "")
        is_safe = realm.startswith(f"{self._client.base_url.scheme}://")
        if challenge.scheme != "bearer" or not (is_safe or realm.startswith("https://")):
            raise self._denied("it requires a login")
        parameters = {k: v for k, v in challenge.parameters.items() if k in ("service", "scope")}
        headers = {"authorization": self._login.basic} if self._login.username else {}
        response = await self._client.get(realm, params=parameters, headers=headers)
        try:
            issued = response.raise_for_status().json()
            token = str(issued.get("token") or issued["access_token"])
        except (httpx2.HTTPStatusError, ValueError, KeyError, AttributeError) as e:
            raise self._denied(f"{realm} issued no token") from e
        return f"Bearer {token}"

    def _check_status(self, response: httpx2.Response) -> None:
        code = response.status_code
        if response.is_success:
            return
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise self._denied(f"it answered {code}")
        if code == HTTPStatus.NOT_FOUND:
            raise NotFound(
                f"the registry has no {self._reference}", hint="check its name and its tag"
            )
        if code == HTTPStatus.TOO_MANY_REQUESTS or response.is_server_error:
            raise Unavailable(f"the registry {self._reference.host} answered {code}")
        raise PipecdError(f"the registry {self._reference.host} answered {code}")

    def _denied(self, reason: str) -> Denied:
        return Denied(
            f"the registry {self._reference.host} denies access to {self._reference}: {reason}",
            hint=f"run docker login {self._reference.host} as the user of this process",
        )
