# SPDX-License-Identifier: Apache-2.0
"""Installs versions of piped from a package index, or downloads them as executables.

There is no default source: a name on a public index could belong to anyone.
"""

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
_INSTALL_TIMEOUT = 600.0
# The control plane sets the version, which becomes part of URLs and paths.
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,127}")


class Releases(Protocol):
    """A source of piped versions."""

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        """Returns the command that starts this version, which is fetched first if it is missing."""
        ...

    async def remove_except(self, versions: Collection[str]) -> None:
        """Removes all other versions from the disk."""
        ...


def open_releases(source: str, home: Path) -> Releases:
    """Returns the releases that `--piped-release` names, and the version of the launcher."""
    directory = home / "versions"
    if not source:
        return _InstalledVersion(_NoReleases())
    if source.startswith(_PACKAGE) and len(source) > len(_PACKAGE):
        return _InstalledVersion(_PythonPackages(source.removeprefix(_PACKAGE), directory))
    if source.startswith(_SCHEMES) and "{version}" in source:
        return _InstalledVersion(_Executables(source, directory))
    raise UserMistake(
        f"{FLAG}: {source!r} names no releases",
        hint="write pip:PACKAGE, or a URL that begins with https://, oci:// or file:// and "
        "contains {version}, and {os} and {arch} if they are part of it",
    )


class _InstalledVersion:
    """The version of the launcher, which needs no download; any other comes from `others`."""

    def __init__(self, others: Releases) -> None:
        self._others = others

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        if version == build_version():
            return (sys.executable, "-m", "pipecd", "piped")
        if not _VERSION.fullmatch(version):
            raise UserMistake(f"{version!r} cannot be a version of piped")
        return await self._others.program(version, is_v0=is_v0)

    async def remove_except(self, versions: Collection[str]) -> None:
        await self._others.remove_except(versions)


class _NoReleases:
    """No source of other versions."""

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        raise UserMistake(
            f"piped {version} is desired, but the launcher has no source of other versions than "
            f"its own, {build_version()}",
            hint=f"set {FLAG} to the source of your releases, or desire version {build_version()}",
        )

    async def remove_except(self, versions: Collection[str]) -> None:
        """Does nothing."""


class _Executables:
    """One executable for each version, such as the assets of a release."""

    def __init__(self, template: str, directory: Path) -> None:
        self._template, self._directory = template, directory

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        system, architecture = host_platform()
        url = self._template
        for name, value in (("version", version), ("os", system), ("arch", architecture)):
            url = url.replace(f"{{{name}}}", value)
        download = Download(
            kind="piped",
            name=version,
            url=url,
            checksum_url=f"{url}.sha256" if url.startswith("https://") else "",
            layer_type=LAYER_TYPE,
            url_setting=FLAG,
            checksum_setting="the published checksum",
        )
        # The directory of a version is removed with it, the digest is not.
        digests = self._directory.parent / "digests.json"
        path = await ProgramStore(self._directory / version, digests=digests).program(download)
        # Upstream has an executable for each generation, and each has one of these commands.
        return (str(path), "piped" if is_v0 else "run")

    async def remove_except(self, versions: Collection[str]) -> None:
        await asyncio.to_thread(_remove_except, self._directory, versions)


class _PythonPackages:
    """Versions of a Python package, each installed into a virtual environment of its own."""

    def __init__(self, requirement: str, directory: Path) -> None:
        self._requirement, self._directory = requirement, directory

    async def program(self, version: str, *, is_v0: bool) -> Sequence[str]:
        environment = self._directory / version
        python = environment / "bin" / "python"
        if not await asyncio.to_thread(python.exists):
            await self._install(version, environment)
        # The scripts of an environment that was moved are broken; its interpreter is not.
        return (str(python), "-m", "pipecd", "piped")

    async def remove_except(self, versions: Collection[str]) -> None:
        await asyncio.to_thread(_remove_except, self._directory, versions)

    async def _install(self, version: str, into: Path) -> None:
        log.info("installing piped", version=version, package=self._requirement)
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".install-") as temporary:
            environment = Path(temporary, "environment")
            requirement = f"{self._requirement}=={version.removeprefix('v')}"
            install = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check")
            for argv in (
                (sys.executable, "-m", "venv", str(environment)),
                (str(environment / "bin" / "python"), *install, requirement),
            ):
                try:
                    async with asyncio.timeout(_INSTALL_TIMEOUT):
                        done = await run(argv, cwd=Path(temporary))
                except TimeoutError as e:
                    raise PipecdError(
                        f"installing piped {version} took longer than {_INSTALL_TIMEOUT:g}s"
                    ) from e
                if done.code:
                    raise PipecdError(
                        f"piped {version} cannot be installed: {done.last_line}",
                        hint=f"check that {FLAG} names a package that has this version",
                    )
            await asyncio.to_thread(environment.rename, into)


def _remove_except(directory: Path, versions: Collection[str]) -> None:
    for path in directory.glob("*"):
        if path.name not in versions:
            shutil.rmtree(path, ignore_errors=True)
