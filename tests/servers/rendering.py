# SPDX-License-Identifier: Apache-2.0
"""Renders an application of a hostile branch, on a host with a secret that it must not show."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from pipecd.config.rendering import RenderingSpec
from pipecd.plugins.kubernetes.config import ChartSources, ManifestInput
from pipecd.plugins.kubernetes.loader import ManifestLoader, RenderRequest
from pipecd.sdk import PipecdError, Source
from pipecd.sdk.host import plain_git_variables
from plugins.kubernetes.testbed import NoInstaller

SECRET = "content-of-the-host"
CHART = "apiVersion: v2\nname: chart\nversion: 1.0.0\n"


def config_map(name: str, value: str = "harmless") -> str:
    """Returns the manifest of a ConfigMap."""
    return (
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{key: '{value}'}}\n"
    )


# What a host may have beside the working copy of the application.
HOST_FILES = {
    "secret": SECRET,
    "secret.env": f"KEY={SECRET}\n",
    "manifest.yaml": config_map("host", SECRET),
    "patch.yaml": config_map("a", SECRET),
    "values.yaml": f"shown: {SECRET}\n",
    "base/kustomization.yaml": "resources: [manifest.yaml]\n",
    "base/manifest.yaml": config_map("host", SECRET),
    "generator/kustomization.yaml": f"configMapGenerator: [{{name: a, literals: [k={SECRET}]}}]\n",
    "chart/Chart.yaml": CHART,
    "chart/values.yaml": f"shown: {SECRET}\n",
    "chart/templates/one.yaml": config_map("host", SECRET),
}


@dataclass(frozen=True)
class HostileBranch:
    """The files and links of a branch, with `{host}` for the directory of the host's files."""

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    input: ManifestInput = field(default_factory=ManifestInput)
    kustomize_dir: str = ""


class Renderer:
    """A host with files of its own and the working copy of one application."""

    def __init__(self, directory: Path) -> None:
        self.host, self.root = directory / "host", directory / "work"
        self.application = self.root / "apps" / "web"
        self.application.mkdir(parents=True)
        self.state = directory / "state"
        for name, text in HOST_FILES.items():
            _write(self.host / name, text)

    async def output(
        self,
        branch: HostileBranch,
        charts: ChartSources | None = None,
        *,
        rendering: RenderingSpec | None = None,
    ) -> str:
        """Returns all that rendering shows of a branch: its manifests, or the error."""
        for name, text in branch.files.items():
            _write(self.application / name, self._on_host(text))
        for name, target in branch.links.items():
            link = self.application / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(self._on_host(target))
        loader = ManifestLoader(
            charts or ChartSources(), self.state, plain_git_variables, rendering=rendering
        )
        source = Source(
            self.application, "c1", b"", "app.pipecd.yaml", self.application.parents[1] / ".pipe"
        )
        input_ = ManifestInput.model_validate(self._all_on_host(branch.input.model_dump()))
        request = RenderRequest(
            source, input_, "web", NoInstaller(), self._on_host(branch.kustomize_dir)
        )
        try:
            return "---\n".join(yaml.safe_dump(m.body) for m in await loader.load(request))
        except PipecdError as e:
            return f"refused: {e}"

    def _on_host(self, text: str) -> str:
        up = os.path.relpath(self.host, self.application)
        text = text.replace("{host}", str(self.host)).replace("{up}", up)
        text = text.replace("{application}", str(self.application))
        # Helm removes the backslashes of a set file, so that harmless names lead upwards.
        return text.replace("{escaped}", up.replace("..", r".\."))

    def _all_on_host(self, value: Any) -> Any:
        match value:
            case str():
                return self._on_host(value)
            case dict():
                items = cast("dict[str, Any]", value).items()
                return {self._on_host(k): self._all_on_host(v) for k, v in items}
            case tuple():
                return tuple(map(self._all_on_host, cast("tuple[Any, ...]", value)))
            case _:
                return value


def make_repository(directory: Path) -> None:
    """Makes a directory a Git repository of one commit."""
    for arguments in (
        ["init", "-q", "-b", "main"],
        ["add", "."],
        ["commit", "-qm", "c"],
        ["tag", "v1"],
    ):
        who = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *who, "-C", str(directory), *arguments], check=True)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
