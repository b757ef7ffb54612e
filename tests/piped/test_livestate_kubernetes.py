# SPDX-License-Identifier: Apache-2.0
"""Drift on a real cluster is reported with its reason, for v0 and v1 configurations."""

import json
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from pipecd.model.application import SyncStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from servers.control_plane import LocalControlPlane, RunPiped, StartControlPlane
from servers.environment import matching_sync_state
from servers.kubernetes import Kubernetes
from servers.origin import Origin
from servers.polling import eventually

V0 = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: web
  input: {namespace: NAMESPACE}
"""
V1 = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  plugins: {kubernetes: {input: {namespace: NAMESPACE}}}
"""
LABELS = {"app": "web"}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {"containers": [{"name": "web", "image": "web:v1"}]},
        },
    },
}


async def snapshot_with_pods(
    plane: LocalControlPlane, application_id: str, count: int
) -> ApplicationLiveStateSnapshot | None:
    """The reported live state, if it has so many healthy pods."""
    snapshot = await plane.live_state(application_id)
    if snapshot is None:
        return None
    kinds: list[tuple[str, int]] = [
        (r.kind, r.health_status) for r in snapshot.kubernetes.resources
    ]
    v1 = snapshot.application_live_state.resources
    kinds += [(r.resource_type, r.health_status) for r in v1]
    return snapshot if kinds.count(("Pod", 1)) == count else None


@dataclass(frozen=True)
class DeployTarget:
    """A namespace of a cluster, and the configurations that name it in v0 or v1."""

    cluster: Kubernetes
    namespace: str
    is_v0: bool

    def scale(self, replicas: int) -> None:
        """Does what `kubectl scale` does."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/web/scale"
        form = "application/merge-patch+json"
        self.cluster.ask("PATCH", path, {"spec": {"replicas": replicas}}, form=form)

    @property
    def application(self) -> str:
        """The configuration of the application."""
        return (V0 if self.is_v0 else V1).replace("NAMESPACE", self.namespace)

    @property
    def piped(self) -> str:
        """The deploy target in the configuration of piped."""
        config = {"kubeConfigPath": str(self.cluster.kubeconfig)}
        here = {"name": "here", "config": config}
        if self.is_v0:
            return f"platformProviders: {json.dumps([{'type': 'KUBERNETES', **here}])}\n"
        return f"plugins: {json.dumps([{'name': 'kubernetes', 'deployTargets': [here]}])}\n"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields with which the application is registered."""
        if self.is_v0:
            return {"platform_provider": "here"}
        targets = {"kubernetes": DeployTargets(deploy_targets=["here"])}
        return {"deploy_targets_by_plugin": targets}


@pytest.fixture(params=["v0", "v1"])
def target(request: pytest.FixtureRequest, kubernetes: Kubernetes, namespace: str) -> DeployTarget:
    return DeployTarget(kubernetes, namespace, request.param == "v0")


@pytest.mark.slow
async def test_a_deployment_scaled_by_hand_is_out_of_sync_at_once(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    target: DeployTarget,
) -> None:
    files = {"web/app.pipecd.yaml": target.application, "web/web.yaml": json.dumps(DEPLOYMENT)}
    commit = origin.commit(files)
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, more=target.piped) as piped,
    ):
        web = await piped.add_application("web", **target.fields)
        has_status = partial(matching_sync_state, plane, web)
        has_pods = partial(snapshot_with_pods, plane, web)
        await eventually(partial(has_status, SyncStatus.SYNCED), 40)
        snapshot = await eventually(partial(has_pods, 2), 20)
        assert snapshot.HasField("kubernetes") is target.is_v0
        target.scale(3)
        started = time.perf_counter()
        state = await eventually(partial(has_status, SyncStatus.OUT_OF_SYNC), 20)
        took = time.perf_counter() - started
        assert "1 changes" in state.short_reason
        assert f"Git at commit {commit[:7]}" in state.reason
        assert "#spec.replicas\n-   replicas: 3\n+   replicas: 2" in state.reason
        assert took < 2
        await eventually(partial(has_pods, 3), 20)
        target.scale(2)
        await eventually(partial(has_status, SyncStatus.SYNCED), 20)
