# SPDX-License-Identifier: Apache-2.0
"""Downloads programs once, verifies them and caches them by URL."""

import asyncio
import hashlib
import os
import platform
import re
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import httpx2
import structlog

from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.wire.digests import KnownDigests, file_digest
from pipecd.wire.oci import DIGEST, Platform, parse_reference
from pipecd.wire.registry import Registry, docker_login

logger = structlog.get_logger()

_ATTEMPTS, _RETRY_SECONDS = 3, 1.0
_TIMEOUT = 600.0
_SIZE_LIMIT = 2 << 30
_UNTRUSTED = "CERTIFICATE_VERIFY_FAILED"
_CHUNK, _CHECKSUM_LIMIT = 1 << 20, 4096
_SHA256 = re.compile(r"\s*([0-9A-Fa-f]{64})(?:\s|$)")
_OCI_DIGEST = re.compile(rf"oci://[^@]+@{DIGEST.pattern}\Z")
# Partial downloads older than so many seconds are deleted.
_PARTIAL, _STALE = ".partial-", 3600.0
# The machine number of ELF files by Go's name of the architecture.
_ELF_MACHINES = {"amd64": 62, "arm64": 183}
_OTHER_FILES = {
    b"\x1f\x8b": "an archive",
    b"PK": "an archive",
    b"\xfd7zXZ": "an archive",
    b"<": "a web page",
}


@dataclass(frozen=True)
class Download:
    """A program to download, and the settings that errors name.

    From a registry the layers of `layer_type` are pulled. The checksum is configured or published
    at `checksum_url`; without either the digest of the first download must not change.
    """

    kind: str
    name: str
    url: str
    checksum: str = ""
    checksum_url: str = ""
    layer_type: str = ""
    url_setting: str = ""
    checksum_setting: str = ""

    @property
    def label(self) -> str:
        """The name in errors and logs, such as `plugin web`."""
        return f"{self.kind} {self.name}"

    @property
    def is_pinned(self) -> bool:
        """Whether the configuration says which content is expected."""
        return bool(self.checksum) or bool(_OCI_DIGEST.match(self.url))


