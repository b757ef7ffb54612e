# SPDX-License-Identifier: Apache-2.0
"""Two installations deploy each other's control plane with the files of examples/dogfooding.

Only directories and ports differ: those of the test stand for /etc/pipecd and /opt/pipecd.
"""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from pipecd.config.read import read_control_plane
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import build_use_cases
from pipecd.plugins.process.client import SupervisorClient
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import DeployTargets
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.databases import Postgres
from servers.piped import piped_config
from servers.polling import eventually
from servers.server import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "dogfooding"
PROGRAMS = Path(sys.executable).parent
SUCCESS, FAILURE = "DEPLOYMENT_SUCCESS", "DEPLOYMENT_FAILURE"
ENDED = (SUCCESS, FAILURE, "DEPLOYMENT_CANCELLED")
RELEASES = {
    "0.1.0": f'exec "{PROGRAMS}/pipecd" "$@"',
    "0.2.0": f'exec "{PROGRAMS}/pipecd" "$@"',
    "0.3.0": "echo this release does not start >&2; exit 1",
}
WEB = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: web
  pipeline:
    stages:
      - name: WAIT
        with: {duration: 5s}
      - name: SCRIPT_RUN
        with: {run: "echo VERSION"}
"""
CONTROL_PLANE = """\
apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: http://localhost:{port}
  stateKey: a-long-random-text
  datastore: {{type: POSTGRESQL, config: {{url: "{url}"}}}}
  filestore: {{type: LOCAL, config: {{path: {directory}}}}}
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@asynccontextmanager
async def running(log: Path, *words: str) -> AsyncGenerator[None]:
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(*words, stdout=output, stderr=output)
    try:
        yield
        assert process.returncode is None, log
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 90)


@dataclass
class Plane:
    """A control plane: its public port, its keys by project, its piped, its applications."""

    name: str
    port: int
    keys: dict[str, str]
    piped: tuple[str, str]
    applications: dict[str, str]

    async def get(self, path: str, *, project: str = "platform", port: int = 0) -> dict[str, Any]:
        """Reads from the REST API; an outage is an empty answer."""
        headers = {"Authorization": f"Bearer {self.keys[project]}"}
        address = f"http://127.0.0.1:{port or self.port}/api/v1/{path}"
        try:
            async with httpx2.AsyncClient(timeout=60) as client:
                response = await client.get(address, headers=headers)
        except httpx2.HTTPError:
            await asyncio.sleep(0.2)
            return {}
        return response.json() if response.status_code == 200 else {}

    async def is_serving(self, port: int = 0) -> bool:
        return bool(await self.get("applications", port=port))

    async def deployments(self, application: str) -> list[dict[str, Any]]:
        id = self.applications[application]
        return (await self.get(f"deployments?application_ids={id}")).get("deployments", [])

    async def ended(self, application: str, commit: str) -> str:
        """Waits until the deployment of a commit has ended; returns its status."""

        async def status() -> str:
            await asyncio.sleep(0.2)
            statuses = {
                one["trigger"]["commit"]["hash"]: one.get("status", "")
                for one in await self.deployments(application)
            }
            status = statuses.get(commit, "")
            return status if status in ENDED else ""

        return await eventually(status, within=400)


class Machine:
    """The directories and the repository of both installations."""

    def __init__(self, root: Path) -> None:
        self.root, self.repository = root, root / "apps"
        (root / "etc").mkdir(parents=True)
        for version, script in RELEASES.items():
            program = root / "opt" / version / "bin" / "pipecd"
            program.parent.mkdir(parents=True)
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)

    @property
    def git_repository(self) -> ApplicationGitRepository:
        return ApplicationGitRepository(id="site", remote=str(self.repository), branch="main")

    async def install(self, name: str, url: str, applications: dict[str, str]) -> Plane:
        """Writes the files of a control plane and fills its database; nothing runs yet."""
        port, directory = free_port(), self.root / "var" / name
        text = CONTROL_PLANE.format(port=port, url=url, directory=directory)
        (self.root / "etc" / f"{name}.yaml").write_text(text)
        (self.root / "etc" / f"{name}-encryption-key").write_text("k" * 64)
        files = await LocalFiles.open(directory)
        async with open_datastore(
            read_control_plane(text.encode(), file=name).datastore
        ) as database:
            stores = create_stores(database, files, MemoryCache())
            cases = build_use_cases(
                stores, MemoryBus(), address="http://cp", encryption_key=b"k" * 64
            )
            keys: dict[str, str] = {}
            for project in ("platform", "shop"):
                await cases.projects.add(project, "")
                admin = User(project, "root", ("Admin",))
                keys[project] = await cases.api_keys.generate("k", APIKey.READ_ONLY, by=admin)
            admin = User("platform", "root", ("Admin",))
            piped = await cases.pipeds.register("own", "", by=admin)
            meta = ReportPipedMetaRequest(repositories=[self.git_repository], config="{}")
            await cases.pipeds.report_meta(meta, by=PipedCaller("platform", piped.id))
            ids: dict[str, str] = {}
            for application, folder in applications.items():
                path = ApplicationGitPath(
                    repo=self.git_repository, path=folder, config_filename="app.pipecd.yaml"
                )
                draft = Application(name=application, piped_id=piped.id, git_path=path)
                if application != "web":
                    targets = DeployTargets(deploy_targets=["machine"])
                    draft.deploy_targets_by_plugin["process"].CopyFrom(targets)
                ids[application] = await cases.applications.add(draft, by=admin)
        return Plane(name, port, keys, (piped.id, piped.key), ids)

    def write_repository(self, production: Plane, dog: Plane) -> str:
        """Commits the example, with the directories and ports of this machine."""
        changes = {
            "/opt/pipecd": str(self.root / "opt"),
            "/etc/pipecd": str(self.root / "etc"),
            "port: 9090": f"port: {production.port}",
            "port: 9190": f"port: {dog.port}",
            # A busy machine starts a control plane slowly.
            "timeout: 60s": "timeout: 300s",
        }
        for source in EXAMPLE.rglob("*"):
            if source.is_file() and source.name != "README.md":
                target = self.repository / source.relative_to(EXAMPLE)
                target.parent.mkdir(parents=True, exist_ok=True)
                text = source.read_text()
                for documented, actual in changes.items():
                    text = text.replace(documented, actual)
                target.write_text(text)
                target.chmod(source.stat().st_mode)
        subprocess.run(["git", "init", "-q", "-b", "main", str(self.repository)], check=True)
        return self.commit({"web/app.pipecd.yaml": WEB}, "begin")

    def commit(self, files: dict[str, str], message: str) -> str:
        for name, text in files.items():
            path = self.repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        git = ["git", "-C", str(self.repository)]
        identity = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, *identity, "commit", "-qm", message], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE)
        return head.stdout.decode().strip()

    def programs(self, name: str) -> Path:
        return self.root / "programs" / name

    def piped(self, plane: Plane, port: int) -> Any:
        """Runs the piped of an installation, which connects to this port of its control plane."""
        target = {"name": "machine", "config": {"directory": str(self.programs(plane.name))}}
        plugins = json.dumps([{"name": "process", "deployTargets": [target]}])
        id, key = plane.piped
        config = piped_config(
            id,
            key,
            address=f"127.0.0.1:{port}",
            remote=str(self.repository),
            project="platform",
            rest=f"  syncInterval: 1s\n  plugins: {plugins}\n",
        )
        file = self.root / "etc" / f"piped-{plane.name}.yaml"
        file.write_text(config)
        return running(
            self.root / f"piped-{plane.name}.log",
            str(PROGRAMS / "piped"), "run", "--config-file", str(file), "--insecure",
            "--admin-port", "0", "--workspace-dir", str(self.root / "workspaces" / plane.name),
        )  # fmt: skip


