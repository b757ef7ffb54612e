# SPDX-License-Identifier: Apache-2.0
"""Polls a branch of a remote repository cheaply: has it moved since the last poll?"""

import asyncio
import os
import random
import ssl
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import httpx2

from pipecd.git.credentials import GitEnvironment
from pipecd.git.errors import explain
from pipecd.git.remote import git_directory, http_origin, is_http, local_path, parse_remote
from pipecd.git.validate import validate_branch
from pipecd.program.run import capture

LOCAL_POLL_INTERVAL = 0.25
HTTP_POLL_INTERVAL = 1.0
LS_REMOTE_POLL_INTERVAL = 3.0

_LS_REMOTE_TIMEOUT = 30.0
_HTTP_TIMEOUT = 15.0
# Longer than the interval between two polls, so that a connection serves many of them.
_KEEPALIVE_SECONDS = 90.0
# After so many failures of the HTTP client in a row only ls-remote is used, for so many polls.
_MAX_HTTP_FAILURES, _FALLBACK_POLLS = 3, 100

_SERVICE = "git-upload-pack"


class BranchPoller(Protocol):
    """Polls one branch of a remote."""

    @property
    def interval(self) -> float:
        """The seconds to wait between two polls."""
        ...

    async def poll(self) -> Hashable:
        """Returns a value that changes whenever the branch moves."""
        ...

    async def close(self) -> None:
        """Closes the connection that stays open between two polls."""
        ...


def branch_poller(
    remote: str, branch: str, *, repository: str, environment: GitEnvironment
) -> BranchPoller:
    """Returns the cheapest poller for a branch of this remote."""
    ref = validate_branch(branch)
    if (path := local_path(remote)) is not None:
        return LocalPoller(path, ref)
    ls_remote = LsRemotePoller(remote, ref, repository=repository, environment=environment)
    return HttpPoller(ls_remote, remote, environment) if is_http(remote) else ls_remote


