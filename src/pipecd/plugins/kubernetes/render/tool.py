# SPDX-License-Identifier: Apache-2.0
"""Programs that render manifests: those of the machine are used, others are installed."""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes.figures import ProgramEnded
from pipecd.sdk import PipecdError, UserMistake
from pipecd.sdk.program import Captured, capture

# Rendering may fetch charts and bases.
_WITHIN = 300.0
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


class Installer(Protocol):
    """Brings a program by a script; `StageContext` and the other contexts of the SDK do it."""

    async def tool(self, name: str, version: str, script: str) -> Path:
        """Returns the path of a program, which is installed when it is not there yet."""
        ...


@dataclass(frozen=True)
class Recipe:
    """Where a program comes from: `{v}` is its version, `{os}` and `{arch}` name the machine."""

    version: str
    url: str
    sums: str
    member: str = ""

    def script(self) -> str:
        """Returns the script that downloads the program and checks its sum."""
        url, sums = (
            text.format(v="{{ .Version }}", os="{{ .Os }}", arch="{{ .Arch }}")
            for text in (self.url, self.sums)
        )
        member = self.member.format(os="{{ .Os }}", arch="{{ .Arch }}")
        unpack = (
            f'tar -xzf download "{member}" && mv "{member}" "{{{{ .OutPath }}}}"'
            if member
            else 'mv download "{{ .OutPath }}"'
        )
        return "\n".join(
            (
                "set -eu",
                'cd "{{ .TmpDir }}"',
                f'curl -fsSL -o download "{url}"',
                f'curl -fsSL -o sums "{sums}"',
                f'wanted=$(grep -F "$(basename "{url}")" sums | cut -d" " -f1)',
                '[ -n "$wanted" ] || wanted=$(cut -d" " -f1 sums | head -n 1)',
                'echo "$wanted  download" | sha256sum -c - >/dev/null',
                unpack,
            )
        )


RECIPES: Mapping[str, Recipe] = {
    "helm": Recipe(
        version="3.18.4",
        url="https://get.helm.sh/helm-v{v}-{os}-{arch}.tar.gz",
        sums="https://get.helm.sh/helm-v{v}-{os}-{arch}.tar.gz.sha256sum",
        member="{os}-{arch}/helm",
    ),
    "kustomize": Recipe(
        version="5.6.0",
        url="https://github.com/kubernetes-sigs/kustomize/releases/download/"
        "kustomize%2Fv{v}/kustomize_v{v}_{os}_{arch}.tar.gz",
        sums="https://github.com/kubernetes-sigs/kustomize/releases/download/"
        "kustomize%2Fv{v}/checksums.txt",
        member="kustomize",
    ),
}


@dataclass(frozen=True)
class Program:
    """A program of a version; each of its runs is told."""

    path: Path
    name: str
    version: str
    ended: ProgramEnded

    async def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        at_most: float = _WITHIN,
    ) -> Captured:
        """Runs the program to its end and returns everything it wrote."""
        argv = [str(self.path), *arguments]
        try:
            answer = await capture(argv, cwd=cwd, env=env, stdin=stdin, at_most=at_most)
        except PipecdError:
            self.ended(self.name, self.version, arguments[0], is_success=False)
            raise
        self.ended(self.name, self.version, arguments[0], is_success=answer.code == 0)
        return answer

    async def rendered(self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> str:
        """Prints manifests; what the program complains about is the reason it failed."""
        answer = await self.run(arguments, cwd=cwd, env=env)
        if answer.code != 0:
            said = answer.stderr.decode(errors="replace").strip()
            raise UserMistake(f"{self.path.name} {arguments[0]} failed: {said or answer.code}")
        return await asyncio.to_thread(answer.stdout.decode)


class Programs:
    """Finds programs; the version of one of the machine is asked for once, until it changes."""

    def __init__(self, ended: ProgramEnded) -> None:
        self._ended = ended
        self._versions: dict[tuple[str, int], str] = {}
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def version(self, name: str, version: str) -> str:
        """Returns the version that `find` brings, without installing it."""
        _, there = await self._of_machine(name)
        return version.removeprefix("v") or there or RECIPES[name].version

    async def find(self, name: str, version: str, installer: Installer) -> Program:
        """Returns the program of the machine when it has the version that is asked for, or any."""
        wanted = version.removeprefix("v")
        found, there = await self._of_machine(name)
        if found and wanted in ("", there):
            return Program(Path(found), name, there, self._ended)
        recipe = RECIPES[name]
        wanted = wanted or recipe.version
        path = await installer.tool(name, wanted, recipe.script())
        return Program(path, name, wanted, self._ended)

    async def _of_machine(self, name: str) -> tuple[str, str]:
        """Returns the path and the version of a program of the machine, empty without one."""
        found = shutil.which(name) or ""
        return found, await self._version_of(found) if found else ""

    async def _version_of(self, program: str) -> str:
        key = program, (await asyncio.to_thread(os.stat, program)).st_mtime_ns
        async with self._asking.setdefault(program, asyncio.Lock()):
            if key not in self._versions:
                answer = await capture([program, "version"], cwd=Path("/"), at_most=10)
                match = _VERSION.search(answer.stdout.decode(errors="replace"))
                self._versions[key] = match[1] if match else ""
            return self._versions[key]