@asynccontextmanager
async def installed(root: Path, postgres: Postgres) -> AsyncGenerator[tuple[Machine, Plane, Plane]]:
    """Both installations, of which nothing runs yet; in the end nothing runs any more."""
    machine = Machine(root)
    with psycopg.connect(postgres.url("postgres"), autocommit=True) as server:
        for name in ("production", "dog"):
            server.execute(f"DROP DATABASE IF EXISTS dogfooding_{name}".encode())
            server.execute(f"CREATE DATABASE dogfooding_{name}".encode())
    production = await machine.install(
        "production", postgres.url("dogfooding_production"), {"pipecd-dog": "dog", "web": "web"}
    )
    dog = await machine.install(
        "dog", postgres.url("dogfooding_dog"), {"pipecd-production": "production"}
    )
    try:
        yield machine, production, dog
    finally:
        for name in ("production", "dog"):
            if machine.programs(name).exists():
                await SupervisorClient.at(machine.programs(name)).shut_down()


async def test_two_installations_deploy_each_other(tmp_path: Path, postgres: Postgres) -> None:
    async with (
        installed(tmp_path, postgres) as (machine, production, dog),
        AsyncExitStack() as pipeds,
    ):
        begin = machine.write_repository(production, dog)
        by_hand = free_port()
        script = tmp_path / "by-hand.sh"
        folder = machine.repository / "production"
        script.write_text(f"cd {folder} && PORT={by_hand} exec ./server.sh production\n")
        async with running(tmp_path / "by-hand.log", "/bin/sh", str(script)):
            async with machine.piped(production, by_hand):
                # The piped of production starts the control plane of dog,
                await eventually(dog.is_serving, within=400)
            # and that of dog starts the control plane of production.
            await pipeds.enter_async_context(machine.piped(dog, dog.port))
            assert await dog.ended("pipecd-production", begin) == SUCCESS
        # The one that was started by hand is gone.
        await pipeds.enter_async_context(machine.piped(production, production.port))
        assert await production.ended("pipecd-dog", begin) == SUCCESS
        assert await production.ended("web", begin) == SUCCESS

        # Production is upgraded while its piped deploys.
        second = {
            "web/app.pipecd.yaml": WEB.replace("VERSION", "two"),
            "production/version": "0.2.0",
        }
        upgrade = machine.commit(second, "production: 0.2.0")
        assert await dog.ended("pipecd-production", upgrade) == SUCCESS
        assert await production.ended("web", upgrade) == SUCCESS

        # A release that does not start is rolled back, and the one before serves on.
        config = (folder / "app.pipecd.yaml").read_text()
        third = {
            "web/app.pipecd.yaml": WEB.replace("VERSION", "three"),
            "production/version": "0.3.0",
            "production/app.pipecd.yaml": config.replace("timeout: 300s", "timeout: 10s"),
        }
        bad = machine.commit(third, "production: 0.3.0")
        assert await dog.ended("pipecd-production", bad) == FAILURE
        assert await production.ended("web", bad) == SUCCESS
        commits = [one["trigger"]["commit"]["hash"] for one in await production.deployments("web")]
        assert sorted(commits) == sorted([begin, upgrade, bad]), "none is lost, none is doubled"

        # Dog is upgraded by production in the same way.
        other = machine.commit({"dog/version": "0.2.0"}, "dog: 0.2.0")
        assert await production.ended("pipecd-dog", other) == SUCCESS
        await eventually(dog.is_serving, within=120)
        # Projects are tenants: the other one sees nothing of all this.
        assert await production.get("deployments", project="shop") == {}
