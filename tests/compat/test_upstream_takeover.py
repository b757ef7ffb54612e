# SPDX-License-Identifier: Apache-2.0
"""Our piped takes over the applications of upstream's on a real cluster, and no pod restarts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.installation import Program
from servers.kubernetes import Kubernetes
from servers.our_installation import OpenInstallation
from servers.programs import OUR_PIPED

# Without upstream no server is started either.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.usefixtures("upstream")]

FIRST = """\
apiVersion: pipecd.dev/v1beta1
kind: KubernetesApp
spec:
  name: web
  input: {namespace: NAMESPACE, kubectlVersion: given}
  quickSync: {prune: true}
"""
SECOND = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  plugins:
    kubernetes:
      input: {namespace: NAMESPACE, kubectlVersion: given}
      quickSync: {prune: true}
"""
MANIFESTS = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: web
          image: "web:1"
          envFrom: [{configMapRef: {name: settings}}, {secretRef: {name: key}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {mode: "fast & <loose>", size: "3"}
---
apiVersion: v1
kind: Secret
metadata: {name: key}
data: {key: c2VjcmV0}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  selector: {app: web}
  ports: [{port: 80}]
"""


@dataclass(frozen=True)
class Generation:
    """How a generation of upstream is configured and started, and how ours is."""

    application: str
    draft: dict[str, Any]
    piped: str
    ours: str
    program: Path
    arguments: tuple[str, ...]


@pytest.fixture
def tools(kubectl: str, helm: str, tmp_path: Path) -> Path:
    """Programs that a piped of upstream would download."""
    made = tmp_path / "tools"
    made.mkdir()
    shutil.copy(kubectl, made / "kubectl-given")
    shutil.copy(helm, made / "helm-3.8.2")
    return made


@pytest.fixture(params=["first", "second"])
def generation(
    request: pytest.FixtureRequest,
    kubernetes: Kubernetes,
    tools: Path,
    free_port: Callable[[], int],
) -> Generation:
    target = {"name": "here", "config": {"kubeConfigPath": str(kubernetes.kubeconfig)}}
    flags = ("--insecure=true", f"--tools-dir={tools}", f"--admin-port={free_port()}")
    if request.param == "first":
        program: Path = request.getfixturevalue("upstream_piped")
        given = f"  platformProviders: [{json.dumps({**target, 'type': 'KUBERNETES'})}]\n"
        draft = {"kind": common.KUBERNETES, "platform_provider": "here"}
        return Generation(FIRST, draft, given, given, program, ("piped", *flags))
    plugins: Path = request.getfixturevalue("upstream_plugins")
    entry = {"name": "kubernetes", "port": free_port(), "deployTargets": [target]}
    theirs = {**entry, "url": f"file://{plugins}/kubernetes"}
    program = request.getfixturevalue("upstream_pipedv1")
    return Generation(
        SECOND,
        {"deploy_targets_by_plugin": {"kubernetes": DeployTargets(deploy_targets=["here"])}},
        f"  plugins: [{json.dumps(theirs)}]\n",
        f"  plugins: [{json.dumps(entry)}]\n",
        program,
        ("run", *flags, f"--plugin-service-port={free_port()}"),
    )


@dataclass(frozen=True)
class Place:
    """A namespace of the cluster."""

    kubernetes: Kubernetes
    namespace: str

    def pods(self) -> set[str]:
        listed = self.kubernetes.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods")
        return {pod["metadata"]["uid"] for pod in listed["items"]}

    def services(self) -> set[str]:
        listed = self.kubernetes.ask("GET", f"/api/v1/namespaces/{self.namespace}/services")
        return {service["metadata"]["name"] for service in listed["items"]}

    def web(self) -> Any:
        path = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/web"
        return self.kubernetes.ask("GET", path)

    async def is_available(self) -> bool:
        return self.web().get("status", {}).get("availableReplicas") == 2


async def test_applications_that_upstream_deployed_run_on_without_a_restart(
    open_installation: OpenInstallation,
    generation: Generation,
    free_port: Callable[[], int],
    kubernetes: Kubernetes,
    namespace: str,
) -> None:
    place = Place(kubernetes, namespace)
    async with open_installation() as installation:
        config = generation.application.replace("NAMESPACE", namespace)
        first = installation.origin.commit(
            {"web/app.pipecd.yaml": config, "web/web.yaml": MANIFESTS}
        )
        agent = await installation.register_piped("theirs", generation.piped)
        draft = Application(name="web", piped_id=agent.id, **generation.draft)
        await installation.add_application("web", draft)

        async def synced(commit: str, piped: Program) -> None:
            done = await installation.eventually(lambda: installation.ended(commit), piped)
            details = (done.status_reason, await installation.logs(done), piped.text)
            assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, details

        config_file = f"--config-file={agent.config}"
        async with installation.running(
            generation.program, *generation.arguments, config_file
        ) as theirs:
            await synced(first, theirs)
            await installation.eventually(place.is_available, theirs)
        before, pods = place.web(), place.pods()
        assert len(pods) == 2

        text = agent.config.read_text().replace(generation.piped, generation.ours)
        agent.config.write_text(text)
        flags = ("--insecure=true", f"--admin-port={free_port()}", config_file)
        async with installation.running(OUR_PIPED, "run", *flags) as ours:
            changed = MANIFESTS.replace("port: 80", "port: 8080")
            await synced(installation.origin.commit({"web/web.yaml": changed}), ours)
            assert place.pods() == pods
            after = place.web()
            assert after["spec"]["template"] == before["spec"]["template"]
            managers = {entry["manager"] for entry in after["metadata"]["managedFields"]}
            assert "piped" in managers
            assert not {"kubectl", "kubectl-client-side-apply"} & managers
            without_service = changed.rpartition("---\n")[0]
            await synced(installation.origin.commit({"web/web.yaml": without_service}), ours)
            assert "web" not in place.services()
            assert place.pods() == pods
