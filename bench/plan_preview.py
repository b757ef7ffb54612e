# SPDX-License-Identifier: Apache-2.0
"""Duration of a plan preview that changes a hundred Kubernetes applications.

Runs a control plane, a piped process and a repository on disk; every application has been deployed
before. With `--renderer helm` or `kustomize` that program renders each application twice, at the
running commit and at the head of the branch; with `templates` workers do so with its ten manifests.
"""

import argparse
import asyncio
import base64
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pipecd.config.controlplane import (
    ControlPlaneSpec,
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.errors import NotFound
from pipecd.observe.log import configure
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Commit, DeploymentTrigger, DeployTargets
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from rig.cluster import NotInstalled, cluster, program

ADMIN = User("bench", "ann", ("Admin",))
TARGET = 30.0
MANIFESTS = 10
APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  plugins: {kubernetes: {input: INPUT}}
  pipeline: {stages: [{name: K8S_CANARY_ROLLOUT}, {name: K8S_PRIMARY_ROLLOUT}]}
"""
VERSIONS = {"helm": "3.99.0", "kustomize": "5.99.0"}
INPUTS = {
    "plain": "{}",
    "templates": "{}",
    "helm": "{helmVersion: 3.99.0, helmChart: {path: chart}}",
    "kustomize": "{kustomizeVersion: 5.99.0}",
}


def manifest(number: int, image: str) -> str:
    labels = {"app": f"part{number}"}
    container = {"name": "main", "image": image, "env": [{"name": "A", "value": "b"}] * 10}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchLabels": labels}, "template": template}
    metadata = {"name": f"part{number}"}
    return json.dumps(
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec},
        indent=1,
    )


def files(name: str, renderer: str, image: str) -> dict[str, str]:
    """Returns the files of an application with ten manifests."""
    parts = {f"part{n}.yaml": manifest(n, image) for n in range(MANIFESTS)}
    contents = {"app.pipecd.yaml": APP.replace("NAME", name).replace("INPUT", INPUTS[renderer])}
    if renderer == "helm":
        contents["chart/Chart.yaml"] = f"apiVersion: v2\nname: {name}\nversion: 0.1.0\n"
        contents |= {f"chart/templates/{path}": text for path, text in parts.items()}
    else:
        contents |= parts
    if renderer == "templates":
        targets = json.dumps(sorted(parts))
        contents["app.pipecd.yaml"] += (
            f"  attachment: {{sources: {{v: v.txt}}, targets: {targets}}}\n"
        )
        contents["v.txt"] = "b"
        action = "{{ .attachment.v | trim | lower }}"
        contents |= {path: text.replace('"b"', f'"{action}"') for path, text in parts.items()}
    if renderer == "kustomize":
        contents["kustomization.yaml"] = f"resources: {json.dumps(sorted(parts))}\n"
    return {f"apps/{name}/{path}": text for path, text in contents.items()}


@dataclass(frozen=True)
class Site:
    """A repository in which a branch changes some of its applications."""

    path: Path
    first: str
    head: str

    @property
    def remote(self) -> str:
        return f"file://{self.path}"


def site(directory: Path, renderer: str, total: int, changed: int) -> Site:
    path = directory / "site"

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        command = ["git", *who, "-C", str(path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(count: int, image: str) -> str:
        for number in range(count):
            for name, text in files(f"a{number}", renderer, image).items():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                (path / name).write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", image)
        return git("rev-parse", "HEAD")

    path.mkdir()
    git("init", "-q", "-b", "main")
    first = commit(total, "web:v1")
    git("checkout", "-q", "-b", "feature")
    head = commit(changed, "web:v2")
    git("checkout", "-q", "main")
    return Site(path, first, head)


@asynccontextmanager
async def plane(directory: Path) -> AsyncGenerator[ControlPlane]:
    spec = ControlPlaneSpec(
        address="http://127.0.0.1",
        state_key="bench",
        datastore=DatastoreSpec(
            type="SQLITE", config=DatastoreConfig(path=str(directory / "pipecd.db"))
        ),
        filestore=FilestoreSpec(
            type="LOCAL", config=FilestoreConfig(path=str(directory / "files"))
        ),
    )
    settings = ServerSettings(spec, b"k" * 32, host="127.0.0.1", port=0, grace_period=1)
    async with control_plane(settings) as running:
        await running.cases.projects.add("bench", "", StaticAdmin("ann", "password"))
        yield running


@asynccontextmanager
async def piped(
    running: ControlPlane, directory: Path, remote: str, kubeconfig: Path
) -> AsyncGenerator[str]:
    """Runs `piped run` with the Kubernetes plugin and yields its id."""
    registered = await running.cases.pipeds.register("bench", "", by=ADMIN)
    target = {"name": "here", "config": {"kubeConfigPath": str(kubeconfig)}}
    spec = {
        "projectID": "bench",
        "pipedID": registered.id,
        "pipedKeyData": base64.b64encode(registered.key.encode()).decode(),
        "apiAddress": f"127.0.0.1:{running.port}",
        "repositories": [{"repoId": "site", "remote": remote, "branch": "main"}],
        "plugins": [{"name": "kubernetes", "deployTargets": [target]}],
    }
    config = directory / "piped.yaml"
    config.write_text(
        json.dumps({"apiVersion": "pipecd.dev/v1beta1", "kind": "Piped", "spec": spec})
    )
    directories = [f"--{what}-dir={directory / what}" for what in ("tools", "workspace")]
    flags = ["--insecure", "--admin-port=0", "--log-level=error", f"--config-file={config}"]
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).parent / "piped", "run", *flags, *directories
    )
    try:
        # The control plane has the repositories of a piped after its first report.
        async with running.bus.subscribe(project="bench") as signals:
            while not (await running.stores.pipeds.get(registered.id)).repositories:
                await anext(aiter(signals))
        yield registered.id
    finally:
        process.terminate()
        await process.wait()


async def register(running: ControlPlane, piped_id: str, where: Site, total: int) -> None:
    """Adds the applications with the first commit as their last deployment."""
    now = int(time.time())
    commit = Commit(hash=where.first, message="m", author="a", branch="main", created_at=now)
    last = ApplicationDeploymentReference(
        deployment_id="d",
        trigger=DeploymentTrigger(commit=commit, timestamp=now),
        config_filename="app.pipecd.yaml",
        started_at=now,
        completed_at=now,
    )

    def deployed(application: Application) -> None:
        application.most_recently_successful_deployment.CopyFrom(last)
        application.most_recently_triggered_deployment.CopyFrom(last)

    repository = ApplicationGitRepository(id="site", remote=where.remote, branch="main")
    for number in range(total):
        draft = Application(
            name=f"a{number}",
            piped_id=piped_id,
            git_path=ApplicationGitPath(
                repo=repository, path=f"apps/a{number}", config_filename="app.pipecd.yaml"
            ),
            deploy_targets_by_plugin={"kubernetes": DeployTargets(deploy_targets=["here"])},
        )
        id_ = await running.cases.applications.add(draft, by=ADMIN)
        await running.stores.applications.update(id_, deployed)


async def preview(running: ControlPlane, where: Site) -> tuple[float, PlanPreviewCommandResult]:
    """Requests a plan preview; returns the seconds to its result, and the result."""
    began = time.perf_counter()
    request = RequestPlanPreviewRequest(
        repo_remote_url=where.remote,
        base_branch="main",
        head_branch="feature",
        head_commit=where.head,
    )
    commands = await running.cases.plan_previews.request(request, by=ADMIN)
    while True:
        await asyncio.sleep(0.05)
        try:
            (result,) = await running.cases.plan_previews.results(commands, by=ADMIN)
        except NotFound:
            continue
        return time.perf_counter() - began, result


async def measure(renderer: str, total: int, changed: int) -> None:
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    kubernetes = cluster()
    try:
        if renderer in VERSIONS:
            (directory / "tools").mkdir()
            executable = directory / "tools" / f"{renderer}-{VERSIONS[renderer]}"
            shutil.copy(program(renderer), executable)
        where = site(directory, renderer, total, changed)
        async with (
            plane(directory) as running,
            piped(running, directory, where.remote, kubernetes.kubeconfig) as id_,
        ):
            await register(running, id_, where, total)
            await asyncio.sleep(2)
            for what in ("first preview", "again"):
                taken, result = await preview(running, where)
                failed = [each.error for each in result.results if each.error]
                if result.error or failed or len(result.results) != changed:
                    sys.exit(result.error or (failed or ["applications are missing"])[0])
                print(
                    f"{renderer:10} {what:14} {changed} of {total} applications {taken:6.2f} s   "
                    f"(target: {TARGET:g} s)"
                )
    finally:
        kubernetes.close()
        shutil.rmtree(directory, ignore_errors=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{renderer:10} CPU time of all processes {used.ru_utime + used.ru_stime:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renderer", choices=sorted(INPUTS), default="plain")
    parser.add_argument("--total", type=int, default=200)
    parser.add_argument("--changed", type=int, default=100)
    given = parser.parse_args()
    configure("error", "console")
    try:
        asyncio.run(measure(given.renderer, given.total, given.changed))
    except NotInstalled as e:
        print(f"skipped: {e}")


if __name__ == "__main__":
    main()