class ProgramStore:
    """The directory of downloaded programs, one file for each URL.

    `digests` is the file with the digests of downloads that the configuration does not pin; with
    `require_checksum` such downloads are refused.
    """

    def __init__(
        self,
        directory: Path,
        *,
        redownload: bool = False,
        digests: Path | None = None,
        require_checksum: bool = False,
    ) -> None:
        self._directory, self._redownload = directory, redownload
        self._digests = KnownDigests(digests or directory / "digests.json")
        self._require_checksum = require_checksum

    async def program(self, download: Download) -> Path:
        """Returns the path of a program and downloads it first if it is not cached."""
        parts = urlsplit(download.url)
        if parts.scheme == "file":
            path = Path(unquote(parts.path))
            await asyncio.to_thread(_check_local, download, path)
            await asyncio.to_thread(_check_content, download, path, f"{download.label}: ")
        else:
            # The name for people, and a hash of the URL so that another version is another file.
            name = re.sub(r"[^A-Za-z0-9._-]", "_", download.name).lstrip(".")
            url_hash = hashlib.sha256(download.url.encode()).hexdigest()[:16]
            path = self._directory / f"{name}-{url_hash}"
            await self._check_pinned(download)
            if self._redownload or not await asyncio.to_thread(self._is_cached, download, path):
                await self._download_with_retries(download, path)
            await asyncio.to_thread(self._remember, download, path)
        return path

    async def _download_with_retries(self, download: Download, path: Path) -> None:
        url = _without_secrets(download.url)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with asyncio.timeout(_TIMEOUT):
                    await self._download(download, path)
            except (Unavailable, TimeoutError) as e:
                error = str(e) or f"it took longer than {_TIMEOUT:g}s"
                logger.warning(
                    "download failed", program=download.label, attempt=attempt, error=error
                )
                if attempt == _ATTEMPTS:
                    is_untrusted = _UNTRUSTED in error
                    raise Unavailable(
                        f"{download.label} cannot be downloaded from {url}: {error}",
                        hint="name the file of its authority in SSL_CERT_FILE" * is_untrusted,
                    ) from e
                await asyncio.sleep(_RETRY_SECONDS * attempt)
            except PipecdError as e:
                raise UserMistake(f"{download.label}: {e.message}", hint=e.hint) from e
            else:
                logger.info("program downloaded", program=download.label, url=url)
                return

    async def _download(self, download: Download, path: Path) -> None:
        published = "" if download.checksum else await _published_checksum(download)
        file = await asyncio.to_thread(self._create_partial_file)
        try:
            await _write_content(download, file, has_checksum=bool(download.checksum or published))
            await asyncio.to_thread(self._install, download, published, file, path)
        finally:
            file.close()
            await asyncio.to_thread(Path(file.name).unlink, missing_ok=True)

    async def _check_pinned(self, download: Download) -> None:
        """Refuses a download that nothing proves, or warns of it."""
        if download.is_pinned:
            return
        url = _without_secrets(download.url)
        if self._require_checksum:
            raise UserMistake(
                f"{download.label} has no checksum, and requireChecksum is set",
                hint=f"set {download.checksum_setting} to the sha256 of {url}",
            )
        if not download.checksum_url:
            known = await asyncio.to_thread(self._digests.of, download.url)
            logger.warning(
                "program has no checksum, only a change of its content is refused",
                program=download.label,
                url=url,
                digest=known or "unknown before the first download",
                remedy=f"set {download.checksum_setting}",
            )

    def _is_cached(self, download: Download, path: Path) -> bool:
        if not path.is_file() or _problem(path):
            return False
        known = self._digests.of(download.url)
        if not download.is_pinned and known and file_digest(path) != known:
            return False
        try:
            _verify_checksum(download, path)
        except UserMistake:
            # The configuration has a new checksum for the same URL.
            return False
        return True

    def _remember(self, download: Download, path: Path) -> None:
        label = f"{download.label} from {_without_secrets(download.url)}"
        self._digests.remember(download.url, file_digest(path), label=label)

    def _install(self, download: Download, published: str, file: IO[bytes], path: Path) -> None:
        """Verifies a download and puts it in its place."""
        file.flush()
        os.fsync(file.fileno())
        file.close()
        partial = Path(file.name)
        _verify_checksum(replace(download, checksum=download.checksum or published), partial)
        # Only a program is remembered: a page of a proxy must not be what is expected next.
        _check_content(download, partial)
        known = self._digests.of(download.url)
        if not download.is_pinned and known and (actual := file_digest(partial)) != known:
            raise UserMistake(
                f"the content of {_without_secrets(download.url)} has changed: it was {known} and "
                f"is {actual}",
                hint=f"find out why before you run it; then {self._accepting_it(download)}",
            )
        partial.chmod(0o755)
        partial.replace(path)

    def _accepting_it(self, download: Download) -> str:
        if download.checksum_url:
            # A published checksum comes from the same server as the changed content.
            return f"remove its entry from {self._digests.path}"
        return f"set {download.checksum_setting}"

    def _create_partial_file(self) -> IO[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True)
        for partial in self._directory.glob(f"{_PARTIAL}*"):
            # A process that was killed during a download could not delete it.
            if time.time() - partial.stat().st_mtime > _STALE:
                partial.unlink(missing_ok=True)
        return tempfile.NamedTemporaryFile(dir=self._directory, prefix=_PARTIAL, delete=False)


async def _published_checksum(download: Download) -> str:
    """Reads the checksum file of a program: a digest and perhaps a file name."""
    if not download.checksum_url:
        return ""
    content = bytearray()
    try:
        async with (
            httpx2.AsyncClient(timeout=60, follow_redirects=True) as client,
            client.stream("GET", download.checksum_url) as response,
        ):
            if response.status_code == HTTPStatus.NOT_FOUND:
                return ""
            _check_response(response, download)
            async for chunk in response.aiter_bytes(_CHECKSUM_LIMIT):
                content += chunk
                if len(content) > _CHECKSUM_LIMIT:
                    break
    except httpx2.HTTPError as e:
        raise Unavailable(str(e) or type(e).__name__) from e
    match = _SHA256.match(content.decode(errors="replace"))
    if match is None:
        raise UserMistake(f"{_without_secrets(download.checksum_url)} is not a SHA-256 checksum")
    return f"sha256:{match[1].lower()}"


