# SPDX-License-Identifier: Apache-2.0
"""Time from a push to SUCCESS of a pipeline with one stage, with polling or a webhook.

Runs a control plane, a piped process, and a repository on disk or behind `git http-backend`.
"""

import argparse
import asyncio
import base64
import hmac
import importlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx2

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from pipecd.config.controlplane import (
    ControlPlaneSpec,
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.bus.signal import Topic
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.deployment import DeploymentStatus
from pipecd.observe.log import configure
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import DeployTargets

# The Git server of the tests.
GitHttp: Any = importlib.import_module("servers.git_http").GitHttp

ADMIN = User("bench", "ann", ("Admin",))
APP = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: hello
  pipeline:
    stages:
      - {name: SCRIPT_RUN, with: {run: "true"}}
"""


@dataclass(frozen=True)
class Scenario:
    """How piped learns of a push, and the target in seconds."""

    name: str
    over_http: bool
    with_webhook: bool
    target: float


SCENARIOS = (
    Scenario("local remote", over_http=False, with_webhook=False, target=1.5),
    Scenario("http remote", over_http=True, with_webhook=False, target=1.5),
    Scenario("local remote, webhook", over_http=False, with_webhook=True, target=0.7),
    Scenario("http remote, webhook", over_http=True, with_webhook=True, target=0.7),
)


class Clone:
    """A clone of a user and the bare repository that it pushes to."""

    def __init__(self, directory: Path) -> None:
        self.bare, self.tree = directory / "bare" / "site.git", directory / "tree"
        self._run("init", "-q", "--bare", "-b", "main", str(self.bare))
        self._run("-C", str(self.bare), "config", "http.receivepack", "true")
        self._run("clone", "-q", str(self.bare), str(self.tree))
        (self.tree / "hello").mkdir()
        (self.tree / "hello" / "app.pipecd.yaml").write_text(APP)
        self.push("the beginning")

    def push(self, text: str) -> str:
        """Commits a change of the application and pushes it; returns the commit hash."""
        (self.tree / "hello" / "text").write_text(text)
        tree = ("-C", str(self.tree))
        self._run(*tree, "checkout", "-q", "-B", "main")
        self._run(*tree, "add", "-A")
        self._run(*tree, "commit", "-q", "-m", text)
        self._run(*tree, "push", "-q", "origin", "main")
        return self._run(*tree, "rev-parse", "HEAD")

    def _run(self, *arguments: str) -> str:
        who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        result = subprocess.run(
            ["git", *who, *arguments], check=True, capture_output=True, text=True, env=clean
        )
        return result.stdout.strip()


@asynccontextmanager
async def plane(directory: Path) -> AsyncGenerator[ControlPlane]:
    database = DatastoreConfig(path=str(directory / "pipecd.db"))
    files = FilestoreConfig(path=str(directory / "files"))
    spec = ControlPlaneSpec(
        address="http://127.0.0.1",
        state_key="bench",
        datastore=DatastoreSpec(type="SQLITE", config=database),
        filestore=FilestoreSpec(type="LOCAL", config=files),
    )
    settings = ServerSettings(spec, b"k" * 32, host="127.0.0.1", port=0, grace_period=1)
    async with control_plane(settings) as running:
        await running.cases.projects.add("bench", "", StaticAdmin("ann", "password"))
        yield running


@asynccontextmanager
async def piped(
    running: ControlPlane,
    directory: Path,
    remote: str,
    *,
    targets: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> AsyncGenerator[str]:
    """Runs `piped run` with one application and yields its id; `more` extends the piped spec.

    `targets` are the deploy targets of the application by their plugin.
    """
    registered = await running.cases.pipeds.register("bench", "", by=ADMIN)
    config = directory / "piped.yaml"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "pipecd.dev/v1beta1",
                "kind": "Piped",
                "spec": {
                    "projectID": "bench",
                    "pipedID": registered.id,
                    "pipedKeyData": base64.b64encode(registered.key.encode()).decode(),
                    "apiAddress": f"127.0.0.1:{running.port}",
                    "repositories": [{"repoId": "site", "remote": remote, "branch": "main"}],
                    **more,
                },
            }
        )
    )
    site = ApplicationGitRepository(id="site", remote=remote, branch="main")
    path = ApplicationGitPath(repo=site, path="hello", config_filename="app.pipecd.yaml")
    directories = [f"--{what}-dir={directory / what}" for what in ("tools", "workspace")]
    flags = ["--insecure", "--admin-port=0", "--log-level=error", f"--config-file={config}"]
    program = Path(sys.executable).parent / "piped"
    process = await asyncio.create_subprocess_exec(program, "run", *flags, *directories)
    try:
        draft = Application(
            name="hello",
            piped_id=registered.id,
            git_path=path,
            platform_provider="" if targets else "p",
            deploy_targets_by_plugin={
                plugin: DeployTargets(deploy_targets=[name]) for plugin, name in targets.items()
            },
        )
        # The control plane has the repositories of a piped after its first report.
        async with running.bus.subscribe(project="bench") as signals:
            while not (await running.stores.pipeds.get(registered.id)).repositories:
                await anext(aiter(signals))
        yield await running.cases.applications.add(draft, by=ADMIN)
    finally:
        process.terminate()
        await process.wait()


async def wait_for_success(running: ControlPlane, commit: str) -> float:
    """Returns the time when the deployment of the commit wait_for_success."""
    deployments = DeploymentFilter(project="bench")
    async with asyncio.timeout(60), running.bus.subscribe(project="bench") as signals:
        while True:
            for deployment in (await running.stores.deployments.list(deployments)).items:
                status = DeploymentStatus(deployment.status)
                if deployment.trigger.commit.hash == commit and status.is_completed:
                    if status is not DeploymentStatus.SUCCESS:
                        sys.exit(f"the deployment completed as {status.name}")
                    return time.perf_counter()
            async for signal in signals:
                if signal.topic in (Topic.DEPLOYMENT, Topic.EVERYTHING):
                    break


async def send_webhook(client: httpx2.AsyncClient, url: str, secret: str, remote: str) -> None:
    """Sends the webhook that a Git host sends after a push."""
    body = json.dumps({"ref": "refs/heads/main", "repository": {"clone_url": remote}}).encode()
    digest = hmac.digest(secret.encode(), body, "sha256").hex()
    headers = {"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={digest}"}
    (await client.post(url, content=body, headers=headers)).raise_for_status()


async def measure(scenario: Scenario, pushes: int) -> list[float]:
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    clone = Clone(directory)
    server = GitHttp(clone.bare.parent)
    remote = server.url("site.git") if scenario.over_http else f"file://{clone.bare}"
    taken: list[float] = []
    try:
        async with plane(directory) as running, piped(running, directory, remote):
            await running.cases.webhooks.rotate(by=ADMIN)
            (secret,) = await running.cases.webhooks.secrets_of("bench")
            async with httpx2.AsyncClient() as client:
                for number in range(pushes + 2):
                    commit = await asyncio.to_thread(clone.push, f"push {number}")
                    began = time.perf_counter()
                    if scenario.with_webhook:
                        url = f"http://127.0.0.1:{running.port}/webhooks/bench"
                        await send_webhook(client, url, secret, remote)
                    taken.append(await wait_for_success(running, commit) - began)
                    # The next push comes at a random moment between two polls of piped.
                    await asyncio.sleep(0.3 + random.random())
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)
    # The first two are warm-up.
    return sorted(taken[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=20)
    pushes = parser.parse_args().pushes
    configure("error", "console")
    for scenario in SCENARIOS:
        taken = asyncio.run(measure(scenario, pushes))
        p95 = taken[round(0.95 * (len(taken) - 1))]
        print(
            f"{scenario.name:24} p50 {statistics.median(taken):5.2f} s   p95 {p95:5.2f} s   "
            f"(target: p50 {scenario.target} s; upstream: median 53 s)"
        )


if __name__ == "__main__":
    main()
