# SPDX-License-Identifier: Apache-2.0
"""An application on Cloud Run: its commits are directories with a manifest."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipecd.plugins.cloudrun.plugin import CloudRunPlugin
from pipecd.sdk import DeployTarget, PluginEntry, UserMistake
from pipecd.sdk.testing import MemoryHost, StageBench
from servers.cloud_run import CloudRun


def manifest(image: str = "gcr.io/shop/web:v1.0", **container: Any) -> dict[str, Any]:
    """Returns a service with one container."""
    return {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {"name": "web"},
        "spec": {
            "template": {
                "metadata": {"annotations": {"autoscaling.knative.dev/maxScale": "2"}},
                "spec": {"containerConcurrency": 80, "containers": [{"image": image, **container}]},
            }
        },
    }


@dataclass
class Application:
    """The application, deployed by one plugin."""

    directory: Path
    plugin: CloudRunPlugin
    host: MemoryHost
    cloud: CloudRun
    spec: dict[str, Any] = field(default_factory=dict[str, Any])
    target: dict[str, Any] = field(default_factory=dict[str, Any])
    kind: str = "Application"

    def commit(
        self,
        commit: str,
        service: dict[str, Any] | str | None = None,
        running: StageBench | None = None,
    ) -> StageBench:
        """Returns a commit with this manifest."""
        directory = self.directory / commit
        directory.mkdir(exist_ok=True)
        content = service if isinstance(service, str) else json.dumps(service or manifest())
        (directory / "service.yaml").write_text(content)
        section = {"plugins": {"cloudrun": {}}} if self.kind == "Application" else {}
        spec = {"name": "tested", **section, **self.spec}
        config = {"apiVersion": "pipecd.dev/v1beta1", "kind": self.kind, "spec": spec}
        settings = {**self.cloud.target, **self.target}
        return StageBench(
            self.plugin,
            directory,
            entry=PluginEntry("cloudrun", {}, (DeployTarget("dev", {}, settings),)),
            host=self.host,
            commit=commit,
            config=json.dumps(config),
            running=running,
        )

    async def deploy(self, commit: str, service: dict[str, Any] | None = None) -> StageBench:
        """Deploys a commit by quick sync."""
        bench = self.commit(commit, service)
        result = await bench.run("CLOUDRUN_SYNC")
        if result.status.name != "SUCCESS":
            raise UserMistake(result.message)
        return bench
