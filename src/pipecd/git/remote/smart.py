# SPDX-License-Identifier: Apache-2.0
"""Asks a Git server over HTTP for one ref, in the words of Git's own protocol.

The git program needs a new process and a new connection for each question; a connection that
stays open makes the same question cheap enough to be asked every second.
"""

import ssl
from collections.abc import Iterator

import httpx2

from pipecd.git.remote.address import http_host

_SERVICE = "git-upload-pack"
_SECONDS = 15.0
# Longer than the pause between two looks, so that a connection serves many of them.
_KEPT_SECONDS = 90.0


class Unsure(Exception):
    """The server did not answer in a way that is understood here."""


class RefsOverHttp:
    """The hash of one ref; the newer protocol tells only that, the older one every ref."""

    def __init__(
        self, url: str, ref: str, *, tls: ssl.SSLContext | None = None, authorization: str = ""
    ) -> None:
        self._base, self._ref = url.rstrip("/"), ref
        self._tls, self._authorization = tls, authorization
        self._client: httpx2.AsyncClient | None = None
        self._capabilities: tuple[bytes, ...] = ()

    async def look(self) -> str:
        """The hash that the ref names now."""
        try:
            if not self._capabilities:
                return await self._discover()
            return await self._ask()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OSError) as e:
            self._capabilities = ()
            raise Unsure(str(e)) from e
        except Unsure:
            self._capabilities = ()
            raise

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _discover(self) -> str:
        """The first question: which protocol the server speaks, and where it has moved to."""
        answer = await self._opened().get(
            f"{self._base}/info/refs", params={"service": _SERVICE}, follow_redirects=True
        )
        lines = _expect(answer, "advertisement")
        if any(line == b"version 2" for line in lines):
            self._follow(str(answer.url.copy_with(query=None)).removesuffix("/info/refs"))
            self._capabilities = tuple(lines)
            return await self._ask()
        return self._found(line.partition(b"\0")[0] for line in lines)

    def _follow(self, url: str) -> None:
        """A repository may have another name by now; another server must not hear the password."""
        if http_host(url) != http_host(self._base):
            raise Unsure(f"moved to {http_host(url)}")
        self._base = url

    async def _ask(self) -> str:
        command = [b"command=ls-refs"]
        command += [line for line in self._capabilities if line.startswith(b"object-format=")]
        body = b"".join(_packet(line + b"\n") for line in command)
        body += b"0001" + _packet(f"ref-prefix {self._ref}\n".encode()) + b"0000"
        answer = await self._opened().post(
            f"{self._base}/{_SERVICE}",
            content=body,
            headers={
                "Content-Type": f"application/x-{_SERVICE}-request",
                "Accept": f"application/x-{_SERVICE}-result",
            },
        )
        return self._found(_expect(answer, "result"))

    def _found(self, lines: Iterator[bytes] | list[bytes]) -> str:
        wanted = self._ref.encode()
        for line in lines:
            hash_, _, rest = line.partition(b" ")
            if rest == wanted and hash_:
                return hash_.decode("ascii")
        raise Unsure("the branch was not told")

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            headers = {"Git-Protocol": "version=2", "User-Agent": "git/2 (pipecd)"}
            if self._authorization:
                headers["Authorization"] = self._authorization
            self._client = httpx2.AsyncClient(
                headers=headers,
                timeout=_SECONDS,
                verify=self._tls or True,
                limits=httpx2.Limits(max_connections=1, keepalive_expiry=_KEPT_SECONDS),
            )
        return self._client


def _expect(answer: httpx2.Response, kind: str) -> list[bytes]:
    told = answer.headers.get("content-type", "")
    if answer.status_code != 200 or told != f"application/x-{_SERVICE}-{kind}":
        raise Unsure(f"status {answer.status_code}, {told or 'no content type'}")
    return [line for line in _lines(answer.content) if not line.startswith(b"# service=")]


def _packet(data: bytes) -> bytes:
    return f"{len(data) + 4:04x}".encode() + data


def _lines(content: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(content):
        length = int(content[at : at + 4], 16)
        # Lengths below four are marks between the parts of an answer.
        if length >= 4:
            yield content[at + 4 : at + length].removesuffix(b"\n")
        at += max(length, 4)
