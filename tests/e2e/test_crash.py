# SPDX-License-Identifier: Apache-2.0
"""The control plane is killed amid a stage; nothing that the stage does or says is lost."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import build_use_cases
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from servers.piped import killed_piped, piped_config
from servers.server import free_ports

ADMIN = User("shop", "root", ("Admin",))
DOORS: tuple[str, ...] = ("port", "piped-api", "web-api", "http", "api", "admin", "envoy-authz")
LINES = 120
APPLICATION = f"""\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: cart
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with: {{run: 'for i in $(seq {LINES}); do echo line $i; sleep 0.05; done'}}
"""


@dataclass
class Installation:
    """What outlives the processes: a database, files, a repository, and who may come in."""

    directory: Path
    ports: dict[str, int]
    piped: Any
    api_key: str

    @property
    def remote(self) -> str:
        return f"file://{self.directory / 'origin'}"

    def datastore(self) -> DatastoreSpec:
        return datastore(self.directory)

    @asynccontextmanager
    async def server(self) -> AsyncGenerator[asyncio.subprocess.Process, None]:
        """`pipecd server`; leaving the block kills it."""
        config, key = self.directory / "control-plane.yaml", self.directory / "key"
        store = self.datastore().model_dump(by_alias=True, exclude_defaults=True)
        files = {"type": "LOCAL", "config": {"path": str(self.directory / "files")}}
        spec = {
            "address": "http://127.0.0.1",
            "stateKey": "s",
            "datastore": store,
            "filestore": files,
        }
        document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "ControlPlane", "spec": spec}
        config.write_text(json.dumps(document))
        key.write_text("k" * 64)
        ports = [
            f"--{door}{'' if door == 'port' else '-port'}={port}"
            for door, port in self.ports.items()
        ]
        given = [f"--config-file={config}", f"--encryption-key-file={key}", "--host=127.0.0.1"]
        async with program("server", *given, *ports) as process:
            for door in ("piped-api", "api"):
                await listening(self.ports[door])
            yield process

    def agent(self) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """`piped run`; leaving the block kills it."""
        config = self.directory / "piped.yaml"
        address = f"127.0.0.1:{self.ports['piped-api']}"
        text = piped_config(self.piped.id, self.piped.key, address=address, remote=self.remote)
        config.write_text(text)
        return killed_piped(config)

    async def seen(self, wanted: Any) -> tuple[Deployment, list[str]]:
        """The deployment and the lines of its stage as soon as they are as wanted."""
        address = f"127.0.0.1:{self.ports['api']}"
        authorization = credentials.api_key(self.api_key)
        async with (
            asyncio.timeout(120),
            open_channel(address, authorization=authorization, insecure=True) as channel,
        ):
            api = APIServiceStub(channel)
            while True:
                listed = await api.ListDeployments(pb.ListDeploymentsRequest())
                for deployment in listed.deployments:
                    request = pb.ListStageLogsRequest(deployment_id=deployment.id)
                    logs = (await api.ListStageLogs(request)).stage_logs.values()
                    lines = [block.log for log in logs for block in log.blocks]
                    if wanted(deployment, lines):
                        return deployment, lines
                await asyncio.sleep(0.05)


def datastore(directory: Path) -> DatastoreSpec:
    return DatastoreSpec(type="SQLITE", config=DatastoreConfig(path=str(directory / "pipecd.db")))


@asynccontextmanager
async def program(*arguments: str) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "pipecd", *arguments)
    try:
        yield process
    finally:
        process.kill()
        await process.wait()


async def listening(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return


def make_origin(origin: Path) -> ApplicationGitRepository:
    (origin / "cart").mkdir(parents=True)
    (origin / "cart" / "app.pipecd.yaml").write_text(APPLICATION)
    git = ["git", "-C", str(origin), "-c", "user.name=dev", "-c", "user.email=dev@localhost"]
    for arguments in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    return ApplicationGitRepository(id="site", remote=f"file://{origin}", branch="main")


async def install(directory: Path) -> Installation:
    repository = make_origin(directory / "origin")
    files = await LocalFiles.open(directory / "files")
    async with open_datastore(datastore(directory)) as database:
        stores = create_stores(database, files, MemoryCache())
        cases = build_use_cases(stores, MemoryBus(), address="http://cp", encryption_key=b"k" * 64)
        await cases.projects.add("shop", "")
        piped = await cases.pipeds.register("dev", "", by=ADMIN)
        meta = ReportPipedMetaRequest(repositories=[repository], config="{}")
        await cases.pipeds.report_meta(meta, by=PipedCaller("shop", piped.id))
        path = ApplicationGitPath(repo=repository, path="cart", config_filename="app.pipecd.yaml")
        draft = Application(name="cart", piped_id=piped.id, git_path=path, platform_provider="p")
        await cases.applications.add(draft, by=ADMIN)
        api_key = await cases.api_keys.generate("tests", APIKey.READ_ONLY, by=ADMIN)
    ports = dict(zip(DOORS, free_ports(len(DOORS)), strict=True))
    return Installation(directory, ports, piped, api_key)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_control_plane_that_is_killed_amid_a_stage(tmp_path: Path) -> None:
    installed = await install(tmp_path)
    async with AsyncExitStack() as first, AsyncExitStack() as running:
        await first.enter_async_context(installed.server())
        await running.enter_async_context(installed.agent())
        await installed.seen(lambda _, lines: len(lines) > 10)
        await first.aclose()
        async with installed.server():
            done, lines = await installed.seen(
                lambda deployment, _: DeploymentStatus(deployment.status).is_completed
            )
    assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
    assert lines == [*(f"line {n}" for n in range(1, LINES + 1)), "The script succeeded"]
