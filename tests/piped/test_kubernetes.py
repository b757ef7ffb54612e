# SPDX-License-Identifier: Apache-2.0
"""A push reaches a real cluster through a whole piped, in both generations of configuration."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from pipecd.controlplane.stores.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.kubernetes import Kubernetes

FIRST = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: web
  input: {namespace: NAMESPACE}
  pipeline: PIPELINE
"""
SECOND = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  plugins: {kubernetes: {input: {namespace: NAMESPACE}}}
  pipeline: PIPELINE
"""
GOOD = {
    "stages": [
        {"name": "K8S_CANARY_ROLLOUT", "with": {"replicas": "50%"}},
        {"name": "K8S_PRIMARY_ROLLOUT"},
        {"name": "K8S_CANARY_CLEAN"},
    ]
}
BAD = {
    "stages": [
        {"name": "K8S_CANARY_ROLLOUT"},
        {"name": "K8S_PRIMARY_ROLLOUT"},
        {"name": "SCRIPT_RUN", "with": {"run": "false"}},
    ]
}


def deployment(image: str) -> str:
    """Returns a Deployment as a file."""
    labels = {"app": "web"}
    container = {"name": "web", "image": image}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "web"}
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    )


@dataclass(frozen=True)
class Cluster:
    """A namespace of a cluster, and how a generation of configuration names it."""

    kubernetes: Kubernetes
    namespace: str
    application: str
    piped: dict[str, Any]
    fields: dict[str, Any]

    def images(self) -> dict[str, str]:
        """Returns the image of every Deployment."""
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments"
        return {
            item["metadata"]["name"]: item["spec"]["template"]["spec"]["containers"][0]["image"]
            for item in self.kubernetes.ask("GET", path)["items"]
        }


@pytest.fixture(params=["first", "second"])
def cluster(request: pytest.FixtureRequest, kubernetes: Kubernetes, namespace: str) -> Cluster:
    place = {"name": "here", "config": {"kubeConfigPath": str(kubernetes.kubeconfig)}}
    if request.param == "first":
        piped: dict[str, Any] = {"platformProviders": [{"type": "KUBERNETES", **place}]}
        return Cluster(kubernetes, namespace, FIRST, piped, {"platform_provider": "here"})
    piped = {"plugins": [{"name": "kubernetes", "deployTargets": [place]}]}
    chosen = {"kubernetes": DeployTargets(deploy_targets=["here"])}
    return Cluster(kubernetes, namespace, SECOND, piped, {"deploy_targets_by_plugin": chosen})


@pytest.fixture
def piped_of(whole_piped: Any, origin: Any, cluster: Cluster) -> Any:
    """Runs a piped that knows the cluster."""
    more = "\n".join(f"{key}: {json.dumps(value)}" for key, value in cluster.piped.items())
    return lambda plane: whole_piped(plane, origin.remote, more=f"{more}\n")


def ended(plane: Any, count: int) -> Any:
    """A question for `eventually`: the deployments, newest first, once so many have ended."""

    async def ask() -> Any:
        listed = await plane.running.cases.deployments.listed(
            DeploymentFilter(project="demo"), by=plane.admin
        )
        done = [d for d in listed.items if DeploymentStatus(d.status).is_completed]
        return sorted(done, key=lambda d: -d.created_at) if len(done) == count else None

    return ask


@pytest.mark.slow
async def test_pushes_are_deployed_progressively_and_rolled_back(
    start_plane: Any, origin: Any, eventually: Any, cluster: Cluster, piped_of: Any
) -> None:
    text = cluster.application.replace("NAMESPACE", cluster.namespace)

    def push(image: str, pipeline: Any) -> None:
        config = text.replace("PIPELINE", json.dumps(pipeline))
        origin.commit({"web/app.pipecd.yaml": config, "web/web.yaml": deployment(image)})

    push("web:v1", GOOD)
    async with start_plane() as plane, piped_of(plane) as piped:
        await piped.add_application("web", **cluster.fields)
        (first,) = await eventually(ended(plane, 1), 40)
        assert (DeploymentStatus(first.status), first.status_reason) == (
            DeploymentStatus.SUCCESS,
            "The deployment was completed successfully",
        )
        assert cluster.images() == {"web": "web:v1"}
        push("web:v2", GOOD)
        second, _ = await eventually(ended(plane, 2), 40)
        assert [s.name for s in second.stages][:2] == ["K8S_CANARY_ROLLOUT", "K8S_PRIMARY_ROLLOUT"]
        assert "image web from v1 to v2" in second.summary
        assert cluster.images() == {"web": "web:v2"}
        push("web:v3", BAD)
        third, *_ = await eventually(ended(plane, 3), 40)
        assert DeploymentStatus(third.status) is DeploymentStatus.FAILURE
        assert cluster.images() == {"web": "web:v2"}
