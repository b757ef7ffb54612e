# SPDX-License-Identifier: Apache-2.0
"""A push reaches a real cluster through a whole piped, in both generations of configuration."""

import json
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.control_plane import RunPiped, StartControlPlane
from servers.git_http import GitHttp
from servers.kubernetes import Kubernetes
from servers.origin import NewOrigin, Origin
from servers.polling import eventually
from servers.prometheus import Prometheus

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


ANALYSED = {
    "stages": [
        {"name": "K8S_CANARY_ROLLOUT", "with": {"createService": True}},
        {
            "name": "ANALYSIS",
            "with": {
                "duration": "20s",
                "metrics": [
                    {
                        "provider": "metrics",
                        "query": "vector(0.2)",
                        "expected": {"max": 0.1},
                        "interval": "1s",
                    }
                ],
            },
        },
        {"name": "K8S_PRIMARY_ROLLOUT"},
        {"name": "K8S_CANARY_CLEAN"},
    ]
}
MULTI = "kubernetes_multicluster"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "kubernetes.md"


def deployment(image: str, **more: str) -> str:
    """Returns a Deployment as a file."""
    labels = {"app": "web", **more}
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

    def live(self, plural: str, root: str = "api/v1") -> dict[str, Any]:
        """Returns the objects of a kind by name."""
        answer = self.kubernetes.ask("GET", f"/{root}/namespaces/{self.namespace}/{plural}")
        return {item["metadata"]["name"]: item for item in answer["items"]}

    def images(self) -> dict[str, str]:
        """Returns the image of every Deployment."""
        return {
            name: item["spec"]["template"]["spec"]["containers"][0]["image"]
            for name, item in self.live("deployments", "apis/apps/v1").items()
        }

    def contents(self) -> dict[str, Any]:
        """Returns what was deployed, without what the server and its controllers add to it."""
        roots = {"deployments": "apis/apps/v1", "services": "api/v1", "configmaps": "api/v1"}
        return {
            f"{plural}/{name}": item.get("spec", item.get("data"))
            for plural, root in roots.items()
            for name, item in self.live(plural, root).items()
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
def piped_of(whole_piped: RunPiped, origin: Origin, cluster: Cluster) -> Any:
    """Runs a piped that knows the cluster."""
    more = "\n".join(f"{key}: {json.dumps(value)}" for key, value in cluster.piped.items())
    return lambda plane: whole_piped(plane, origin.remote, more=f"{more}\n")


def ended(plane: Any, count: int) -> Any:
    """A question for `eventually`: the deployments, newest first, once so many have ended."""

    async def ask() -> Any:
        listed = await plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=plane.admin
        )
        done = [d for d in listed.items if DeploymentStatus(d.status).is_completed]
        return sorted(done, key=lambda d: -d.created_at) if len(done) == count else None

    return ask


@pytest.mark.slow
async def test_pushes_are_deployed_progressively_and_rolled_back(
    start_plane: StartControlPlane, origin: Origin, cluster: Cluster, piped_of: Any
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


def service(**selector: str) -> str:
    """Returns a Service as a file."""
    spec = {"selector": {"app": "web", **selector}, "ports": [{"port": 80}]}
    return json.dumps(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec}
    )


