# SPDX-License-Identifier: Apache-2.0
"""An application in a namespace of a cluster, and its manifests."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.kubernetes.manifest import Manifest
from pipecd.plugins.kubernetes.plugin import ClusterPlugin
from pipecd.sdk import DeployTarget, LiveState, PluginEntry, StageStatus
from pipecd.sdk.host import WithTools
from pipecd.sdk.testing import MemoryHost, StageBench
from servers.kubernetes import Kubernetes

VARIANT = "pipecd.dev/variant"


class NoInstaller(WithTools):
    """Fails when a tool is to be installed: it must be on the machine."""

    async def tool(self, name: str, version: str, script: str) -> Path:
        raise AssertionError(f"{name} {version} was to be installed")


@dataclass
class Application:
    """An application in a namespace of its own."""

    kubernetes: Kubernetes
    namespace: str
    directory: Path
    plugin: ClusterPlugin
    host: MemoryHost
    section: str = "kubernetes"
    other: Kubernetes | None = None

    def commit(
        self,
        name: str,
        *manifests: dict[str, Any],
        running: StageBench | None = None,
        pipeline: Sequence[str] = (),
        **spec: Any,
    ) -> StageBench:
        """Returns a deployment of a commit with these manifests and stages."""
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        for number, manifest in enumerate(manifests):
            (directory / f"{number}.yaml").write_text(json.dumps(manifest))
        settings = {"input": {"namespace": self.namespace}, **spec}
        config = {
            "apiVersion": "pipecd.dev/v1beta1",
            "kind": "Application",
            "spec": {
                "name": "web",
                "plugins": {self.section: settings},
                "pipeline": {"stages": [{"name": stage} for stage in pipeline]},
            },
        }
        bench = StageBench(
            plugin=self.plugin,
            directory=directory,
            commit=name,
            application_id=self.namespace,
            config=json.dumps(config),
            running=running,
        )
        self.set_target(bench)
        return bench

    def set_target(self, bench: StageBench, *, name: str = "cluster", **settings: Any) -> None:
        """Gives a deployment a deploy target with these settings."""
        config = {"kubeConfigPath": str(self.kubernetes.kubeconfig), **settings}
        targets = [DeployTarget(name, {}, config)]
        if self.other is not None:
            other = {"kubeConfigPath": str(self.other.kubeconfig)}
            targets.append(DeployTarget("other", {}, other))
        bench.entry = PluginEntry(self.section, targets=tuple(targets))

    def patch(self, root: str, path: str, body: Any) -> None:
        """Patches a live object outside of Git."""
        url = f"/{root}/namespaces/{self.namespace}/{path}"
        self.kubernetes.ask("PATCH", url, body, form="application/merge-patch+json")

    def live(
        self, plural: str, root: str = "apis/apps/v1", on: Kubernetes | None = None
    ) -> dict[str, Any]:
        """Returns the objects of a kind by name."""
        response = (on or self.kubernetes).ask(
            "GET", f"/{root}/namespaces/{self.namespace}/{plural}"
        )
        return {item["metadata"]["name"]: item for item in response["items"]}


def manifest(kind: str, name: str, version: str = "v1", /, **fields: Any) -> Manifest:
    """Returns a minimal object; `metadata` is added to its name."""
    metadata = {"name": name, **fields.pop("metadata", {})}
    body = {"apiVersion": version, "kind": kind, "metadata": metadata, **fields}
    return Manifest(body, "app.yaml:1")


def deployment(image: str = "web:v1", **labels: str) -> dict[str, Any]:
    """Returns a Deployment whose pods read the ConfigMap `settings`."""
    labels = {"app": "web", **labels}
    container = {
        "name": "web",
        "image": image,
        "envFrom": [{"configMapRef": {"name": "settings", "optional": True}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def config_map(name: str = "settings", **data: str) -> dict[str, Any]:
    """Returns a ConfigMap."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def service(**selector: str) -> dict[str, Any]:
    """Returns a Service."""
    spec = {"selector": {"app": "web", **selector}, "ports": [{"port": 80}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}


async def succeed(
    bench: StageBench, stage: str, options: dict[str, Any] | None = None, *, index: int = 0
) -> None:
    """Runs a stage that has to succeed."""
    is_rollback = stage.endswith("ROLLBACK")
    result = await bench.run(stage, options, index=index, is_rollback=is_rollback)
    assert result.status == StageStatus.SUCCESS, (result.message, bench.host.lines)


def image(item: dict[str, Any]) -> str:
    """Returns the image of a workload."""
    return item["spec"]["template"]["spec"]["containers"][0]["image"]


async def live_state(bench: StageBench) -> LiveState:
    """Returns the live state that the plugin reports now."""
    return await bench.plugin.live_state(bench.live_context())  # type: ignore[attr-defined]


async def wait_for_live_state(bench: StageBench, matches: Callable[[LiveState], bool]) -> LiveState:
    """Queries the live state until it matches."""
    state = await live_state(bench)
    try:
        async with asyncio.timeout(30):
            while not matches(state):
                await asyncio.sleep(0.02)
                state = await live_state(bench)
    except TimeoutError:
        pytest.fail(f"the live state did not match in time: {state}")
    return state
