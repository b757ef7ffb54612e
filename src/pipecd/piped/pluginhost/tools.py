# SPDX-License-Identifier: Apache-2.0
"""Programs that plugins need, installed once and shared by all of them."""

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
from pipecd.wire.download.machine import machine

# A script that waits for something must not hold up every deployment that needs the tool.
_INSTALLED_WITHIN = 600.0
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True)
class Tool:
    """A program at a version, and the script that brings it."""

    name: str
    version: str
    script: str


class Toolbox:
    """The directory of installed tools; two callers for one tool share one installation."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def installed(self, tool: Tool) -> Path:
        """The path of the tool, which is installed first when it is not there."""
        for part in (tool.name, tool.version):
            if not _SAFE.fullmatch(part):
                raise UserMistake(f"{part!r} cannot be the name or version of a tool")
        path = self._directory / f"{tool.name}-{tool.version}"
        async with self._turns[path.name]:
            if not await asyncio.to_thread(path.is_file):
                await self._install(tool, path)
        return path

    async def _install(self, tool: Tool, path: Path) -> None:
        await asyncio.to_thread(self._directory.mkdir, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._directory, prefix=".install-") as temporary:
            out = Path(temporary, "tool")
            values = variables(tool, out, Path(temporary))
            script = render(tool.script, values, name=f"installation of {tool.name}")
            try:
                async with asyncio.timeout(_INSTALLED_WITHIN):
                    done = await run(["/bin/sh", "-c", script], cwd=Path(temporary), grace=1)
            except TimeoutError as e:
                raise Unavailable(
                    f"installing {tool.name} {tool.version} took longer than {_INSTALLED_WITHIN:g}s"
                ) from e
            if done.code:
                raise PipecdError(
                    f"installing {tool.name} {tool.version} ended with {done.code}: "
                    f"{done.last_line}"
                )
            await asyncio.to_thread(_place, out, path)


def variables(tool: Tool, out: Path, temporary: Path) -> dict[str, str]:
    """What an installation script may refer to."""
    system, architecture = machine()
    return {
        "Name": tool.name,
        "Version": tool.version,
        "OutPath": str(out),
        "TmpDir": str(temporary),
        "Arch": architecture,
        "Os": system,
    }


def _place(out: Path, path: Path) -> None:
    if not out.is_file():
        raise PipecdError(f"the installation script of {path.name} left no program at OutPath")
    out.chmod(0o755)
    os.replace(out, path)  # noqa: PTH105 - the same file system, in one step
