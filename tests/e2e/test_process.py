# SPDX-License-Identifier: Apache-2.0
"""A web service is deployed through control plane and piped while requests are sent to it."""

import json
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.test_crash import PORT_FLAGS, Installation, datastore, wait_for_port
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import build_use_cases
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.plugins.process.client import SupervisorClient
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from plugins.process.testbed import SERVICE, load
from servers.origin import Origin
from servers.piped import killed_piped, piped_config
from servers.server import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ADMIN = User("shop", "root", ("Admin",))
SLOW = "import time; time.sleep(0.5); exec(open('server.py').read())"
PIPELINE = (
    "PROCESS_CANARY_ROLLOUT",
    "PROCESS_TRAFFIC_ROUTING",
    "ANALYSIS",
    "PROCESS_PRIMARY_ROLLOUT",
    "PROCESS_TRAFFIC_ROUTING",
    "PROCESS_CANARY_CLEAN",
)


@dataclass
class Shop:
    """An installation with one application of the plugin `process`."""

    installation: Installation
    port: int
    status_port: int

    @property
    def programs(self) -> Path:
        return self.installation.directory / "programs"

    def config(self, **env: str) -> str:
        url = f"http://127.0.0.1:{self.status_port}/applications/cart/canary"
        check = {
            "url": f"{url}?max-error-rate=0.05&min-requests=5",
            "expectedCode": 200,
            "interval": "500ms",
        }
        options = {
            1: {"canary": 30},
            2: {"duration": "3s", "https": [check]},
            4: {"primary": 100},
        }
        stages = [{"name": name, "with": options.get(i, {})} for i, name in enumerate(PIPELINE)]
        program = {
            "command": "python3",
            "args": ["-S", "-c", SLOW],
            "env": env,
            "port": self.port,
            "healthCheck": {"path": "/healthz", "interval": "200ms"},
            "gracePeriod": "5s",
        }
        spec = {
            "name": "cart",
            "plugins": {"process": {"input": program}},
            "pipeline": {"stages": stages},
        }
        document = {"apiVersion": "pipecd.dev/v1beta1", "kind": "Application", "spec": spec}
        return json.dumps(document)

    def commit(self, version: str, **env: str) -> str:
        files = {
            "cart/app.pipecd.yaml": self.config(**env),
            "cart/server.py": SERVICE,
            "cart/version": version,
        }
        return self.installation.origin.commit(files, version)

    @asynccontextmanager
    async def piped(self) -> AsyncGenerator[None]:
        """Runs a piped that is killed with SIGKILL at the end of the block."""
        installation = self.installation
        target = {"directory": str(self.programs), "statusPort": self.status_port}
        plugins = [
            {"name": "process", "deployTargets": [{"name": "local", "config": target}]},
            {"name": "analysis"},
        ]
        config = installation.directory / "piped.yaml"
        config.write_text(
            piped_config(
                installation.piped.id,
                installation.piped.key,
                address=f"127.0.0.1:{installation.ports['piped-api-port']}",
                remote=installation.origin.remote,
                rest=f"  syncInterval: 1s\n  plugins: {json.dumps(plugins)}\n",
            )
        )
        async with killed_piped(config):
            yield

    async def completed(self, commit: str) -> tuple[Deployment, list[str]]:
        """Returns the deployment of a commit, once it is completed, with its log."""
        return await self.installation.wait_for_deployment(
            lambda d, _: d.trigger.commit.hash == commit and DeploymentStatus(d.status).is_completed
        )

    async def reached(self, commit: str, index: int = 0, *, is_rollback: bool = False) -> None:
        """Waits until a stage of a deployment is running, or is already completed."""
        running = (StageStatus.RUNNING, StageStatus.SUCCESS)

        def has_reached(deployment: Deployment, _: list[str]) -> bool:
            stages = [
                stage
                for stage in deployment.stages
                if stage.rollback == is_rollback and (is_rollback or stage.index == index)
            ]
            is_meant = deployment.trigger.commit.hash == commit
            return is_meant and any(StageStatus(s.status) in running for s in stages)

        await self.installation.wait_for_deployment(has_reached)


