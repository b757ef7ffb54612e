# SPDX-License-Identifier: Apache-2.0
"""A small client of OCI registries: pulls and pushes programs and trusts nothing it gets."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO

import httpx2

from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable
from pipecd.wire.oci import manifest
from pipecd.wire.oci.login import Challenge, Login, parse_challenge
from pipecd.wire.oci.manifest import Descriptor, Document, Platform, digest_of
from pipecd.wire.oci.reference import DIGEST, Reference

_LARGEST_MANIFEST = 4 << 20
_CHUNK = 1 << 20
_TIMEOUT = httpx2.Timeout(60.0, connect=15.0)
_BINARY: Mapping[str, str] = {"content-type": "application/octet-stream"}


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
        """Opens the repository; a registry on this machine may do without TLS."""
        async with httpx2.AsyncClient(timeout=_TIMEOUT, follow_redirects=True) as client:
            is_plain = insecure or (
                reference.is_on_loopback and not await _speaks_tls(client, reference.host)
            )
            scheme = "http" if is_plain else "https"
            client.base_url = f"{scheme}://{reference.host}/v2/{reference.repository}/"
            yield Registry(client, reference, login=login or Login())

    async def pull(self, platform: Platform, *, layer_type: str, into: IO[bytes]) -> None:
        """Writes the layers of one type, for one platform, one behind the other."""
        document = await self._document(self._reference.wanted)
        if document.is_index:
            document = await self._document(document.for_platform(platform).digest)
        for layer in document.layers(layer_type):
            await self._pull_blob(layer, into)

    async def push(
        self, files: Sequence[tuple[Platform, Path]], *, layer_type: str, artifact_type: str
    ) -> str:
        """Pushes one program for each platform under the tag; returns the digest of all."""
        await self._push_blob(manifest.EMPTY_CONFIG)
        manifests: list[tuple[Platform, Descriptor]] = []
        for platform, path in files:
            content = await asyncio.to_thread(path.read_bytes)
            layer = Descriptor(layer_type, await self._push_blob(content), len(content))
            text = manifest.image_manifest(layer, artifact_type=artifact_type)
            described = Descriptor(manifest.MANIFEST, digest_of(text), len(text))
            await self._put_manifest(described.digest, text, described.media_type)
            manifests.append((platform, described))
        index = manifest.image_index(manifests)
        await self._put_manifest(self._reference.tag, index, manifest.INDEX)
        return digest_of(index)

    async def _document(self, wanted: str) -> Document:
        headers = {"accept": ", ".join(manifest.KNOWN)}
        async with self._asked("GET", f"manifests/{wanted}", headers=headers) as answer:
            content = await _content(answer, at_most=_LARGEST_MANIFEST)
            kind = answer.headers.get("content-type", "")
        if DIGEST.fullmatch(wanted) and digest_of(content) != wanted:
            raise PipecdError(f"the manifest of {self._reference} has not the digest {wanted}")
        return Document(content, kind, source=str(self._reference))

    async def _pull_blob(self, layer: Descriptor, into: IO[bytes]) -> None:
        if not DIGEST.fullmatch(layer.digest):
            raise PipecdError(f"{self._reference} uses the digest {layer.digest}, not a sha256")
        checked, size = hashlib.sha256(), 0
        async with self._asked("GET", f"blobs/{layer.digest}") as answer:
            async for chunk in answer.aiter_bytes(_CHUNK):
                size += len(chunk)
                if size > layer.size:
                    break
                checked.update(chunk)
                await asyncio.to_thread(into.write, chunk)
        if f"sha256:{checked.hexdigest()}" != layer.digest:
            raise Unavailable(f"{self._reference} sent something without the digest {layer.digest}")

    async def _push_blob(self, content: bytes) -> str:
        digest = digest_of(content)
        async with self._asked("HEAD", f"blobs/{digest}", may_lack=True) as there:
            if there.is_success:
                return digest
        async with self._asked("POST", "blobs/uploads/", content=b"") as begun:
            place = begun.url.join(begun.headers.get("location", ""))
        place = place.copy_merge_params({"digest": digest})
        async with self._asked("PUT", str(place), content=content, headers=_BINARY):
            return digest

    async def _put_manifest(self, name: str, text: bytes, media_type: str) -> None:
        headers = {"content-type": media_type}
        async with self._asked("PUT", f"manifests/{name}", content=text, headers=headers):
            pass

    @asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        may_lack: bool = False,
    ) -> AsyncGenerator[httpx2.Response, None]:
        """The answer of the registry, which may first want to know who asks."""
        try:
            answer = await self._send(method, path, content, headers)
            if answer.status_code == HTTPStatus.UNAUTHORIZED and not self._authorization:
                await answer.aclose()
                challenge = parse_challenge(answer.headers.get("www-authenticate", ""))
                self._authorization = await self._authorize(challenge)
                answer = await self._send(method, path, content, headers)
            try:
                if not (may_lack and answer.status_code == HTTPStatus.NOT_FOUND):
                    self._refuse(answer)
                yield answer
            finally:
                await answer.aclose()
        except (httpx2.HTTPError, httpx2.InvalidURL) as e:
            why = str(e) or type(e).__name__
            raise Unavailable(f"the registry {self._reference.host} did not answer: {why}") from e

    async def _send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] | None
    ) -> httpx2.Response:
        request = self._client.build_request(method, path, content=content, headers=headers)
        if self._authorization:
            request.headers["authorization"] = self._authorization
        return await self._client.send(request, stream=True)

    async def _authorize(self, challenge: Challenge) -> str:
        """A token from where the registry says, for what it says."""
        if challenge.scheme == "basic" and self._login.username:
            return self._login.basic
        realm = challenge.parameters.get("realm", "")
        is_safe = realm.startswith(f"{self._client.base_url.scheme}://")
        if challenge.scheme != "bearer" or not (is_safe or realm.startswith("https://")):
            raise self._denied("it wants a login")
        parameters = {k: v for k, v in challenge.parameters.items() if k in ("service", "scope")}
        headers = {"authorization": self._login.basic} if self._login.username else {}
        answer = await self._client.get(realm, params=parameters, headers=headers)
        try:
            told = answer.raise_for_status().json()
            token = str(told.get("token") or told["access_token"])
        except (httpx2.HTTPStatusError, ValueError, KeyError, AttributeError) as e:
            raise self._denied(f"{realm} gave no token") from e
        return f"Bearer {token}"

    def _refuse(self, answer: httpx2.Response) -> None:
        code = answer.status_code
        if answer.is_success:
            return
        if code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise self._denied(f"it answered {code}")
        if code == HTTPStatus.NOT_FOUND:
            raise NotFound(
                f"the registry has no {self._reference}", hint="check its name and its tag"
            )
        if code == HTTPStatus.TOO_MANY_REQUESTS or answer.is_server_error:
            raise Unavailable(f"the registry {self._reference.host} answered {code}")
        raise PipecdError(f"the registry {self._reference.host} answered {code}")

    def _denied(self, why: str) -> Denied:
        return Denied(
            f"the registry {self._reference.host} does not give {self._reference}: {why}",
            hint=f"run docker login {self._reference.host} as the user of this process",
        )


async def _content(answer: httpx2.Response, *, at_most: int) -> bytes:
    content = bytearray()
    async for chunk in answer.aiter_bytes(_CHUNK):
        content += chunk
        if len(content) > at_most:
            raise PipecdError(f"{answer.url.host} answered a manifest of more than {at_most} bytes")
    return bytes(content)


async def _speaks_tls(client: httpx2.AsyncClient, host: str) -> bool:
    try:
        await client.get(f"https://{host}/v2/")
    except httpx2.HTTPError:
        return False
    return True
