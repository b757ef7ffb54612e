# SPDX-License-Identifier: Apache-2.0
"""An application in a namespace of a real cluster, and the manifests that it is made of."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.plugins.kubernetes.plugin import ClusterPlugin
from pipecd.sdk import DeployTarget, LiveState, PluginEntry, StageStatus
from pipecd.sdk.testing import MemoryHost, StageBench
from servers.kubernetes import Kubernetes

VARIANT = "pipecd.dev/variant"


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
        place = self.directory / name
        place.mkdir(exist_ok=True)
        for number, manifest in enumerate(manifests):
            (place / f"{number}.yaml").write_text(json.dumps(manifest))
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
            directory=place,
            commit=name,
            application_id=self.namespace,
            config=json.dumps(config),
            running=running,
        )
        self.aim(bench)
        return bench

    def aim(self, bench: StageBench, *, name: str = "cluster", **settings: Any) -> None:
        """Gives a deployment a deploy target with these settings."""
        config = {"kubeConfigPath": str(self.kubernetes.kubeconfig), **settings}
        targets = [DeployTarget(name, {}, config)]
        if self.other is not None:
            there = {"kubeConfigPath": str(self.other.kubeconfig)}
            targets.append(DeployTarget("other", {}, there))
        bench.entry = PluginEntry(self.section, targets=tuple(targets))

    def patch(self, root: str, path: str, body: Any) -> None:
        """Changes an object as somebody who does not ask Git."""
        place = f"/{root}/namespaces/{self.namespace}/{path}"
        self.kubernetes.ask("PATCH", place, body, form="application/merge-patch+json")

    def live(
        self, plural: str, root: str = "apis/apps/v1", on: Kubernetes | None = None
    ) -> dict[str, Any]:
        """Returns the objects of a kind by name."""
        answer = (on or self.kubernetes).ask("GET", f"/{root}/namespaces/{self.namespace}/{plural}")
        return {item["metadata"]["name"]: item for item in answer["items"]}


def deployment(image: str = "web:v1", **labels: str) -> dict[str, Any]:
    """Returns a Deployment whose pods read the ConfigMap `settings`."""
    every = {"app": "web", **labels}
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
            "selector": {"matchLabels": every},
            "template": {"metadata": {"labels": every}, "spec": {"containers": [container]}},
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


async def look(bench: StageBench) -> LiveState:
    """Returns what the plugin tells of an application now."""
    return await bench.plugin.live_state(bench.live_context())  # type: ignore[attr-defined]


async def until(bench: StageBench, is_so: Callable[[LiveState], bool]) -> LiveState:
    """Looks until something is so, at most as long as a user would wait."""
    state = await look(bench)
    try:
        async with asyncio.timeout(30):
            while not is_so(state):
                await asyncio.sleep(0.02)
                state = await look(bench)
    except TimeoutError:
        pytest.fail(f"it never became so: {state}")
    return state
