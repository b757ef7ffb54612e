# SPDX-License-Identifier: Apache-2.0
"""An application that Terraform deploys: its commits are directories, its state is a file."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.plugins.terraform.plugin import TerraformPlugin
from pipecd.sdk import DeployTarget, PluginEntry
from pipecd.sdk.testing import MemoryHost, StageBench

PIPELINE = ("TERRAFORM_PLAN", "WAIT_APPROVAL", "TERRAFORM_APPLY")


def data(**resources: str) -> str:
    """Returns the HCL of one `terraform_data` for each name, with its input."""
    return "\n".join(
        f'resource "terraform_data" "{name}" {{\n  input = "{value}"\n}}'
        for name, value in resources.items()
    )


@dataclass
class Application:
    """The application, deployed by one plugin."""

    directory: Path
    plugin: TerraformPlugin
    host: MemoryHost
    section: dict[str, Any] = field(default_factory=dict[str, Any])
    target: dict[str, Any] = field(default_factory=dict[str, Any])
    stages: Sequence[str] = ()
    backend: str = ""
    """The block of the backend; by default the state is a file."""

    @property
    def state(self) -> dict[str, Any]:
        """The state of Terraform."""
        read: dict[str, Any] = json.loads((self.directory / "state" / "tf.json").read_bytes())
        return read

    @property
    def inputs(self) -> dict[str, str]:
        """The inputs of all resources in the state, by name."""
        return {
            resource["name"]: resource["instances"][0]["attributes"]["input"]["value"]
            for resource in self.state["resources"]
        }

    def commit(
        self, name: str, text: str, *, files: Mapping[str, str] | None = None, backend: bool = True
    ) -> StageBench:
        """Returns a commit with this configuration."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        path = json.dumps(str(self.directory / "state" / "tf.json"))
        local = f'terraform {{\n  backend "local" {{\n    path = {path}\n  }}\n}}\n'
        head = self.backend or local
        (directory / "main.tf").write_text((head if backend else "") + text)
        for file, content in (files or {}).items():
            (directory / file).parent.mkdir(exist_ok=True, parents=True)
            (directory / file).write_text(content)
        spec: dict[str, Any] = {"name": "tested", "plugins": {"terraform": self.section}}
        if self.stages:
            spec["pipeline"] = {"stages": [{"name": stage} for stage in self.stages]}
        config = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
        return StageBench(
            self.plugin,
            directory,
            entry=PluginEntry("terraform", {}, (DeployTarget("dev", {}, self.target),)),
            host=self.host,
            commit=name,
            config=json.dumps(config),
        )


def has_begun(application: Application) -> bool:
    """Reports whether a resource has printed so."""
    return any(line.endswith("begun") for line in application.host.lines)


KILLED = """
resource "terraform_data" "first" {
  input = "v1"
}
resource "terraform_data" "slow" {
  input      = "v1"
  depends_on = [terraform_data.first]
  provisioner "local-exec" {
    command = "test -e FLAG || { touch FLAG; echo begun; sleep 60; }"
  }
}
"""


def kill_terraform(directory: Path) -> None:
    """Kills the program that runs in a directory, with everything that it started."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_here = (process / "cwd").readlink() == directory
            if is_here and b"apply" in (process / "cmdline").read_bytes().split(b"\0"):
                os.killpg(os.getpgid(int(process.name)), signal.SIGKILL)
