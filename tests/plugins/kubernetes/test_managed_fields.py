# SPDX-License-Identifier: Apache-2.0
"""An application that upstream applied with kubectl is taken over."""

import asyncio
import json
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from pipecd.sdk import SyncStatus
from plugins.kubernetes.testbed import (
    Application,
    config_map,
    deployment,
    live_state,
    service,
    succeed,
    wait_for_live_state,
)

# Upstream's hash of the ConfigMap below, which its piped wrote on the pod template.
CONFIG_HASH = "gd4k275f27"


@dataclass(frozen=True)
class Kubectl:
    """Kubectl in the namespace of an application."""

    program: str
    application: Application

    def __call__(self, *arguments: str, body: Any = None) -> str:
        application = self.application
        namespace_flag = f"--namespace={application.namespace}"
        config = f"--kubeconfig={application.kubernetes.kubeconfig}"
        command = [self.program, config, namespace_flag, *arguments]
        text = None if body is None else json.dumps(body)
        return subprocess.run(
            command, input=text, capture_output=True, text=True, check=True
        ).stdout

    def pods(self) -> set[str]:
        listed = json.loads(self("get", "pods", "-o", "json"))
        return {pod["metadata"]["uid"] for pod in listed["items"]}


def tracked(manifest: dict[str, Any], namespace: str, *, labelled: bool) -> dict[str, Any]:
    """Returns an object as upstream hands it to kubectl; its first generation sets no labels."""
    name, kind, version = manifest["metadata"]["name"], manifest["kind"], manifest["apiVersion"]
    both = {
        "pipecd.dev/managed-by": "piped",
        "pipecd.dev/piped": "piped-1",
        "pipecd.dev/application": namespace,
        "pipecd.dev/commit-hash": "c0",
        "pipecd.dev/variant": "primary",
    }
    group = version.rpartition("/")[0] if labelled else version
    annotations = {
        **both,
        "pipecd.dev/original-api-version": version,
        "pipecd.dev/resource-key": f"{group}:{kind}:{namespace}:{name}",
    }
    metadata: dict[str, Any] = {"name": name, "annotations": annotations}
    labelled_manifest = {
        **manifest,
        "metadata": {**metadata, **({"labels": both} if labelled else {})},
    }
    if kind == "Deployment":
        labelled_manifest = json.loads(json.dumps(labelled_manifest))
        pods = labelled_manifest["spec"]["template"]["metadata"]
        pods["annotations"] = {"pipecd.dev/config-hash": CONFIG_HASH}
    return labelled_manifest


@pytest.mark.parametrize("labelled", [False, True], ids=["first generation", "second generation"])
async def test_an_application_is_taken_over_without_a_restart_and_drifts_by_one_field(
    application: Application, kubectl: str, labelled: bool
) -> None:
    run = Kubectl(kubectl, application)
    manifests = (deployment(), service(), config_map(a="1"))
    for manifest in manifests:
        run("apply", "-f", "-", body=tracked(manifest, application.namespace, labelled=labelled))
    run("rollout", "status", "deployment/web", "--timeout=20s")
    pods = run.pods()
    assert len(pods) == 2
    settings: dict[str, Any] = {"suffixFromVariantLabel": not labelled}
    bench = application.commit("c1", *manifests, **settings)
    assert (await live_state(bench)).sync.status is SyncStatus.SYNCED
    await succeed(bench, "K8S_SYNC", {"prune": True, "readyWithin": "20s"})
    assert run.pods() == pods
    assert len(application.live("replicasets")) == 1
    await wait_for_live_state(bench, lambda state: state.sync.status is SyncStatus.SYNCED)
    run("scale", "deployment/web", "--replicas=5")
    state = await wait_for_live_state(
        bench, lambda state: state.sync.status is SyncStatus.OUT_OF_SYNC
    )
    shown = state.sync.details.partition("+++ Expected (Git)\n")[2].splitlines()
    differing = [line for line in shown if line.startswith(("-", "+"))]
    assert differing == ["-   replicas: 5", "+   replicas: 2"]
    await asyncio.to_thread(run, "rollout", "status", "deployment/web", "--timeout=20s")
    await succeed(bench, "K8S_SYNC", {"readyWithin": "20s"})
    assert application.live("deployments")["web"]["spec"]["replicas"] == 2
    await wait_for_live_state(bench, lambda state: state.sync.status is SyncStatus.SYNCED)
