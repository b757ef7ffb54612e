# SPDX-License-Identifier: Apache-2.0
"""Push to SUCCESS of a pipeline with one stage, found by looking or told by a webhook.

A control plane, a piped of its own process, and a repository on disk or behind `git http-backend`.
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
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
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

# The server is that of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
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
class Way:
    """One way from a push to a deployment, and the seconds it may take."""

    name: str
    over_http: bool
    with_webhook: bool
    asked: float


WAYS = (
    Way("local remote", over_http=False, with_webhook=False, asked=1.5),
    Way("http remote", over_http=True, with_webhook=False, asked=1.5),
    Way("local remote, webhook", over_http=False, with_webhook=True, asked=0.7),
    Way("http remote, webhook", over_http=True, with_webhook=True, asked=0.7),
)


class Copy:
    """A clone as a person has it, and the repository it pushes to."""

    def __init__(self, directory: Path) -> None:
        self.bare, self.tree = directory / "bare" / "site.git", directory / "tree"
        self._run("init", "-q", "--bare", "-b", "main", str(self.bare))
        self._run("-C", str(self.bare), "config", "http.receivepack", "true")
        self._run("clone", "-q", str(self.bare), str(self.tree))
        (self.tree / "hello").mkdir()
        (self.tree / "hello" / "app.pipecd.yaml").write_text(APP)
        self.push("the beginning")

    def push(self, text: str) -> str:
        """Commits a change of the application and pushes it; answers the commit."""
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
        done = subprocess.run(
            ["git", *who, *arguments], check=True, capture_output=True, text=True, env=clean
        )
        return done.stdout.strip()


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
    running: ControlPlane, directory: Path, remote: str, **more: Any
) -> AsyncGenerator[str]:
    """`piped run` with one application, whose id it yields; `more` goes on with its spec."""
    made = await running.cases.pipeds.register("bench", "", by=ADMIN)
    config = directory / "piped.yaml"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "pipecd.dev/v1beta1",
                "kind": "Piped",
                "spec": {
                    "projectID": "bench",
                    "pipedID": made.id,
                    "pipedKeyData": base64.b64encode(made.key.encode()).decode(),
                    "apiAddress": f"127.0.0.1:{running.port}",
                    "repositories": [{"repoId": "site", "remote": remote, "branch": "main"}],
                    **more,
                },
            }
        )
    )
    site = ApplicationGitRepository(id="site", remote=remote, branch="main")
    path = ApplicationGitPath(repo=site, path="hello", config_filename="app.pipecd.yaml")
    places = [f"--{what}-dir={directory / what}" for what in ("tools", "workspace")]
    flags = ["--insecure", "--admin-port=0", "--log-level=error", f"--config-file={config}"]
    program = Path(sys.executable).parent / "piped"
    process = await asyncio.create_subprocess_exec(program, "run", *flags, *places)
    try:
        draft = Application(name="hello", piped_id=made.id, git_path=path, platform_provider="p")
        # A piped is known with its repositories once it has introduced itself.
        async with running.bus.subscribe(project="bench") as signals:
            while not (await running.stores.pipeds.get(made.id)).repositories:
                await anext(aiter(signals))
        yield await running.cases.applications.add(draft, by=ADMIN)
    finally:
        process.terminate()
        await process.wait()


async def succeeded(running: ControlPlane, commit: str) -> float:
    """The moment when the deployment of the commit ends."""
    wanted = DeploymentFilter(project="bench")
    async with asyncio.timeout(60), running.bus.subscribe(project="bench") as signals:
        while True:
            for deployment in (await running.stores.deployments.list(wanted)).items:
                status = DeploymentStatus(deployment.status)
                if deployment.trigger.commit.hash == commit and status.is_completed:
                    if status is not DeploymentStatus.SUCCESS:
                        sys.exit(f"the deployment ended as {status.name}")
                    return time.perf_counter()
            async for signal in signals:
                if signal.topic in (Topic.DEPLOYMENT, Topic.EVERYTHING):
                    break


async def tell(client: httpx2.AsyncClient, url: str, secret: str, remote: str) -> None:
    """Does what a Git host does after a push."""
    body = json.dumps({"ref": "refs/heads/main", "repository": {"clone_url": remote}}).encode()
    digest = hmac.digest(secret.encode(), body, "sha256").hex()
    headers = {"X-GitHub-Event": "push", "X-Hub-Signature-256": f"sha256={digest}"}
    (await client.post(url, content=body, headers=headers)).raise_for_status()


async def measure(way: Way, pushes: int) -> list[float]:
    directory = Path(tempfile.mkdtemp(prefix="pipecd-bench-"))
    copy = Copy(directory)
    server = GitHttp(copy.bare.parent)
    remote = server.url("site.git") if way.over_http else f"file://{copy.bare}"
    taken: list[float] = []
    try:
        async with plane(directory) as running, piped(running, directory, remote):
            await running.cases.webhooks.rotate(by=ADMIN)
            (secret,) = await running.cases.webhooks.secrets_of("bench")
            async with httpx2.AsyncClient() as client:
                for number in range(pushes + 2):
                    commit = await asyncio.to_thread(copy.push, f"push {number}")
                    began = time.perf_counter()
                    if way.with_webhook:
                        url = f"http://127.0.0.1:{running.port}/webhooks/bench"
                        await tell(client, url, secret, remote)
                    taken.append(await succeeded(running, commit) - began)
                    # The next push comes at any moment between two looks of piped.
                    await asyncio.sleep(0.3 + random.random())
    finally:
        server.close()
        shutil.rmtree(directory, ignore_errors=True)
    # The first ones warm up.
    return sorted(taken[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pushes", type=int, default=20)
    pushes = parser.parse_args().pushes
    configure("error", "console")
    for way in WAYS:
        taken = asyncio.run(measure(way, pushes))
        p95 = taken[round(0.95 * (len(taken) - 1))]
        print(
            f"{way.name:24} p50 {statistics.median(taken):5.2f} s   p95 {p95:5.2f} s   "
            f"(asked: p50 {way.asked} s; upstream: median 53 s)"
        )


if __name__ == "__main__":
    main()