@asynccontextmanager
async def open_shop(directory: Path) -> AsyncGenerator[Shop]:
    """Opens an installation whose first commit is deployed; in the end nothing runs."""
    origin = Origin.begin(directory / "origin")
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
        draft = Application(
            name="cart",
            piped_id=piped.id,
            git_path=path,
            deploy_targets_by_plugin={"process": DeployTargets(deploy_targets=["local"])},
        )
        await cases.applications.add(draft, by=ADMIN)
        api_key = await cases.api_keys.generate("tests", APIKey.READ_ONLY, by=ADMIN)
    *ports, port, status_port = free_ports(len(PORT_FLAGS) + 2)
    named = dict(zip(PORT_FLAGS, ports, strict=True))
    shop = Shop(Installation(directory, origin, named, piped, api_key), port, status_port)
    try:
        async with shop.installation.server():
            yield shop
    finally:
        await SupervisorClient.at(shop.programs).shut_down()


async def test_a_good_version_is_promoted_and_a_bad_one_rolled_back(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, shop.piped():
        one = shop.commit("one")
        deployment, lines = await shop.completed(one)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
        await wait_for_port(shop.port)
        async with load(shop.port) as counted:
            two = shop.commit("two")
            deployment, lines = await shop.completed(two)
            assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
            assert [s.name for s in deployment.stages if not s.rollback] == list(PIPELINE)
            assert counted.failed == {}
            assert {body for _, body in counted.answers} == {one, two}
            bad = shop.commit("bad", STATUS="500 Broken")
            deployment, lines = await shop.completed(bad)
            assert DeploymentStatus(deployment.status) is DeploymentStatus.FAILURE
            statuses = {stage.name: StageStatus(stage.status) for stage in deployment.stages}
            assert statuses["ANALYSIS"] is StageStatus.FAILURE
            assert statuses["PROCESS_ROLLBACK"] is StageStatus.SUCCESS
            # Nothing failed but what the canary itself answered.
            assert set(counted.failed) == {(500, bad)}
            counted.answers.clear()
        assert set(counted.answers) <= {(200, two)}


async def test_a_piped_killed_in_every_stage_continues(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        async with shop.piped():
            one = shop.commit("one")
            await shop.completed(one)
        await wait_for_port(shop.port)
        supervisor = int((shop.programs / "control" / "lock").read_text())
        async with load(shop.port) as counted:
            two = shop.commit("two")
            for index in range(len(PIPELINE)):
                async with shop.piped():
                    await shop.reached(two, index)
            async with shop.piped():
                deployment, lines = await shop.completed(two)
            assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
            assert counted.failed == {}
            bad = shop.commit("bad", STATUS="500 Broken")
            async with shop.piped():
                await shop.reached(bad, is_rollback=True)
            async with shop.piped():
                deployment, lines = await shop.completed(bad)
            statuses = {stage.name: StageStatus(stage.status) for stage in deployment.stages}
            assert statuses["PROCESS_ROLLBACK"] is StageStatus.SUCCESS, lines
            assert set(counted.failed) == {(500, bad)}
        # Neither piped nor its deaths touched the supervisor.
        os.kill(supervisor, 0)
        [status] = await SupervisorClient.at(shop.programs).statuses()
        assert {i.commit for i in status.instances if not i.is_leaving} == {two}


async def test_programs_go_on_without_piped(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        async with AsyncExitStack() as running:
            await running.enter_async_context(shop.piped())
            one = shop.commit("one")
            await shop.completed(one)
        client = SupervisorClient.at(shop.programs)
        [before] = await client.statuses()
        [instance] = before.instances
        os.kill(instance.pid, signal.SIGKILL)
        async with load(shop.port) as counted:
            async for [status] in client.watch():
                # The supervisor restarts it, without a piped.
                if status.routed and status.instances[0].pid not in (0, instance.pid):
                    break
            counted.answers.clear()
            async with shop.piped():
                two = shop.commit("two")
                deployment, lines = await shop.completed(two)
            assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
        assert counted.failed == {}
