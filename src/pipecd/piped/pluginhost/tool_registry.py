# SPDX-License-Identifier: Apache-2.0
"""Installs the tools that plugins need, such as kubectl, once for all plugins."""

import asyncio
import os
import re
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from pipecd.gotemplate.template import render
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.program.run import run
from pipecd.wire.digests import KnownDigests, file_digest
from pipecd.wire.program_store import host_platform

# A script that hangs must not block every deployment that needs the tool.
_INSTALL_TIMEOUT = 600.0
# The URL of a mirror with files at TOOL/VERSION/FILE, in the environment of installation scripts.
MIRROR_VARIABLE = "PIPECD_TOOL_MIRROR"
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Tool:
    """A program, its version and its installation script."""

    name: str
    version: str
    script: str


class ToolRegistry:
    """The directory of installed tools; concurrent requests for a tool share one installation.

    A script verifies what it downloads, or not: in any case the tool that it installs must stay the
    same when it is installed again. `mirror` is a URL for scripts that know mirrors.
    """

    def __init__(self, directory: Path, *, digests: Path | None = None, mirror: str = "") -> None:
        self._directory, self._mirror = directory, mirror
        self._digests = KnownDigests(digests or directory / "digests.json")
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def install(self, tool: Tool) -> Path:
        """Returns the path of the tool, which is installed first if it is missing."""
        for part in (tool.name, tool.version):
            if not _SAFE.fullmatch(part):
                raise UserMistake(f"{part!r} cannot be the name or version of a tool")
        path = self._directory / f"{tool.name}-{tool.version}"
        async with self._locks[path.name]:
            if not await asyncio.to_thread(path.is_file):
                await self._install(tool, path)
        return path

    async def _install(self, tool: Tool, path: Path) -> None:
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".install-") as temporary:
            out = Path(temporary, "tool")
            system, architecture = host_platform()
            values = {
                "Name": tool.name,
                "Version": tool.version,
                "OutPath": str(out),
                "TmpDir": temporary,
                "Arch": architecture,
                "Os": system,
            }
            script = render(tool.script, values, name=f"installation of {tool.name}")
            mirror = {MIRROR_VARIABLE: self._mirror} if self._mirror else {}
            env = {**os.environ, **mirror}
            try:
                async with asyncio.timeout(_INSTALL_TIMEOUT):
                    argv = ["/bin/sh", "-c", script]
                    done = await run(argv, cwd=Path(temporary), env=env, grace=1)
            except TimeoutError as e:
                raise Unavailable(
                    f"installing {tool.name} {tool.version} took longer than {_INSTALL_TIMEOUT:g}s"
                ) from e
            if done.code:
                raise PipecdError(
                    f"installing {tool.name} {tool.version} ended with {done.code}: "
                    f"{done.last_line}"
                )
            await asyncio.to_thread(self._accept, tool, out, path)

    def _accept(self, tool: Tool, out: Path, path: Path) -> None:
        """Puts an installed tool in its place, unless it differs from the one installed first."""
        if out.is_symlink() or not out.is_file():
            raise PipecdError(f"the installation script of {path.name} left no program at OutPath")
        address, digest = f"{path.name}\n{tool.script}", file_digest(out)
        known = self._digests.of(address)
        if known and digest != known:
            raise PipecdError(
                f"{tool.name} {tool.version} has changed since it was installed first: it was "
                f"{known} and is {digest}",
                hint=f"find out why before you run it; then remove {self._digests.path}",
            )
        self._digests.remember(address, digest, label=path.name)
        out.chmod(0o755)
        # In one step, since both paths are on the same file system.
        out.replace(path)
