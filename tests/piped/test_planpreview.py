# SPDX-License-Identifier: Apache-2.0
"""`pipectl plan-preview` with whole pipeds; merging the branch deploys what it showed."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipecd.commandline.main import run
from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.usecases import plan_previews as previews
from pipecd.model.deployment import DeploymentStatus
from pipecd.pipectl.cli import tree
from pipecd.proto.model.common_pb2 import ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.control_plane import RunPiped, StartControlPlane
from servers.kubernetes import Kubernetes
from servers.origin import Origin
from servers.polling import eventually

SCRIPT = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  labels: {env: dev}
  pipeline: {stages: [{name: SCRIPT_RUN, with: {run: cat words}}]}
"""
WEB = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  labels: {env: dev}
  plugins: {kubernetes: {input: {namespace: NAMESPACE}}}
  pipeline:
    stages:
      - {name: K8S_CANARY_ROLLOUT, with: {replicas: 50%}}
      - {name: K8S_PRIMARY_ROLLOUT}
      - {name: K8S_CANARY_CLEAN}
"""

Previewed = Callable[..., Awaitable[tuple[str, dict[str, Any]]]]


def web(image: str, replicas: int = 1) -> str:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [{"name": "web", "image": image}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": "web"}
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    )


@pytest.fixture
def previewed(
    origin: Origin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[Any], Previewed]:
    """Types `pipectl plan-preview` and returns what it prints and writes."""

    def at(plane: Any) -> Previewed:
        how = ["--address", plane.address, "--api-key", plane.api_key, "--insecure"]
        out = tmp_path / "preview.json"

        async def preview(commit: str, branch: str = "feature") -> tuple[str, dict[str, Any]]:
            line = ["plan-preview", "--repo-remote-url", origin.remote, "--base-branch", "main"]
            line += ["--head-branch", branch, "--head-commit", commit, "--out", str(out), *how]
            capsys.readouterr()
            assert await asyncio.to_thread(run, tree(), line) == 0
            return capsys.readouterr().out, json.loads(out.read_text())

        return preview

    return at


def branch(origin: Origin, files: dict[str, str], name: str = "feature") -> str:
    origin.git("checkout", "-q", "-b", name)
    made = origin.commit(files)
    origin.git("checkout", "-q", "main")
    return made


async def deployments(plane: Any) -> tuple[Deployment, ...]:
    listed = await plane.cases.deployments.list(DeploymentFilter(project="demo"), by=plane.admin)
    return tuple(listed.items)


def ended(plane: Any, commit: str, application: str) -> Callable[[], Awaitable[Deployment | None]]:
    """A question for `eventually`: the deployment of a commit, once it has ended."""

    async def ask() -> Deployment | None:
        for made in await deployments(plane):
            if (made.trigger.commit.hash, made.application_name) == (commit, application):
                return made if DeploymentStatus(made.status).is_completed else None
        return None

    return ask


async def test_a_branch_is_previewed_and_nothing_is_deployed(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    previewed: Any,
) -> None:
    files = {f"{n}/app.pipecd.yaml": SCRIPT.replace("NAME", n) for n in ("cart", "shop", "far")}
    first = origin.commit({**files, **{f"{n}/words": "hello" for n in ("cart", "shop", "far")}})
    async with start_plane() as plane, whole_piped(plane, origin.remote) as piped:
        for name in ("cart", "shop", "far"):
            await piped.add_application(name)
            assert await eventually(ended(plane, first, name), 30)
        text, _ = await previewed(plane)(branch(origin, {"README": "x"}, "docs"), "docs")
        assert "There are no updated applications." in text
        broken = {"shop/app.pipecd.yaml": "kind: [broken", "cart/words": "bye"}
        head = branch(origin, broken)
        text, out = await previewed(plane)(head)
        assert len(await deployments(plane)) == 3, "nothing was deployed by a preview"
    assert "Here are plan-preview for 1 application:\n\n1. app: cart, env: dev, " in text
    assert "\n  sync strategy: PIPELINE\n  plugin(s): scriptrun\n" in text
    assert "NOTE: An error occurred while building plan-preview for the following app" in text
    (cart,), (shop,) = out["Applications"], out["FailureApplications"]
    assert (cart["ApplicationName"], cart["SyncStrategy"]) == ("cart", "PIPELINE")
    assert (cart["NoChange"], cart["PluginPlanResults"]) == (False, None)
    assert shop["Reason"].startswith("failed while determining the application should be")
    assert out["FailurePipeds"] is None


async def test_every_piped_of_the_repository_answers_and_an_offline_one_is_listed(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    previewed: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(previews, "RECONNECT", timedelta())
    names = {"cart": "dev", "shop": "prod"}
    files = {f"{n}/app.pipecd.yaml": SCRIPT.replace("NAME", n) for n in names}
    first = origin.commit({**files, **{f"{n}/words": "hello" for n in names}})
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, "dev") as dev,
        whole_piped(plane, origin.remote, "prod") as prod,
    ):
        for name, piped in zip(names, (dev, prod), strict=True):
            await piped.add_application(name)
            assert await eventually(ended(plane, first, name), 30)
        away = await plane.cases.pipeds.register("away", "", by=plane.admin)
        site = ApplicationGitRepository(id="s", remote=origin.remote, branch="main")
        await plane.cases.pipeds.report_meta(
            ReportPipedMetaRequest(repositories=[site], config="{}"),
            by=PipedCaller("demo", away.id),
        )
        head = branch(origin, {"cart/words": "1", "shop/words": "2"})
        text, out = await previewed(plane)(head)
    assert sorted(a["ApplicationName"] for a in out["Applications"]) == ["cart", "shop"]
    [failed] = out["FailurePipeds"]
    assert (failed["PipedName"], failed["Reason"]) == ("away", "Maybe Piped is offline currently.")
    assert f"\n1. piped: away ({away.id})\n  reason: Maybe Piped is offline currently.\n" in text


MORTAL = '''#!{python}
"""A plugin that crashes when it previews a certain content."""
import os
from pipecd.sdk import DeploymentPlugin, PlannedStage, Preview, PreviewPlugin, Stage, StageResult
from pipecd.sdk import serve

class Mortal(DeploymentPlugin, PreviewPlugin):
    stages = (Stage("LIVE"),)

    async def strategy(self, plan):
        return None

    async def versions(self, plan):
        return []

    async def quick_sync(self, *, rollback):
        return [PlannedStage("LIVE")]

    async def execute(self, stage):
        return StageResult.succeeded()

    async def preview(self, change):
        words = change.target.application_directory / "words"
        if words.exists() and words.read_text() == "poison":
            print("that was poison", flush=True)
            os._exit(3)
        return [Preview(target.name, "alive") for target in change.targets]

if __name__ == "__main__":
    serve(Mortal)
'''


async def test_a_plugin_that_crashes_during_a_preview_is_reported_and_restarted(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    tmp_path: Path,
    previewed: Any,
) -> None:
    program = tmp_path / "mortal"
    program.write_text(MORTAL.format(python=sys.executable))
    program.chmod(0o755)
    entry = {"name": "mortal", "url": f"file://{program}", "deployTargets": [{"name": "here"}]}
    config = SCRIPT.partition("  pipeline")[0].replace("NAME", "cart") + "  plugins: {mortal: {}}\n"
    origin.commit({"cart/app.pipecd.yaml": config})
    more = f"plugins: {json.dumps([entry])}\n"
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        there = {"mortal": DeployTargets(deploy_targets=["here"])}
        await piped.add_application("cart", deploy_targets_by_plugin=there)
        _, out = await previewed(plane)(branch(origin, {"cart/words": "poison"}))
        _, again = await previewed(plane)(branch(origin, {"cart/words": "1"}, "cured"), "cured")
    [failed], [shown] = out["FailureApplications"], again["Applications"]
    assert "[mortal] plugin mortal " in failed["Reason"]
    assert "that was poison" in failed["Reason"]
    assert shown["PlanSummary"] == "alive"


@dataclass(frozen=True)
class Cluster:
    """A namespace of a real cluster, and its entry in the configuration of a piped."""

    kubernetes: Kubernetes
    namespace: str

    @property
    def piped(self) -> str:
        config = {"kubeConfigPath": str(self.kubernetes.kubeconfig)}
        targets = [{"name": "here", "config": config}]
        return f"plugins: {json.dumps([{'name': 'kubernetes', 'deployTargets': targets}])}\n"


@pytest.fixture
def cluster(kubernetes: Kubernetes, namespace: str) -> Cluster:
    return Cluster(kubernetes, namespace)


@pytest.mark.slow
async def test_a_deployment_applies_what_the_preview_showed(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    previewed: Any,
    cluster: Cluster,
) -> None:
    first = origin.commit(
        {
            "web/app.pipecd.yaml": WEB.replace("NAMESPACE", cluster.namespace),
            "web/web.yaml": web("web:v1"),
        }
    )
    changes = {
        "image": ({"web/web.yaml": web("web:v2")}, "PIPELINE", "1 changed manifests"),
        "size": ({"web/web.yaml": web("web:v2", 2)}, "QUICK_SYNC", "1 changed manifests"),
        "docs": ({"web/README.md": "words"}, "QUICK_SYNC", "No changes were detected"),
    }
    async with (
        start_plane() as plane,
        whole_piped(plane, origin.remote, more=cluster.piped) as piped,
    ):
        there = {"kubernetes": DeployTargets(deploy_targets=["here"])}
        await piped.add_application("web", deploy_targets_by_plugin=there)
        assert await eventually(ended(plane, first, "web"), 40)
        for name, (files, strategy, summary) in changes.items():
            text, out = await previewed(plane)(branch(origin, files, name), name)
            [shown] = out["Applications"]
            assert shown["SyncStrategy"] == strategy
            assert summary in shown["PlanSummary"]
            assert f"- kubernetes(here): {shown['PlanSummary']}\n" in text
            assert shown["NoChange"] is (name == "docs")
            if name == "image":
                details = shown["PlanDetails"]
                assert "image: web:v1" in details
                assert "image: web:v2" in details
            origin.git("merge", "-q", "--no-ff", "-m", f"merge {name}", name)
            made = await eventually(ended(plane, origin.git("rev-parse", "HEAD"), "web"), 40)
            assert DeploymentStatus(made.status) is DeploymentStatus.SUCCESS, made.status_reason
            is_pipeline = made.stages[0].name == "K8S_CANARY_ROLLOUT"
            assert is_pipeline is (strategy == "PIPELINE"), made.summary
