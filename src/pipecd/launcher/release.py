# SPDX-License-Identifier: Apache-2.0
"""Where versions of piped come from: a package index, or an address with a program for each."""

import asyncio
import re
import shutil
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import structlog

from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe.version import build_version
from pipecd.program.run import run
from pipecd.wire.program_store import Download, ProgramStore, host_platform

log = structlog.get_logger()

FLAG = "--piped-release"
LAYER_TYPE = "application/vnd.pipecd.piped"
_PACKAGE = "pip:"
_SCHEMES = ("https://", "oci://", "file://")
_INSTALLED_WITHIN = 600.0
# A version becomes part of addresses and paths and comes from somebody else.
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


class Releases(Protocol):
    """A place with versions of piped."""

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        """The words that start a piped of this version, which is fetched first if need be."""
        ...

    async def keep(self, versions: Collection[str]) -> None:
        """Removes what is kept of all other versions."""
        ...


def open_releases(place: str, home: Path) -> Releases:
    """The releases that `--piped-release` names; the version installed here is always there."""
    directory = home / "versions"
    if place.startswith(_PACKAGE) and len(place) > len(_PACKAGE):
        return _Installed(_Packages(place.removeprefix(_PACKAGE), directory))
    if place.startswith(_SCHEMES) and "{version}" in place:
        return _Installed(_Programs(place, directory))
    raise UserMistake(
        f"{FLAG}: {place!r} names no releases",
        hint="write pip:PACKAGE, or an address that begins with https://, oci:// or file:// and "
        "has {version} in it, and {os} and {arch} where they belong",
    )


class _Installed:
    """The version that the launcher itself is of, before all others."""

    def __init__(self, others: Releases) -> None:
        self._others = others

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        if version == build_version():
            return (sys.executable, "-m", "pipecd", "piped")
        if not _VERSION.fullmatch(version):
            raise UserMistake(f"{version!r} cannot be a version of piped")
        return await self._others.program(version, is_v0=is_v0)

    async def keep(self, versions: Collection[str]) -> None:
        await self._others.keep(versions)


class _Programs:
    """One program for each version, such as the assets of a release."""

    def __init__(self, template: str, directory: Path) -> None:
        self._template, self._directory = template, directory

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        system, architecture = host_platform()
        url = self._template
        for name, value in (("version", version), ("os", system), ("arch", architecture)):
            url = url.replace(f"{{{name}}}", value)
        wanted = Download(
            kind="piped",
            name=version,
            url=url,
            checksum_url=f"{url}.sha256" if url.startswith("https://") else "",
            layer_type=LAYER_TYPE,
            url_setting=FLAG,
            checksum_setting="what is published there",
        )
        path = await ProgramStore(self._directory / version).program(wanted)
        # Upstream has a program for each generation, and each knows one of these words.
        return (str(path), "piped" if is_v0 else "run")

    async def keep(self, versions: Collection[str]) -> None:
        await asyncio.to_thread(_remove_others, self._directory, versions)


class _Packages:
    """Versions of a Python package, each installed into an environment of its own."""

    def __init__(self, requirement: str, directory: Path) -> None:
        self._requirement, self._directory = requirement, directory

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        place = self._directory / version
        python = place / "bin" / "python"
        if not await asyncio.to_thread(python.exists):
            await self._install(version, place)
        # The scripts of an environment that was moved are broken; its interpreter is not.
        return (str(python), "-m", "pipecd", "piped")

    async def keep(self, versions: Collection[str]) -> None:
        await asyncio.to_thread(_remove_others, self._directory, versions)

    async def _install(self, version: str, place: Path) -> None:
        log.info("installing piped", version=version, package=self._requirement)
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".install-") as temporary:
            environment = Path(temporary, "environment")
            wanted = f"{self._requirement}=={version.removeprefix('v')}"
            await _done([sys.executable, "-m", "venv", str(environment)], Path(temporary), version)
            install = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check", wanted)
            await _done([str(environment / "bin" / "python"), *install], Path(temporary), version)
            await asyncio.to_thread(environment.rename, place)


async def _done(argv: Sequence[str], cwd: Path, version: str) -> None:
    try:
        async with asyncio.timeout(_INSTALLED_WITHIN):
            done = await run(argv, cwd=cwd)
    except TimeoutError as e:
        raise PipecdError(f"installing piped {version} took longer than 10 minutes") from e
    if done.code:
        raise PipecdError(
            f"piped {version} cannot be installed: {done.last_line}",
            hint=f"check that {FLAG} names a package that has this version",
        )


def _remove_others(directory: Path, versions: Collection[str]) -> None:
    for left in directory.glob("*"):
        if left.name not in versions:
            shutil.rmtree(left, ignore_errors=True)
