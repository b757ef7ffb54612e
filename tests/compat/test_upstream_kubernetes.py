# SPDX-License-Identifier: Apache-2.0
"""Upstream's plugin for Kubernetes under upstream's piped and under ours, with a real cluster."""

import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import NotFound
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.installation import Program
from servers.kubernetes import Kubernetes
from servers.our_installation import OpenInstallation, OurInstallation
from servers.programs import OUR_PIPECTL, OUR_PIPED

# Without upstream no server is started either.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("upstream")]


APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  plugins:
    kubernetes:
      input: {{namespace: {namespace}, manifests: [web.yaml], kubectlVersion: given}}
"""

MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: "web:1"}]
"""


@pytest.fixture
def plugin(upstream_plugins: Path, free_port: Callable[[], int], kubernetes: Kubernetes) -> str:
    """The entry of the plugin in the file of a piped."""
    if not (path := upstream_plugins / "kubernetes").exists():
        pytest.skip("upstream's plugin kubernetes is not there")
    target = f"{{name: here, config: {{kubeConfigPath: {kubernetes.kubeconfig}}}}}"
    entry = f"name: kubernetes, url: 'file://{path}', port: {free_port()}"
    return f"  plugins: [{{{entry}, deployTargets: [{target}]}}]\n"


@pytest.fixture
def tools(kubectl: str, helm: str, tmp_path: Path) -> Path:
    """Kubectl as version "given", and helm as the one that the plugin asks for at its start."""
    made = tmp_path / "tools"
    made.mkdir()
    (made / "kubectl-given").symlink_to(kubectl)
    (made / "helm-3.8.2").symlink_to(helm)
    return made


@pytest.fixture(params=["upstream's piped", "our piped"])
def command(
    request: pytest.FixtureRequest, free_port: Callable[[], int], tools: Path
) -> Sequence[str | Path]:
    """A piped that need not download its tools."""
    ours = request.param == "our piped"
    program: Path = OUR_PIPED if ours else request.getfixturevalue("upstream_pipedv1")
    ports = (f"--admin-port={free_port()}", f"--plugin-service-port={free_port()}")
    return (program, "run", "--insecure=true", f"--tools-dir={tools}", *ports)


async def test_manifests_are_applied(
    open_installation: OpenInstallation,
    command: Sequence[Any],
    plugin: str,
    kubernetes: Kubernetes,
    namespace: str,
) -> None:
    async with open_installation(all_answered=True) as installation:
        app = APP.format(namespace=namespace)
        first = installation.origin.commit({"web/app.pipecd.yaml": app, "web/web.yaml": MANIFEST})
        agent = await installation.register_piped("v1", plugin)
        draft = Application(
            name="web",
            piped_id=agent.id,
            deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["here"])},
        )
        id_ = await installation.add_application("web", draft)
        async with installation.running(*command, f"--config-file={agent.config}") as piped:

            async def applied(commit: str) -> str:
                done = await installation.eventually(lambda: installation.ended(commit), piped)
                assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, piped.text
                place = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
                live = kubernetes.ask("GET", place)
                return live["spec"]["template"]["spec"]["containers"][0]["image"]

            assert await applied(first) == "web:1"
            changed = {"web/web.yaml": MANIFEST.replace("web:1", "web:2")}
            assert await applied(installation.origin.commit(changed)) == "web:2"
            await check_live_state(installation, piped, id_)
            await check_plan_preview(installation, piped)


async def check_live_state(
    installation: OurInstallation, piped: Program, application_id: str
) -> None:
    """The plugin reports to either piped the live state, and that it is in sync with Git."""

    async def kinds() -> set[str]:
        try:
            snapshot = await installation.cases.livestate.get(application_id, by=installation.admin)
        except NotFound:
            return set()
        return {each.resource_type for each in snapshot.application_live_state.resources}

    async def has_pods() -> bool:
        return await kinds() >= {"Deployment", "ReplicaSet", "Pod"}

    async def is_synced() -> bool:
        application = await installation.cases.applications.get(
            application_id, by=installation.admin
        )
        return application.sync_state.status == SyncStatus.SYNCED

    await installation.eventually(has_pods, piped)
    await installation.eventually(is_synced, piped)


async def check_plan_preview(installation: OurInstallation, piped: Program) -> None:
    """The plugin reports to either piped what a branch would change, and our pipectl shows it."""
    branch, head = installation.origin.branch({"web/web.yaml": MANIFEST.replace("web:1", "web:3")})
    out = installation.directory / "preview.json"
    line = f"plan-preview --repo-remote-url {installation.origin.remote} --base-branch main"
    line += f" --head-branch {branch} --head-commit {head} --out {out}"
    shown = await installation.run(OUR_PIPECTL, *line.split(), *installation.pipectl_flags())
    assert shown.code == 0, shown.err
    applications = json.loads(out.read_text())["Applications"]
    assert applications, piped.text
    (web,) = applications
    (plan,) = web["PluginPlanResults"]
    assert (plan["plugin_name"], plan["deploy_target"]) == ("kubernetes", "here")
    assert plan["diff_language"] == "diff"
    details = base64.b64decode(plan["plan_details"]).decode()
    assert "web:2" in details
    assert "web:3" in details