def settings(value: str) -> str:
    """Returns a ConfigMap as a file."""
    metadata, data = {"name": "settings"}, {"value": value}
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["first"], indirect=True)
async def test_a_canary_that_fails_its_analysis_leaves_nothing_behind(
    start_plane: StartControlPlane,
    origin: Origin,
    cluster: Cluster,
    piped_of: Any,
    prometheus: Prometheus,
) -> None:
    provider = {"name": "metrics", "type": "PROMETHEUS", "config": {"address": prometheus.url}}
    cluster.piped["analysisProviders"] = [provider]
    config = cluster.application.replace("NAMESPACE", cluster.namespace)
    config = config.replace("PIPELINE", json.dumps(ANALYSED))
    files = {
        "web/app.pipecd.yaml": config,
        "web/web.yaml": deployment("web:v1"),
        "web/service.yaml": service(),
        "web/settings.yaml": settings("one"),
    }
    origin.commit(files)
    async with start_plane() as plane, piped_of(plane) as piped:
        await piped.add_application("web", **cluster.fields)
        await eventually(ended(plane, 1), 40)
        before = cluster.contents()
        origin.commit({"web/web.yaml": deployment("web:v2"), "web/settings.yaml": settings("two")})
        await eventually(lambda: "web-canary" in cluster.images(), 40)
        second, _ = await eventually(ended(plane, 2), 60)
        assert DeploymentStatus(second.status) is DeploymentStatus.FAILURE
        stages = {stage.name: StageStatus(stage.status) for stage in second.stages}
        assert stages["ANALYSIS"] is StageStatus.FAILURE
        assert stages["K8S_ROLLBACK"] is StageStatus.SUCCESS
        assert stages["K8S_PRIMARY_ROLLOUT"] is StageStatus.NOT_STARTED_YET
        assert cluster.contents() == before


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["second"], indirect=True)
async def test_blue_and_green_of_the_guide_change_places(
    start_plane: StartControlPlane, origin: Origin, cluster: Cluster, piped_of: Any
) -> None:
    sample = GUIDE.read_text().split("## Blue and green")[1].split("```yaml\n")[1].split("```")[0]
    config = yaml.safe_load(sample)
    config["spec"]["plugins"]["kubernetes"] = {
        "service": {"name": "web"},
        "input": {"namespace": cluster.namespace},
    }
    primary = {"pipecd.dev/variant": "primary"}

    def selected() -> str:
        return cluster.live("services")["web"]["spec"]["selector"]["pipecd.dev/variant"]

    async def waiting() -> Any:
        listed = await plane.cases.deployments.list(
            DeploymentFilter(project="demo"), by=plane.admin
        )
        return next(
            (
                (deployment.id, stage.id)
                for deployment in listed.items
                for stage in deployment.stages
                if stage.name == "WAIT_APPROVAL" and stage.status == StageStatus.RUNNING
            ),
            None,
        )

    origin.commit(
        {
            "web/app.pipecd.yaml": json.dumps(config),
            "web/web.yaml": deployment("web:v1", **primary),
            "web/service.yaml": service(**primary),
        }
    )
    async with start_plane() as plane, piped_of(plane) as piped:
        await piped.add_application("web", **cluster.fields)
        await eventually(ended(plane, 1), 40)
        origin.commit({"web/web.yaml": deployment("web:v2", **primary)})
        blue_green = await eventually(waiting, 40)
        assert cluster.images() == {"web": "web:v1", "web-canary": "web:v2"}
        assert selected() == "canary"
        green = cluster.live("deployments", "apis/apps/v1")["web-canary"]
        assert green["status"]["availableReplicas"] == 2
        await plane.cases.deployments.approve(*blue_green, by=plane.admin)
        second, _ = await eventually(ended(plane, 2), 40)
        assert DeploymentStatus(second.status) is DeploymentStatus.SUCCESS, second.status_reason
        assert cluster.images() == {"web": "web:v2"}
        assert selected() == "primary"


CHART = {
    "Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\n",
    "templates/settings.yaml": settings("{{ .Release.Name }}"),
}


@pytest.fixture
def helm_is_here(helm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(Path(helm).parent), prepend=":")


