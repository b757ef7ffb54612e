# SPDX-License-Identifier: Apache-2.0
"""The control plane is killed while a stage runs; the stage succeeds and no log line is lost."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import build_use_cases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
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
from servers.load import patient
from servers.origin import Origin
from servers.piped import killed_piped, piped_config
from servers.polling import eventually
from servers.server import free_ports

ADMIN = User("shop", "root", ("Admin",))
PORT_FLAGS: tuple[str, ...] = (
    "port",
    "piped-api-port",
    "web-api-port",
    "http-port",
    "api-port",
    "admin-port",
    "envoy-authz-port",
)
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
    """What outlives the processes: database, files, repository, ports and keys."""

    directory: Path
    origin: Origin
    ports: dict[str, int]
    piped: RegisteredPiped
    api_key: str

    @asynccontextmanager
    async def server(self) -> AsyncGenerator[asyncio.subprocess.Process]:
        """Runs `pipecd server` and kills it at the end of the block."""
        config, key = self.directory / "control-plane.yaml", self.directory / "key"
        store = datastore(self.directory).model_dump(by_alias=True, exclude_defaults=True)
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
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "pipecd", "server", "--host=127.0.0.1"),
            *(f"--config-file={config}", f"--encryption-key-file={key}"),
            *(f"--{flag}={port}" for flag, port in self.ports.items()),
        )
        try:
            for flag in ("piped-api-port", "api-port"):
                await wait_for_port(self.ports[flag])
            yield process
        finally:
            process.kill()
            await process.wait()

    def running_piped(self) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
        """Runs `piped run` and kills it at the end of the block."""
        config = self.directory / "piped.yaml"
        address = f"127.0.0.1:{self.ports['piped-api-port']}"
        remote = self.origin.remote
        config.write_text(
            piped_config(self.piped.id, self.piped.key, address=address, remote=remote)
        )
        return killed_piped(config)

    async def wait_for_deployment(
        self, matches: Callable[[Deployment, list[str]], bool]
    ) -> tuple[Deployment, list[str]]:
        """Returns the deployment and its log lines once they match."""
        address = f"127.0.0.1:{self.ports['api-port']}"
        authorization = credentials.api_key(self.api_key)
        async with open_channel(address, authorization=authorization, insecure=True) as channel:
            api = APIServiceStub(channel)

            async def matching() -> tuple[Deployment, list[str]] | None:
                listed = await api.ListDeployments(pb.ListDeploymentsRequest())
                for deployment in listed.deployments:
                    request = pb.ListStageLogsRequest(deployment_id=deployment.id)
                    logs = (await api.ListStageLogs(request)).stage_logs.values()
                    lines = [block.log for log in logs for block in log.blocks]
                    if matches(deployment, lines):
                        return deployment, lines
                return None

            return await eventually(matching, patient(120))


def datastore(directory: Path) -> DatastoreSpec:
    return DatastoreSpec(type="SQLITE", config=DatastoreConfig(path=str(directory / "pipecd.db")))


async def wait_for_port(port: int) -> None:
    async def accepts_connections() -> bool:
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return True
        return False

    await eventually(accepts_connections, patient(60))


async def install(directory: Path) -> Installation:
    """Creates a database with one piped and one application, and the Git repository."""
    origin = Origin.begin(directory / "origin")
    origin.commit({"cart/app.pipecd.yaml": APPLICATION})
    repository = ApplicationGitRepository(id="site", remote=origin.remote, branch="main")
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
    ports = dict(zip(PORT_FLAGS, free_ports(len(PORT_FLAGS)), strict=True))
    return Installation(directory, origin, ports, piped, api_key)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_stage_survives_the_kill_of_the_control_plane(tmp_path: Path) -> None:
    installation = await install(tmp_path)
    async with AsyncExitStack() as first_server, AsyncExitStack() as running:
        await first_server.enter_async_context(installation.server())
        await running.enter_async_context(installation.running_piped())
        await installation.wait_for_deployment(lambda _, lines: len(lines) > 10)
        await first_server.aclose()
        async with installation.server():
            deployment, lines = await installation.wait_for_deployment(
                lambda deployment, _: DeploymentStatus(deployment.status).is_completed
            )
    assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
    assert lines == [*(f"line {n}" for n in range(1, LINES + 1)), "The script succeeded"]