async def _write_content(download: Download, file: IO[bytes], *, has_checksum: bool) -> None:
    if urlsplit(download.url).scheme == "oci":
        reference = parse_reference(download.url)
        login = await asyncio.to_thread(docker_login, reference.host)
        async with Registry.open(reference, login=login) as registry:
            await registry.pull(
                Platform(*host_platform()), layer_type=download.layer_type, into=file
            )
        return
    try:
        async with (
            httpx2.AsyncClient(timeout=60, follow_redirects=True) as client,
            client.stream("GET", download.url) as response,
        ):
            _check_response(response, download)
            says_length = {"content-length", "transfer-encoding"} & response.headers.keys()
            if not (says_length or has_checksum):
                # The end of the connection may then be that of the file or an interruption.
                raise UserMistake(
                    f"the server does not say how long {_without_secrets(download.url)} is, and "
                    "there is no checksum",
                    hint=f"use a server that says the length, or {download.checksum_setting}",
                )
            size = 0
            async for chunk in response.aiter_bytes(_CHUNK):
                if (size := size + len(chunk)) > _SIZE_LIMIT:
                    raise UserMistake(
                        f"{_without_secrets(download.url)} is larger than {_SIZE_LIMIT >> 30} GiB"
                    )
                await asyncio.to_thread(file.write, chunk)
    except httpx2.HTTPError as e:
        raise Unavailable(str(e) or type(e).__name__) from e


def _check_response(response: httpx2.Response, download: Download) -> None:
    url = _without_secrets(download.url)
    if response.url.scheme != "https":
        raise UserMistake(
            f"{url} redirects to a URL without TLS", hint="use the URL that it redirects to"
        )
    if response.is_server_error or response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        raise Unavailable(f"the server answered {response.status_code}")
    if response.status_code != HTTPStatus.OK:
        raise UserMistake(
            f"{url} answered {response.status_code}", hint=f"correct {download.url_setting}"
        )


def _check_local(download: Download, path: Path) -> None:
    if not path.is_file():
        raise UserMistake(
            f"{download.label}: there is no file {path}", hint=f"correct {download.url_setting}"
        )
    if not os.access(path, os.X_OK):
        raise UserMistake(
            f"{download.label}: {path} is not executable", hint=f"run chmod +x {path}"
        )
    _verify_checksum(download, path)


def _verify_checksum(download: Download, path: Path) -> None:
    if not download.checksum:
        return
    actual = file_digest(path)
    if actual != download.checksum:
        raise UserMistake(
            f"the checksum of {_without_secrets(download.url)} is {actual} "
            f"and should be {download.checksum}",
            hint=f"find out why before you run it; then correct {download.checksum_setting}",
        )


def _check_content(download: Download, path: Path, prefix: str = "") -> None:
    """Refuses a file that is not a program for this platform."""
    if problem := _problem(path):
        raise UserMistake(
            f"{prefix}the content of {_without_secrets(download.url)} is {problem}",
            hint=f"{download.url_setting} must name the program itself, for this machine",
        )


def _problem(path: Path) -> str:
    """Returns what a file is instead of a program for this platform, or an empty text."""
    with path.open("rb") as file:
        header = file.read(20)
    system, architecture = host_platform()
    if header.startswith(b"\x7fELF"):
        machine = _ELF_MACHINES.get(architecture)
        is_other = machine is not None and int.from_bytes(header[18:20], "little") != machine
        return f"a program for another machine than {system}/{architecture}" if is_other else ""
    for magic, kind in _OTHER_FILES.items():
        if header.startswith(magic):
            return f"{kind} and not a program"
    is_script = header.startswith(b"#!")
    return "" if is_script or sys.platform != "linux" else "neither a program nor a script"


def _without_secrets(url: str) -> str:
    """Returns the URL without user, password and query."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def host_platform() -> tuple[str, str]:
    """Returns the operating system and the architecture of this machine, by their names in Go."""
    name = platform.machine().lower()
    return platform.system().lower(), _ARCHITECTURES.get(name, name)
