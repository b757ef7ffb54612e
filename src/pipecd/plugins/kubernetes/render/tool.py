# SPDX-License-Identifier: Apache-2.0
"""Programs that render manifests: those of the machine are used, others are installed."""

import asyncio
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipecd.sdk import UserMistake
from pipecd.sdk.program import capture

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


async def find_tool(name: str, version: str, installer: Installer) -> Path:
    """Returns the program of the machine when it has the version that is asked for, or any."""
    found = shutil.which(name)
    if found and (not version or await _version_of(found) == version.removeprefix("v")):
        return Path(found)
    recipe = RECIPES[name]
    return await installer.tool(name, version.removeprefix("v") or recipe.version, recipe.script())


async def _version_of(program: str) -> str:
    answer = await capture([program, "version"], cwd=Path("/"), at_most=10)
    match = _VERSION.search(answer.stdout.decode(errors="replace"))
    return match[1] if match else ""


async def rendered(argv: Sequence[str], *, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """Runs a program that prints manifests; what it complains about is the reason it failed."""
    answer = await capture(argv, cwd=cwd, env=env, at_most=_WITHIN)
    if answer.code != 0:
        said = answer.stderr.decode(errors="replace").strip()
        raise UserMistake(f"{Path(argv[0]).name} {argv[1]} failed: {said or answer.code}")
    return await asyncio.to_thread(answer.stdout.decode)
