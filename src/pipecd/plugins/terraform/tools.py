# SPDX-License-Identifier: Apache-2.0
"""Finds Terraform or OpenTofu on the machine of piped, and installs other versions."""

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from pipecd.plugins.terraform.config import ToolName
from pipecd.sdk import PipecdError, UserMistake
from pipecd.sdk.host import WithTools
from pipecd.sdk.program import capture
from pipecd.sdk.tool_download import fetch_script

_RELEASE = re.compile(r"\d+\.\d+\.\d+(-[\w.]+)?")
_VERSION = re.compile(r"v(\d+\.\d+\.\d+[\w.-]*)")
# The largest program that is unpacked.
_SIZE_LIMIT = 1 << 30
_UNPACK = (
    "import shutil, sys, zipfile; "
    "member = zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]); "
    "open(sys.argv[3], 'wb').write(member.read(int(sys.argv[4])))"
)


@dataclass(frozen=True)
class ToolDownload:
    """The program of a tool and where its releases are, with `{v}`, `{os}` and `{arch}`."""

    program: str
    version: str
    url: str
    checksums: str

    def script(self) -> str:
        """Returns the script that downloads a release and verifies its checksum."""
        url, checksums = (
            text.format(v="{{ .Version }}", os="{{ .Os }}", arch="{{ .Arch }}")
            for text in (self.url, self.checksums)
        )
        file = url.rpartition("/")[2]
        unpack = shlex.join((sys.executable, "-I", "-c", _UNPACK, "download", self.program))
        return "\n".join(
            (
                fetch_script(url, checksums),
                f"expected=$(awk -v file='{file}' '$2 == file {{ print $1; exit }}' checksums)",
                'echo "$expected  download" | sha256sum -c - >/dev/null',
                f'{unpack} "{{{{ .OutPath }}}}" {_SIZE_LIMIT}',
                '[ -s "{{ .OutPath }}" ]',
            )
        )


_TERRAFORM = "https://releases.hashicorp.com/terraform/{v}/terraform_{v}_"
_TOFU = "https://github.com/opentofu/opentofu/releases/download/v{v}/tofu_{v}_"
DOWNLOADS: Mapping[ToolName, ToolDownload] = {
    "terraform": ToolDownload(
        program="terraform",
        version="1.5.7",
        url=_TERRAFORM + "{os}_{arch}.zip",
        checksums=_TERRAFORM + "SHA256SUMS",
    ),
    "opentofu": ToolDownload(
        program="tofu",
        version="1.8.8",
        url=_TOFU + "{os}_{arch}.zip",
        checksums=_TOFU + "SHA256SUMS",
    ),
}


@dataclass(frozen=True)
class Tool:
    """Terraform or OpenTofu at a version."""

    path: Path
    version: str

    @property
    def name(self) -> str:
        """The name of the program, as people type it."""
        return self.path.name.partition("-")[0]


class Toolbox:
    """Finds tools on the machine and installs the others."""

    def __init__(self) -> None:
        self._versions: dict[tuple[str, int], str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def find(self, name: ToolName, requested: str, installer: WithTools) -> Tool:
        """Returns the tool of the machine if it has the requested version, or installs it."""
        download = DOWNLOADS[name or "terraform"]
        requested = requested.removeprefix("v")
        path = shutil.which(download.program)
        present = await self._version(path) if path else ""
        if path and requested in ("", present):
            return Tool(Path(path), present)
        version = requested or download.version
        try:
            installed = await installer.tool(download.program, version, download.script())
        except PipecdError as e:
            found = f"the machine of piped has {present}" if present else "it is not in PATH"
            remedy = f"put {download.program} into PATH, correct terraformVersion, or let piped "
            remedy += "reach the releases or spec.toolMirror"
            if not _RELEASE.fullmatch(version):
                remedy = f"terraformVersion must be one release, such as {download.version}"
            raise UserMistake(
                f"there is no {download.program} {version}: {found}, and {e.message}", hint=remedy
            ) from e
        return Tool(installed, version)

    async def _version(self, path: str) -> str:
        """Returns the version of a program, which is read again when its file changes."""
        key = path, (await asyncio.to_thread(os.stat, path)).st_mtime_ns
        async with self._locks.setdefault(path, asyncio.Lock()):
            if key not in self._versions:
                env = {**os.environ, "CHECKPOINT_DISABLE": "1"}
                result = await capture([path, "version"], cwd=Path("/"), env=env, at_most=30)
                match = _VERSION.search(result.stdout.decode(errors="replace"))
                self._versions[key] = match[1] if match else ""
            return self._versions[key]