class LocalPoller:
    """Polls a local repository: the modification times of its ref files show a push."""

    interval = LOCAL_POLL_INTERVAL

    def __init__(self, path: Path, ref: str) -> None:
        self._path, self._files = path, ("HEAD", "packed-refs", ref, "reftable/tables.list")

    async def poll(self) -> Hashable:
        # In a thread, because a file system that hangs must not block the rest of piped.
        return await asyncio.to_thread(self._stat_files)

    async def close(self) -> None:
        pass

    def _stat_files(self) -> Hashable:
        directory = git_directory(self._path)
        stats: list[tuple[int, int, int] | None] = []
        for name in self._files:
            try:
                stat = os.stat(directory / name)  # noqa: PTH116  several times a second
            except OSError:
                stats.append(None)
            else:
                stats.append((stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(stats)


class LsRemotePoller:
    """Polls a Git server with `git ls-remote`."""

    def __init__(
        self, remote: str, ref: str, *, repository: str, environment: GitEnvironment
    ) -> None:
        self._remote, self.ref = remote, ref
        self._repository, self._environment = repository, environment

    @property
    def interval(self) -> float:
        return _jittered(LS_REMOTE_POLL_INTERVAL)

    async def poll(self) -> str:
        done = await capture(
            ["git", "ls-remote", "--refs", "--quiet", "origin", self.ref],
            cwd=Path("/"),
            env=self._environment.variables(self._remote),
            at_most=_LS_REMOTE_TIMEOUT,
        )
        stderr = done.stderr.decode("utf-8", "replace")
        if done.code == 0:
            for line in done.stdout.decode("utf-8", "replace").splitlines():
                hash_, _, ref = line.partition("\t")
                if ref == self.ref:
                    return hash_
            stderr = f"fatal: couldn't find remote ref {self.ref}"
        raise explain(stderr, repository=self._repository, remote=self._remote)

    async def close(self) -> None:
        pass


class HttpPoller:
    """Polls a Git server over an HTTP connection that stays open.

    Whatever the client does not understand is left to `git ls-remote`, which supports more
    proxies, certificates and credentials, and whose error message is the one to report.
    """

    def __init__(self, ls_remote: LsRemotePoller, remote: str, environment: GitEnvironment) -> None:
        self._ls_remote = ls_remote
        url = parse_remote(remote).url
        self._client = SmartHttpClient(
            url,
            ls_remote.ref,
            tls=environment.tls if url.startswith("https") else None,
            authorization=environment.authorization(remote),
        )
        self._failures = 0

    @property
    def interval(self) -> float:
        if self._is_fallback:
            return self._ls_remote.interval
        return _jittered(HTTP_POLL_INTERVAL)

    async def poll(self) -> str:
        if self._is_fallback:
            # Wraps around to zero, so that HTTP is tried again once in a while.
            self._failures = (self._failures + 1) % _FALLBACK_POLLS
            return await self._ls_remote.poll()
        try:
            hash_ = await self._client.ref_hash()
        except UnexpectedResponse:
            hash_ = await self._ls_remote.poll()
            self._failures += 1
            if self._is_fallback:
                await self._client.close()
        else:
            self._failures = 0
        return hash_

    async def close(self) -> None:
        await self._client.close()

    @property
    def _is_fallback(self) -> bool:
        return self._failures >= _MAX_HTTP_FAILURES


class UnexpectedResponse(Exception):
    """The server did not answer with what the smart HTTP protocol defines."""


class SmartHttpClient:
    """Requests the hash of one ref from a server, by Git's smart HTTP protocol.

    `git ls-remote` needs a process and a connection for each poll; a connection that stays open
    makes polling every second cheap. Protocol 2 returns only the ref, protocol 0 all of them.
    """

    def __init__(
        self, url: str, ref: str, *, tls: ssl.SSLContext | None = None, authorization: str = ""
    ) -> None:
        self._base, self._ref = url.rstrip("/"), ref
        self._tls, self._authorization = tls, authorization
        self._client: httpx2.AsyncClient | None = None
        self._capabilities: tuple[bytes, ...] = ()

    async def ref_hash(self) -> str:
        """Returns the hash that the ref points to now."""
        try:
            if not self._capabilities:
                return await self._discover()
            return await self._ls_refs()
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, OSError) as e:
            self._capabilities = ()
            raise UnexpectedResponse(str(e)) from e
        except UnexpectedResponse:
            self._capabilities = ()
            raise

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _discover(self) -> str:
        """Sends the first request, which finds out the protocol version and follows redirects."""
        response = await self._connection().get(
            f"{self._base}/info/refs", params={"service": _SERVICE}, follow_redirects=True
        )
        lines = _parse_response(response, "advertisement")
        if any(line == b"version 2" for line in lines):
            url = str(response.url.copy_with(query=None)).removesuffix("/info/refs")
            # The repository may have been renamed, but another server must not get the password.
            if http_origin(url) != http_origin(self._base):
                raise UnexpectedResponse(f"redirected to {http_origin(url)}")
            self._base, self._capabilities = url, tuple(lines)
            return await self._ls_refs()
        return self._select(line.partition(b"\0")[0] for line in lines)

    async def _ls_refs(self) -> str:
        command = [b"command=ls-refs"]
        command += [line for line in self._capabilities if line.startswith(b"object-format=")]
        body = b"".join(_pkt_line(line + b"\n") for line in command)
        body += b"0001" + _pkt_line(f"ref-prefix {self._ref}\n".encode()) + b"0000"
        response = await self._connection().post(
            f"{self._base}/{_SERVICE}",
            content=body,
            headers={
                "Content-Type": f"application/x-{_SERVICE}-request",
                "Accept": f"application/x-{_SERVICE}-result",
            },
        )
        return self._select(_parse_response(response, "result"))

    def _select(self, lines: Iterable[bytes]) -> str:
        ref = self._ref.encode()
        for line in lines:
            hash_, _, name = line.partition(b" ")
            if name == ref and hash_:
                return hash_.decode("ascii")
        raise UnexpectedResponse("the branch is not in the response")

    def _connection(self) -> httpx2.AsyncClient:
        if self._client is None:
            headers = {"Git-Protocol": "version=2", "User-Agent": "git/2 (pipecd)"}
            if self._authorization:
                headers["Authorization"] = self._authorization
            self._client = httpx2.AsyncClient(
                headers=headers,
                timeout=_HTTP_TIMEOUT,
                verify=self._tls or True,
                limits=httpx2.Limits(max_connections=1, keepalive_expiry=_KEEPALIVE_SECONDS),
            )
        return self._client


def _parse_response(response: httpx2.Response, kind: str) -> list[bytes]:
    content_type = response.headers.get("content-type", "")
    if response.status_code != 200 or content_type != f"application/x-{_SERVICE}-{kind}":
        raise UnexpectedResponse(
            f"status {response.status_code}, {content_type or 'no content type'}"
        )
    return [line for line in _pkt_lines(response.content) if not line.startswith(b"# service=")]


def _pkt_line(data: bytes) -> bytes:
    return f"{len(data) + 4:04x}".encode() + data


def _pkt_lines(content: bytes) -> Iterator[bytes]:
    at = 0
    while at + 4 <= len(content):
        length = int(content[at : at + 4], 16)
        # Lengths below four are delimiters between the parts of a response.
        if length >= 4:
            yield content[at + 4 : at + length].removesuffix(b"\n")
        at += max(length, 4)


def _jittered(seconds: float) -> float:
    # Many repositories on one server are not polled at the same moment.
    return seconds * random.uniform(0.9, 1.1)  # noqa: S311
