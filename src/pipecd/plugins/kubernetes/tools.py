# SPDX-License-Identifier: Apache-2.0
"""The tools that render manifests, helm and kustomize.

They are found in PATH, else downloaded from the mirror of piped's configuration, else from their
publishers, and verified against the checksums that are published beside them.
"""

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

from pipecd.plugins.kubernetes.metrics import RecordToolCall
from pipecd.sdk import PipecdError, Unavailable, UserMistake
from pipecd.sdk.config import RenderingSpec
from pipecd.sdk.host import WithTools
from pipecd.sdk.program import Captured, LimitExceeded, capture
from pipecd.sdk.tool_download import fetch_script

# No manifests of an application are this large on purpose.
_OUTPUT_LIMIT = 64 * 1024 * 1024
# The largest program that is unpacked.
_SIZE_LIMIT = 1 << 30
_VERSION = re.compile(r"v?(\d+\.\d+\.\d+)")


@dataclass(frozen=True)
class ToolDownload:
    """Where a tool is downloaded from, with `{v}` for the version, `{os}` and `{arch}`."""

    version: str
    url: str
    checksums: str
    member: str = ""

    def script(self) -> str:
        """Returns the script that downloads the tool and verifies its checksum.

        A checksum file names the download, or it contains nothing else than one digest.
        """
        url, checksums = (
            text.format(v="{{ .Version }}", os="{{ .Os }}", arch="{{ .Arch }}")
            for text in (self.url, self.checksums)
        )
        file = url.rpartition("/")[2]
        member = self.member.format(os="{{ .Os }}", arch="{{ .Arch }}")
        # Only the content of a member is written: no links, no permissions, no other files.
        unpack = (
            f'tar -xzOf download "{member}" | head -c {_SIZE_LIMIT} > "{{{{ .OutPath }}}}"'
            if member
            else 'mv download "{{ .OutPath }}"'
        )
        return "\n".join(
            (
                fetch_script(url, checksums),
                f"expected=$(awk -v file='{file}' "
                "'$2 == file || $2 == \"*\" file || NF == 1 { print $1; exit }' checksums)",
                'echo "$expected  download" | sha256sum -c - >/dev/null',
                unpack,
                '[ -s "{{ .OutPath }}" ]',
            )
        )


DOWNLOADS: Mapping[str, ToolDownload] = {
    "helm": ToolDownload(
        version="3.18.4",
        url="https://get.helm.sh/helm-v{v}-{os}-{arch}.tar.gz",
        checksums="https://get.helm.sh/helm-v{v}-{os}-{arch}.tar.gz.sha256sum",
        member="{os}-{arch}/helm",
    ),
    "kustomize": ToolDownload(
        version="5.6.0",
        url="https://github.com/kubernetes-sigs/kustomize/releases/download/"
        "kustomize%2Fv{v}/kustomize_v{v}_{os}_{arch}.tar.gz",
        checksums="https://github.com/kubernetes-sigs/kustomize/releases/download/"
        "kustomize%2Fv{v}/checksums.txt",
        member="kustomize",
    ),
}


@dataclass(frozen=True)
class RenderTool:
    """A tool at a version; each run is recorded, and limited as `rendering` says."""

    path: Path
    name: str
    version: str
    record_call: RecordToolCall
    rendering: RenderingSpec

    async def run(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        at_most: float | None = None,
    ) -> Captured:
        """Runs the tool and returns its output."""
        limits = self.rendering
        try:
            result = await capture(
                [str(self.path), *arguments],
                cwd=cwd,
                env=env,
                stdin=stdin,
                at_most=at_most or limits.timeout or RenderingSpec().timeout,
                memory=limits.memory or RenderingSpec().memory,
                output_limit=_OUTPUT_LIMIT,
            )
        except PipecdError:
            self.record_call(self.name, self.version, arguments[0], is_success=False)
            raise
        self.record_call(self.name, self.version, arguments[0], is_success=result.code == 0)
        return result

    async def render(self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> str:
        """Runs the tool and returns the manifests that it prints; fails with its stderr."""
        try:
            result = await self.run(arguments, cwd=cwd, env=env)
        except Unavailable as e:
            raise LimitExceeded(
                f"{self.path.name} {arguments[0]} exceeds the time limit of "
                f"{self.rendering.timeout}"
            ) from e
        if result.code != 0:
            stderr = result.stderr.decode(errors="replace").strip()
            raise UserMistake(f"{self.path.name} {arguments[0]} failed: {stderr or result.code}")
        return await asyncio.to_thread(result.stdout.decode)


class Toolbox:
    """Finds tools on the machine and installs the others."""

    def __init__(self, record_call: RecordToolCall, rendering: RenderingSpec) -> None:
        self._record_call, self._rendering = record_call, rendering
        self._versions: dict[tuple[str, int], str] = {}
        self._version_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def version(self, name: str, requested: str) -> str:
        """Returns the version of the tool that `find` returns, without installing it."""
        _, present = await self._on_machine(name)
        return requested.removeprefix("v") or present or DOWNLOADS[name].version

    async def find(self, name: str, requested: str, installer: WithTools) -> RenderTool:
        """Returns the tool of the machine if it has the requested version, or installs it."""
        requested = requested.removeprefix("v")
        path, present = await self._on_machine(name)
        if path and requested in ("", present):
            return RenderTool(Path(path), name, present, self._record_call, self._rendering)
        download = DOWNLOADS[name]
        version = requested or download.version
        installed = await installer.tool(name, version, download.script())
        return RenderTool(installed, name, version, self._record_call, self._rendering)

    async def _on_machine(self, name: str) -> tuple[str, str]:
        """Returns path and version of a tool in PATH, empty without one.

        The version is read again when the file changes.
        """
        path = shutil.which(name)
        if not path:
            return "", ""
        key = path, (await asyncio.to_thread(os.stat, path)).st_mtime_ns
        async with self._version_locks.setdefault(path, asyncio.Lock()):
            if key not in self._versions:
                result = await capture([path, "version"], cwd=Path("/"), at_most=10)
                match = _VERSION.search(result.stdout.decode(errors="replace"))
                self._versions[key] = match[1] if match else ""
            return path, self._versions[key]
