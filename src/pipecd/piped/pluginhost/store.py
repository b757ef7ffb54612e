# SPDX-License-Identifier: Apache-2.0
"""The programs of plugins on this machine: fetched once, checked, and kept under their address."""

import asyncio
import hashlib
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

import httpx2
import structlog

from pipecd.config.piped.plugin import PluginSpec
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.piped.pluginhost.tools import machine
from pipecd.wire.oci.login import docker_login
from pipecd.wire.oci.manifest import Platform
from pipecd.wire.oci.reference import parse_reference
from pipecd.wire.oci.registry import Registry

logger = structlog.get_logger()

LAYER_TYPE = "application/vnd.pipecd.piped.plugin"
_ATTEMPTS, _PAUSE = 3, 1.0
_WITHIN = 600.0
_LARGEST = 2 << 30
_CHUNK = 1 << 20
_PARTIAL, _STALE = ".partial-", 3600.0
# The machine that an ELF file is for, by Go's names.
_ELF = {"amd64": 62, "arm64": 183}
_NO_PROGRAMS = {
    b"\x1f\x8b": "an archive",
    b"PK": "an archive",
    b"\xfd7zXZ": "an archive",
    b"<": "a web page",
}


class PluginStore:
    """The directory of downloaded plugins; another address is another file."""

    def __init__(self, directory: Path, *, redownload: bool = False) -> None:
        self._directory, self._redownload = directory, redownload

    async def program(self, spec: PluginSpec) -> Path:
        """The program of a plugin, which is fetched first when it is not there."""
        parts = urlsplit(spec.url)
        if parts.scheme == "file":
            path = Path(unquote(parts.path))
            await asyncio.to_thread(_check_local, spec, path)
        else:
            path = self._directory / _file_name(spec)
            if self._redownload or not await asyncio.to_thread(_is_kept, spec, path):
                await self._fetch(spec, path)
        if problem := await asyncio.to_thread(_problem, path):
            raise UserMistake(
                f"plugin {spec.name}: what {_shown(spec.url)} gives is {problem}",
                hint="its url must be the address of the program itself, for this machine",
            )
        return path

    async def _fetch(self, spec: PluginSpec, path: Path) -> None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                async with asyncio.timeout(_WITHIN), self._written(spec, path) as file:
                    await _download(spec, file)
            except (Unavailable, TimeoutError) as e:
                told = str(e) or f"it took longer than {_WITHIN:g}s"
                logger.warning(
                    "a plugin was not fetched", plugin=spec.name, attempt=attempt, why=told
                )
                if attempt == _ATTEMPTS:
                    raise Unavailable(
                        f"plugin {spec.name} cannot be fetched from {_shown(spec.url)}: {told}"
                    ) from e
                await asyncio.sleep(_PAUSE * attempt)
            except PipecdError as e:
                raise UserMistake(f"plugin {spec.name}: {e.message}", hint=e.hint) from e
            else:
                logger.info("plugin fetched", plugin=spec.name, url=_shown(spec.url))
                return

    @asynccontextmanager
    async def _written(self, spec: PluginSpec, path: Path) -> AsyncGenerator[IO[bytes], None]:
        """A file that takes its place in one step, and only when it is whole and right."""
        file = await asyncio.to_thread(self._new_file)
        try:
            yield file
            await asyncio.to_thread(_place, spec, file, path)
        finally:
            await asyncio.to_thread(_discard, file)

    def _new_file(self) -> IO[bytes]:
        self._directory.mkdir(parents=True, exist_ok=True)
        for left in self._directory.glob(f"{_PARTIAL}*"):
            # A piped that was killed amid a download could not clean up.
            if time.time() - left.stat().st_mtime > _STALE:
                left.unlink(missing_ok=True)
        return tempfile.NamedTemporaryFile(dir=self._directory, prefix=_PARTIAL, delete=False)


async def _download(spec: PluginSpec, file: IO[bytes]) -> None:
    if urlsplit(spec.url).scheme == "oci":
        reference = parse_reference(spec.url)
        login = await asyncio.to_thread(docker_login, reference.host)
        async with Registry.open(reference, login=login) as registry:
            await registry.pull(Platform(*machine()), layer_type=LAYER_TYPE, into=file)
        return
    try:
        async with (
            httpx2.AsyncClient(timeout=60, follow_redirects=True) as client,
            client.stream("GET", spec.url) as answer,
        ):
            _refuse(answer, _shown(spec.url))
            size = 0
            async for chunk in answer.aiter_bytes(_CHUNK):
                if (size := size + len(chunk)) > _LARGEST:
                    raise UserMistake(f"{_shown(spec.url)} is larger than any plugin should be")
                await asyncio.to_thread(file.write, chunk)
    except httpx2.HTTPError as e:
        raise Unavailable(str(e) or type(e).__name__) from e


def _refuse(answer: httpx2.Response, url: str) -> None:
    if answer.url.scheme != "https":
        raise UserMistake(f"{url} leads to an address without TLS", hint="use its last address")
    if answer.is_server_error or answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        raise Unavailable(f"the server answered {answer.status_code}")
    if answer.status_code != HTTPStatus.OK:
        raise UserMistake(f"{url} answered {answer.status_code}", hint="correct plugins[].url")


def _check_local(spec: PluginSpec, path: Path) -> None:
    if not path.is_file():
        raise UserMistake(f"plugin {spec.name}: there is no file {path}", hint="correct its url")
    if not os.access(path, os.X_OK):
        raise UserMistake(
            f"plugin {spec.name}: {path} is not a program", hint=f"run chmod +x {path}"
        )
    _check_sum(spec, path)


def _is_kept(spec: PluginSpec, path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        _check_sum(spec, path)
    except UserMistake:
        # The configuration wants another content of the same address by now.
        return False
    return True


def _check_sum(spec: PluginSpec, path: Path) -> None:
    if not spec.checksum:
        return
    with path.open("rb") as file:
        found = f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
    if found != spec.checksum:
        raise UserMistake(
            f"the checksum of {_shown(spec.url)} is {found} and should be {spec.checksum}",
            hint="do not run it before you know why; then correct plugins[].checksum",
        )


def _place(spec: PluginSpec, file: IO[bytes], path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
    _check_sum(spec, Path(file.name))
    Path(file.name).chmod(0o755)
    os.replace(file.name, path)  # noqa: PTH105 - the same file system, in one step


def _discard(file: IO[bytes]) -> None:
    file.close()
    Path(file.name).unlink(missing_ok=True)


def _problem(path: Path) -> str:
    """What a file is instead of a program for this machine, or nothing."""
    with path.open("rb") as file:
        head = file.read(20)
    system, architecture = machine()
    if head.startswith(b"\x7fELF"):
        wanted = _ELF.get(architecture)
        is_other = wanted is not None and int.from_bytes(head[18:20], "little") != wanted
        return f"a program for another machine than {system}/{architecture}" if is_other else ""
    for start, what in _NO_PROGRAMS.items():
        if head.startswith(start):
            return f"{what} and not a program"
    is_script = head.startswith(b"#!")
    return "" if is_script or sys.platform != "linux" else "neither a program nor a script"


def _file_name(spec: PluginSpec) -> str:
    """The name for people, and the address so that another version is another file."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", spec.name).lstrip(".")
    return f"{name}-{hashlib.sha256(spec.url.encode()).hexdigest()[:16]}"


def _shown(url: str) -> str:
    """The address without what may be secret in it."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
