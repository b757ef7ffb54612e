# SPDX-License-Identifier: Apache-2.0
"""A push that changes no manifest renders none again, with a whole piped and a real cluster."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from servers.control_plane import RunPiped, StartControlPlane
from servers.kubernetes import Kubernetes
from servers.origin import Origin
from servers.polling import eventually

CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: web
  input: {namespace: NAMESPACE}
"""
OBJECT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\n"


@pytest.fixture
def builds(
    kustomize: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], list[str]]:
    """Returns how Kustomize was called."""
    counting, calls = tmp_path / "bin" / "kustomize", tmp_path / "calls"
    counting.parent.mkdir()
    counting.write_text(f'#!/bin/sh\necho $1 >> {calls}\nexec {kustomize} "$@"\n')
    counting.chmod(0o755)
    monkeypatch.setenv("PATH", str(counting.parent), prepend=":")
    return lambda: calls.read_text().split()


@pytest.fixture
def piped_of(whole_piped: RunPiped, origin: Origin, kubernetes: Kubernetes, namespace: str) -> Any:
    """Runs a piped that knows the cluster, with an application whose base is elsewhere."""
    origin.commit(
        {
            "web/app.pipecd.yaml": CONFIG.replace("NAMESPACE", namespace),
            "web/kustomization.yaml": "resources: [../base]\n",
            "base/kustomization.yaml": "resources: [settings.yaml]\n",
            "base/settings.yaml": OBJECT,
        }
    )
    config = {"kubeConfigPath": str(kubernetes.kubeconfig)}
    provider = {"type": "KUBERNETES", "name": "here", "config": config}
    more = f"platformProviders: {json.dumps([provider])}\n"
    return lambda plane: whole_piped(plane, origin.remote, more=more)


async def test_a_push_that_changes_no_manifest_renders_none_again(
    start_plane: StartControlPlane,
    origin: Origin,
    piped_of: Any,
    builds: Callable[[], list[str]],
) -> None:
    async with start_plane() as plane, piped_of(plane) as piped:

        async def statuses(commit: str) -> list[DeploymentStatus] | None:
            listed = await plane.cases.deployments.list(
                DeploymentFilter(project="demo"), by=plane.admin
            )
            found = [d for d in listed.items if d.trigger.commit.hash == commit]
            ended = [DeploymentStatus(d.status) for d in found if d.completed_at]
            return ended or None

        async def deployed(commit: str) -> None:
            ended = await eventually(lambda: statuses(commit), 40)
            assert ended == [DeploymentStatus.SUCCESS]

        await piped.add_application("web", platform_provider="here")
        await deployed(origin.git("rev-parse", "HEAD"))
        await deployed(origin.commit({"web/README.md": "about it"}))
        assert builds() == ["version", "build"]
        both = {"web/README.md": "again", "base/settings.yaml": OBJECT + "data: {a: '1'}\n"}
        await deployed(origin.commit(both))
    assert builds() == ["version", "build", "build"]
