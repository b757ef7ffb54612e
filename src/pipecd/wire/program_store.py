# SPDX-License-Identifier: Apache-2.0
"""Programs from elsewhere: fetched once, checked, and kept under their address."""

import asyncio
import hashlib
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import httpx2
import structlog

from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.wire.oci.login import docker_login
from pipecd.wire.oci.manifest import Platform
from pipecd.wire.oci.reference import parse_reference
from pipecd.wire.oci.registry import Registry

logger = structlog.get_logger()

_ATTEMPTS, _PAUSE = 3, 1.0
_WITHIN = 600.0
_LARGEST = 2 << 30
_CHUNK = 1 << 20
_SHA256 = re.compile(r"\s*([0-9A-Fa-f]{64})(?:\s|$)")
_PARTIAL, _STALE = ".partial-", 3600.0
# The machine that an ELF file is for, by Go's names.
_ELF = {"amd64": 62, "arm64": 183}
_NO_PROGRAMS = {
    b"\x1f\x8b": "an archive",
    b"PK": "an archive",
    b"\xfd7zXZ": "an archive",
    b"<": "a web page",
}


@dataclass(frozen=True)
class Download:
    """A program that is wanted, and where the wish stands, for those who have to correct it.

    From a registry the layers of `layer_type` are taken. The checksum may be known beforehand, or
    be published at `checksum_url`; one that is not published is done without.
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
    def what(self) -> str:
        """What people call it, such as `plugin web`."""
        return f"{self.kind} {self.name}"


class ProgramStore:
    """The directory of downloaded programs; another address is another file."""

    def __init__(self, directory: Path, *, redownload: bool = False) -> None:
        self._directory, self._redownload = directory, redownload

    async def program(self, wanted: Download) -> Path:
        """The path of a program, which is fetched first when it is not there."""
        parts = urlsplit(wanted.url)
        if parts.scheme == "file":
            path = Path(unquote(parts.path))
            await asyncio.to_thread(_check_local, wanted, path)
        else:
            path = self._directory / _file_name(wanted)
            if self._redownload or not await asyncio.to_thread(_is_kept, wanted, path):
                await self._fetch(wanted, path)
        if problem := await asyncio.to_thread(_problem, path):
            raise UserMistake(
                f"{wanted.what}: what {_shown(wanted.url)} gives is {problem}",
                hint=f"{wanted.url_setting} must name the program itself, for this machine",
            )
        return path

    async def _fetch(self, wanted: Download, path: Path) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with asyncio.timeout(_WITHIN):
                    checksum = wanted.checksum or await _published(wanted)
                    async with self._written(replace(wanted, checksum=checksum), path) as file:
                        await _download(wanted, file)
            except (Unavailable, TimeoutError) as e:
                told = str(e) or f"it took longer than {_WITHIN:g}s"
                logger.warning(
                    "a program was not fetched", program=wanted.what, attempt=attempt, why=told
                )
                if attempt == _ATTEMPTS:
                    raise Unavailable(
                        f"{wanted.what} cannot be fetched from {_shown(wanted.url)}: {told}"
                    ) from e
                await asyncio.sleep(_PAUSE * attempt)
            except PipecdError as e:
                raise UserMistake(f"{wanted.what}: {e.message}", hint=e.hint) from e
            else:
                logger.info("program fetched", program=wanted.what, url=_shown(wanted.url))
                return

    @asynccontextmanager
    async def _written(self, wanted: Download, path: Path) -> AsyncGenerator[IO[bytes], None]:
        """A file that takes its place in one step, and only when it is whole and right."""
        file = await asyncio.to_thread(self._new_file)
        try:
            yield file
            await asyncio.to_thread(_place, wanted, file, path)
        finally:
            await asyncio.to_thread(_discard, file)

    def _new_file(self) -> IO[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(f"{_PARTIAL}*"):
            # One who was killed amid a download could not clean up.
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink(missing_ok=True)
        return tempfile.NamedTemporaryFile(dir=self._directory, prefix=_PARTIAL, delete=False)


async def _published(wanted: Download) -> str:
    """The checksum that stands beside a program: its digest and perhaps a file name."""
    if not wanted.checksum_url:
        return ""
    try:
        async with httpx2.AsyncClient(timeout=60, follow_redirects=True) as client:
            answer = await client.get(wanted.checksum_url)
    except httpx2.HTTPError as e:
        raise Unavailable(str(e) or type(e).__name__) from e
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return ""
    _refuse(answer, wanted)
    found = _SHA256.match(answer.text)
    if found is None:
        raise UserMistake(f"{_shown(wanted.checksum_url)} is no checksum of SHA-256")
    return f"sha256:{found[1].lower()}"


async def _download(wanted: Download, file: IO[bytes]) -> None:
    if urlsplit(wanted.url).scheme == "oci":
        reference = parse_reference(wanted.url)
        login = await asyncio.to_thread(docker_login, reference.host)
        async with Registry.open(reference, login=login) as registry:
            await registry.pull(Platform(*host_platform()), layer_type=wanted.layer_type, into=file)
        return
    try:
        async with (
            httpx2.AsyncClient(timeout=60, follow_redirects=True) as client,
            client.stream("GET", wanted.url) as answer,
        ):
            _refuse(answer, wanted)
            size = 0
            async for chunk in answer.aiter_bytes(_CHUNK):
                if (size := size + len(chunk)) > _LARGEST:
                    raise UserMistake(f"{_shown(wanted.url)} is larger than any program should be")
                await asyncio.to_thread(file.write, chunk)
    except httpx2.HTTPError as e:
        raise Unavailable(str(e) or type(e).__name__) from e


def _refuse(answer: httpx2.Response, wanted: Download) -> None:
    url = _shown(wanted.url)
    if answer.url.scheme != "https":
        raise UserMistake(f"{url} leads to an address without TLS", hint="use its last address")
    if answer.is_server_error or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        raise Unavailable(f"the server answered {answer.status_code}")
    if answer.status_code != HTTPStatus.OK:
        raise UserMistake(
            f"{url} answered {answer.status_code}", hint=f"correct {wanted.url_setting}"
        )


def _check_local(wanted: Download, path: Path) -> None:
    if not path.is_file():
        raise UserMistake(
            f"{wanted.what}: there is no file {path}", hint=f"correct {wanted.url_setting}"
        )
    if not os.access(path, os.X_OK):
        raise UserMistake(f"{wanted.what}: {path} is not a program", hint=f"run chmod +x {path}")
    _check_sum(wanted, path)


def _is_kept(wanted: Download, path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        _check_sum(wanted, path)
    except UserMistake:
        # The configuration wants another content of the same address by now.
        return False
    return True


def _check_sum(wanted: Download, path: Path) -> None:
    if not wanted.checksum:
        return
    with path.open("rb") as file:
        found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    if found != wanted.checksum:
        raise UserMistake(
            f"the checksum of {_shown(wanted.url)} is {found} and should be {wanted.checksum}",
            hint=f"do not run it before you know why; then correct {wanted.checksum_setting}",
        )


def _place(wanted: Download, file: IO[bytes], path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    _check_sum(wanted, Path(file.name))
    Path(file.name).chmod(0o755)
    os.replace(file.name, path)  # noqa: PTH105 - the same file system, in one step


def _discard(file: IO[bytes]) -> None:
    file.close()
    Path(file.name).unlink(missing_ok=True)


def _problem(path: Path) -> str:
    """What a file is instead of a program for this host_platform, or nothing."""
    with path.open("rb") as file:
        head = file.read(20)
    system, architecture = host_platform()
    if head.startswith(b"\x7fELF"):
        wanted = _ELF.get(architecture)
        is_other = wanted is not None and int.from_bytes(head[18:20], "little") != wanted
        return f"a program for another machine than {system}/{architecture}" if is_other else ""
    for start, what in _NO_PROGRAMS.items():
        if head.startswith(start):
            return f"{what} and not a program"
    is_script = head.startswith(b"#!")
    return "" if is_script or sys.platform != "linux" else "neither a program nor a script"


def _file_name(wanted: Download) -> str:
    """The name for people, and the address so that another version is another file."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", wanted.name).lstrip(".")
    return f"{name}-{hashlib.sha256(wanted.url.encode()).hexdigest()[:16]}"


def _shown(url: str) -> str:
    """The address without what may be secret in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def host_platform() -> tuple[str, str]:
    """The operating system and the architecture of this host_platform, in the words of Go."""
    name = platform.machine().lower()
    return platform.system().lower(), _ARCHITECTURES.get(name, name)
