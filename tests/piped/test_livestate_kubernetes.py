# SPDX-License-Identifier: Apache-2.0
"""What somebody changes on a real cluster is seen and explained, in both generations."""

import json
import time
from dataclasses import dataclass
from typing import Any

import pytest

from pipecd.model.application import SyncStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from servers.control_plane import RunPiped, ServedControlPlane, StartControlPlane
from servers.kubernetes import Kubernetes
from servers.origin import Origin
from servers.polling import eventually

FIRST = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: web
  input: {namespace: NAMESPACE}
"""
SECOND = """\
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


@dataclass
class Scene:
    """One application on a cluster, and what a test asks about it."""

    plane: ServedControlPlane
    cluster: Kubernetes
    namespace: str

    def scale(self, replicas: int) -> None:
        """What `kubectl scale` does."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/web/scale"
        form = "application/merge-patch+json"
        self.cluster.ask("PATCH", path, {"spec": {"replicas": replicas}}, form=form)

    async def application(self) -> Application:
        return await self.plane.application_named("web")

    def is_in(self, status: SyncStatus) -> Any:
        """A question for `eventually`."""

        async def ask() -> Application | None:
            application = await self.application()
            return application if application.sync_state.status == status else None

        return ask

    def has_pods(self, count: int) -> Any:
        """A question for `eventually`: does the control plane know of so many healthy pods?"""

        async def ask() -> ApplicationLiveStateSnapshot | None:
            found = await self.plane.live_state((await self.application()).id)
            if found is None:
                return None
            kinds: list[tuple[str, int]] = [
                (r.kind, r.health_status) for r in found.kubernetes.resources
            ]
            second = found.application_live_state.resources
            kinds += [(r.resource_type, r.health_status) for r in second]
            return found if kinds.count(("Pod", 1)) == count else None

        return ask


@dataclass(frozen=True)
class Place:
    """A namespace of a cluster, and how a generation of configuration names it."""

    cluster: Kubernetes
    namespace: str
    is_first: bool

    @property
    def application(self) -> str:
        """The configuration of the application."""
        return (FIRST if self.is_first else SECOND).replace("NAMESPACE", self.namespace)

    @property
    def piped(self) -> str:
        """Further lines of the configuration of piped."""
        config = {"kubeConfigPath": str(self.cluster.kubeconfig)}
        here = {"name": "here", "config": config}
        if self.is_first:
            return f"platformProviders: {json.dumps([{'type': 'KUBERNETES', **here}])}\n"
        return f"plugins: {json.dumps([{'name': 'kubernetes', 'deployTargets': [here]}])}\n"

    @property
    def fields(self) -> dict[str, Any]:
        """What the application is registered with."""
        if self.is_first:
            return {"platform_provider": "here"}
        targets = {"kubernetes": DeployTargets(deploy_targets=["here"])}
        return {"deploy_targets_by_plugin": targets}


@pytest.fixture(params=["first", "second"])
def place(request: pytest.FixtureRequest, kubernetes: Kubernetes, namespace: str) -> Place:
    return Place(kubernetes, namespace, request.param == "first")


@pytest.mark.slow
async def test_a_deployment_scaled_by_hand_is_out_of_sync_within_a_moment(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    place: Place,
) -> None:
    files = {"web/app.pipecd.yaml": place.application, "web/web.yaml": json.dumps(DEPLOYMENT)}
    commit = origin.commit(files)
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=place.piped) as piped:
        scene = Scene(plane, place.cluster, place.namespace)
        await piped.add_application("web", **place.fields)
        await eventually(scene.is_in(SyncStatus.SYNCED), 40)
        snapshot = await eventually(scene.has_pods(2), 20)
        assert snapshot.HasField("kubernetes") is place.is_first
        scene.scale(3)
        begun = time.perf_counter()
        state = (await eventually(scene.is_in(SyncStatus.OUT_OF_SYNC), 20)).sync_state
        took = time.perf_counter() - begun
        assert "1 changes" in state.short_reason
        assert f"Git at commit {commit[:7]}" in state.reason
        assert "#spec.replicas\n-   replicas: 3\n+   replicas: 2" in state.reason
        assert took < 2
        await eventually(scene.has_pods(3), 20)
        scene.scale(2)
        await eventually(scene.is_in(SyncStatus.SYNCED), 20)