@pytest.mark.slow
@pytest.mark.usefixtures("helm_is_here")
@pytest.mark.parametrize("cluster", ["first"], indirect=True)
async def test_a_chart_of_a_private_repository_is_read_as_piped_reads_its_own(
    start_plane: StartControlPlane,
    new_origin: NewOrigin,
    cluster: Cluster,
    whole_piped: RunPiped,
    git_http: GitHttp,
) -> None:
    charts, site = new_origin("charts"), new_origin("site")
    charts.commit({f"web/{name}": text for name, text in CHART.items()})
    git_http.require("ann", "open sesame")

    def url(origin: Origin) -> str:
        return git_http.url(str(origin.path.relative_to(git_http.root) / ".git"))

    chart = {"gitRemote": url(charts), "ref": "main", "path": "web"}
    spec = {"name": "web", "input": {"namespace": cluster.namespace, "helmChart": chart}}
    config = {"apiVersion": "pipecd.dev/v1beta1", "kind": "KubernetesApp", "spec": spec}
    site.commit({"web/app.pipecd.yaml": json.dumps(config)})
    password = b64encode(b"open sesame").decode()
    known = {**cluster.piped, "git": {"username": "ann", "password": password}}
    more = "".join(f"{key}: {json.dumps(value)}\n" for key, value in known.items())
    async with start_plane() as plane, whole_piped(plane, url(site), more=more) as piped:
        await piped.add_application("web", **cluster.fields)
        (done,) = await eventually(ended(plane, 1), 40)
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
    assert cluster.live("configmaps")["settings"]["data"] == {"value": "web"}


@dataclass(frozen=True)
class TwoPlaces:
    """Two namespaces that stand for two clusters; objects name none, so each account decides."""

    kubernetes: Kubernetes
    names: Mapping[str, str]
    targets: list[dict[str, Any]]

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/{self.names[name]}/configmaps/settings"

    def values(self) -> list[str]:
        return [self.kubernetes.ask("GET", self.path(n))["data"]["value"] for n in self.names]


@pytest.fixture
def two_places(kubernetes: Kubernetes, namespace: str, tmp_path: Path) -> TwoPlaces:
    names = {"here": namespace, "there": f"{namespace}-there"}
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": names["there"]}}
    kubernetes.ask("POST", "/api/v1/namespaces", body)
    targets: list[dict[str, Any]] = []
    for name, place in names.items():
        account = yaml.safe_load(kubernetes.kubeconfig.read_text())
        account["contexts"][0]["context"]["namespace"] = place
        (file := tmp_path / name).write_text(json.dumps(account))
        targets.append({"name": name, "config": {"kubeConfigPath": str(file)}})
    return TwoPlaces(kubernetes, names, targets)


@pytest.mark.slow
async def test_a_deployment_that_fails_on_one_of_two_clusters_is_rolled_back_on_both(
    start_plane: StartControlPlane,
    origin: Origin,
    whole_piped: RunPiped,
    two_places: TwoPlaces,
) -> None:
    spec = {"name": "web", "plugins": {MULTI: {}}}
    config = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
    origin.commit({"web/app.pipecd.yaml": json.dumps(config), "web/all.yaml": settings("one")})
    more = f"plugins: {json.dumps([{'name': MULTI, 'deployTargets': two_places.targets}])}\n"
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        chosen = {MULTI: DeployTargets(deploy_targets=list(two_places.names))}
        await piped.add_application("web", deploy_targets_by_plugin=chosen)
        await eventually(ended(plane, 1), 40)
        assert two_places.values() == ["one", "one"]
        # From now on one of them refuses every change.
        form, there = "application/merge-patch+json", two_places.path("there")
        two_places.kubernetes.ask("PATCH", there, {"immutable": True}, form=form)
        origin.commit({"web/all.yaml": settings("two")})
        second, _ = await eventually(ended(plane, 2), 40)
    assert DeploymentStatus(second.status) is DeploymentStatus.FAILURE
    assert "here: 1 object is as in commit" in second.status_reason
    assert "there: ConfigMap settings (all.yaml:1) was not applied" in second.status_reason
    stages = {stage.name: StageStatus(stage.status) for stage in second.stages}
    assert stages == {
        "K8S_MULTI_SYNC": StageStatus.FAILURE,
        "K8S_MULTI_ROLLBACK": StageStatus.SUCCESS,
    }
    assert two_places.values() == ["one", "one"]
