# SPDX-License-Identifier: Apache-2.0
"""A web service is deployed through control plane and piped while requests are sent to it."""

import asyncio
import json
import os
import re
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

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
from pipecd.plugins.process.instance import Phase
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment, DeployTargets
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from plugins.process.testbed import SERVICE, load
from servers.origin import Origin
from servers.piped import killed_piped, piped_config
from servers.polling import eventually
from servers.server import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ADMIN = User("shop", "root", ("Admin",))
GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "process.md").read_text()
PIPELINE = (
    "PROCESS_CANARY_ROLLOUT",
    "PROCESS_TRAFFIC_ROUTING",
    "ANALYSIS",
    "PROCESS_PRIMARY_ROLLOUT",
    "PROCESS_TRAFFIC_ROUTING",
    "PROCESS_CANARY_CLEAN",
)
# The service with gates, which are files: while VERSION-VARIANT.unready exists, the health check
# fails, and while VERSION-VARIANT.stay exists, the program does not end.
GATED = """
import os, pathlib, signal, time
version = pathlib.Path("version").read_text()
gate = pathlib.Path(os.environ["GATES"], f"{version}-{os.environ['PIPECD_VARIANT']}")
refused = b"HTTP/1.1 503 Unready\\r\\nContent-Length: 0\\r\\n\\r\\n"

def ready():
    return refused if gate.with_suffix(".unready").exists() else healthy

def stop(*_):
    while gate.with_suffix(".stay").exists():
        time.sleep(0.02)
    os._exit(0)

signal.signal(signal.SIGTERM, stop)
exec(pathlib.Path("server.py").read_text().replace("healthy if", "ready() if"))
"""


@dataclass
class Shop:
    """An installation with one application of the plugin `process`."""

    installation: Installation
    port: int
    status_port: int
    plugins: list[dict[str, Any]]
    kind: str = "Application"
    input: dict[str, Any] = field(default_factory=dict[str, Any])
    """Settings of the next commits that differ."""

    @property
    def programs(self) -> Path:
        return programs_directory(self.installation.directory)

    @property
    def gates(self) -> Path:
        return self.installation.directory / "gates"

    def wait_for_gate(self, name: str) -> dict[str, Any]:
        """Returns a stage that lasts as long as there is a file."""
        script = f"while [ -e {self.gates / name} ]; do sleep 0.05; done"
        return {"name": "SCRIPT_RUN", "with": {"run": script}}

    def config(self, *, has_gates: bool = False, replicas: int = 1, **env: str) -> str:
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
        if has_gates:
            stages.insert(2, self.wait_for_gate("analysis"))
            stages.insert(1, self.wait_for_gate("routing"))
        program = {
            "command": "python3",
            "args": ["-S", "-c", GATED],
            "env": {"GATES": str(self.gates), **env},
            "port": self.port,
            "replicas": replicas,
            "healthCheck": {"path": "/healthz", "interval": "200ms", "timeout": "120s"},
            "gracePeriod": "60s",
            **self.input,
        }
        spec = {
            "name": "cart",
            "plugins": {"process": {"input": program}},
            "pipeline": {"stages": stages},
        }
        document = {"apiVersion": "pipecd.dev/v1beta1", "kind": self.kind, "spec": spec}
        return json.dumps(document)

    def commit(
        self, version: str, *, has_gates: bool = False, replicas: int = 1, **env: str
    ) -> str:
        files = {
            "cart/app.pipecd.yaml": self.config(has_gates=has_gates, replicas=replicas, **env),
            "cart/server.py": SERVICE,
            "cart/version": version,
        }
        return self.installation.origin.commit(files, version)

    def close_gate(self, name: str) -> None:
        self.gates.mkdir(exist_ok=True)
        (self.gates / name).touch()

    def open_gate(self, name: str) -> None:
        (self.gates / name).unlink()

    @asynccontextmanager
    async def piped(self) -> AsyncGenerator[None]:
        """Runs a piped that is killed with SIGKILL at the end of the block."""
        installation = self.installation
        config = installation.directory / "piped.yaml"
        config.write_text(
            piped_config(
                installation.piped.id,
                installation.piped.key,
                address=f"127.0.0.1:{installation.ports['piped-api-port']}",
                remote=installation.origin.remote,
                rest=f"  syncInterval: 1s\n  plugins: {json.dumps(self.plugins)}\n",
            )
        )
        async with killed_piped(config):
            yield

    async def completed(self, commit: str) -> tuple[Deployment, list[str]]:
        """Returns the deployment of a commit, once it is completed, with its log."""
        return await self.installation.wait_for_deployment(
            lambda d, _: d.trigger.commit.hash == commit and DeploymentStatus(d.status).is_completed
        )

    async def reached(self, commit: str, stage: str, status: StageStatus) -> None:
        """Waits until a stage of a deployment has a status."""

        def has_reached(deployment: Deployment, _: list[str]) -> bool:
            stages = {s.name for s in deployment.stages if s.status == status}
            return deployment.trigger.commit.hash == commit and stage in stages

        await self.installation.wait_for_deployment(has_reached)

    async def kill_piped_in(self, commit: str, stage: str) -> None:
        """Runs a piped until it is in the middle of a stage that a gate holds, and kills it."""
        async with self.piped():
            await self.reached(commit, stage, StageStatus.RUNNING)
            # By now the stage has told the supervisor what shall run, and waits for it.
            await asyncio.sleep(0.5)
            await self.reached(commit, stage, StageStatus.RUNNING)

    async def is_unhealthy(self, variant: str) -> None:
        """Waits until the health checks of a variant fail."""
        async for [status] in SupervisorClient.at(self.programs).watch():
            if {i.phase for i in status.of(variant)} == {Phase.UNHEALTHY}:
                return


def programs_directory(directory: Path) -> Path:
    return directory / "programs"


def plugins(directory: Path, status_port: int) -> list[dict[str, Any]]:
    target = {"directory": str(programs_directory(directory)), "statusPort": status_port}
    return [
        {"name": "process", "deployTargets": [{"name": "local", "config": target}]},
        {"name": "analysis"},
        {"name": "scriptrun"},
    ]


@asynccontextmanager
async def open_shop(
    directory: Path, *, name: str = "cart", target: str = "local"
) -> AsyncGenerator[Shop]:
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
        path = ApplicationGitPath(repo=repository, path=name, config_filename="app.pipecd.yaml")
        draft = Application(
            name=name,
            piped_id=piped.id,
            git_path=path,
            deploy_targets_by_plugin={"process": DeployTargets(deploy_targets=[target])},
        )
        await cases.applications.add(draft, by=ADMIN)
        api_key = await cases.api_keys.generate("tests", APIKey.READ_ONLY, by=ADMIN)
    *ports, port, status_port = free_ports(len(PORT_FLAGS) + 2)
    named = dict(zip(PORT_FLAGS, ports, strict=True))
    installation = Installation(directory, origin, named, piped, api_key)
    shop = Shop(installation, port, status_port, plugins(directory, status_port))
    try:
        async with shop.installation.server():
            yield shop
    finally:
        await SupervisorClient.at(shop.programs).shut_down()


@pytest.mark.parametrize("kind", ["Application", "KubernetesApp"])
async def test_a_good_version_is_promoted_and_a_bad_one_rolled_back(
    tmp_path: Path, kind: str
) -> None:
    """In files of both generations: those of the older kinds may have sections of plugins."""
    async with open_shop(tmp_path) as shop, shop.piped():
        shop.kind = kind
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


HANGING = """
import os, socket, time
server = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
time.sleep(60)
"""
BAD_INPUT: dict[str, tuple[dict[str, Any], str, str]] = {
    "a program that exits at once": (
        {"args": ["-c", "print('no database'); raise SystemExit(3)"]},
        "instance 0 exited with code 3 (no database)",
        "the program must keep running",
    ),
    "a program that is not installed": (
        {"command": "no-such-program"},
        "'no-such-program' does not exist in PATH",
        "correct the command",
    ),
    "a health check that hangs": (
        {"args": ["-S", "-c", HANGING], "healthCheck": {"path": "/healthz", "timeout": "4s"}},
        "GET /healthz on port",
        "healthCheck",
    ),
    "a port in use": (
        {"port": 0},
        "is in use by another program",
        "stop that program or choose another port",
    ),
}


async def test_bad_input_fails_with_cause_and_remedy_while_the_old_version_serves(
    tmp_path: Path,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used:
        async with open_shop(tmp_path) as shop, shop.piped():
            one = shop.commit("one")
            deployment, lines = await shop.completed(one)
            assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
            await wait_for_port(shop.port)
            for name, (bad, cause, remedy) in BAD_INPUT.items():
                shop.input = {**bad, "port": used.getsockname()[1]} if "port" in bad else bad
                async with load(shop.port) as counted:
                    deployment, lines = await shop.completed(shop.commit(name))
                    assert counted.failed == {}, name
                    counted.answers.clear()
                    await eventually(lambda counted=counted: counted.answers)
                assert DeploymentStatus(deployment.status) is DeploymentStatus.FAILURE, name
                failed = [s for s in deployment.stages if s.status == StageStatus.FAILURE]
                assert len(failed) == 1, (name, lines)
                assert cause in failed[0].status_reason, (name, lines)
                assert remedy in failed[0].status_reason, (name, lines)
                assert any(failed[0].status_reason in line for line in lines), name
                statuses = {stage.name: StageStatus(stage.status) for stage in deployment.stages}
                assert statuses["PROCESS_ROLLBACK"] is StageStatus.SUCCESS, (name, lines)
                assert set(counted.answers) == {(200, one)}, name


async def test_more_replicas_are_a_quick_sync_that_restarts_nothing(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop, shop.piped():
        await shop.completed(shop.commit("one"))
        client = SupervisorClient.at(shop.programs)
        [before] = await client.statuses()
        more = shop.commit("one", replicas=2)
        deployment, lines = await shop.completed(more)
        assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
        assert [s.name for s in deployment.stages if not s.rollback] == ["PROCESS_SYNC"]
        assert "only replicas changed" in deployment.summary
        [after] = await client.statuses()
        assert len(after.instances) == 2
        assert after.instances[0].pid == before.instances[0].pid


@pytest.mark.parametrize("kind", ["Application", "KubernetesApp"])
async def test_a_piped_killed_in_every_stage_continues(tmp_path: Path, kind: str) -> None:
    async with open_shop(tmp_path) as shop:
        shop.kind = kind
        one = shop.commit("one")
        shop.close_gate("one-primary.unready")
        await shop.kill_piped_in(one, "PROCESS_SYNC")
        shop.open_gate("one-primary.unready")
        async with shop.piped():
            await shop.completed(one)
        await wait_for_port(shop.port)
        supervisor = int((shop.programs / "control" / "lock").read_text())
        async with load(shop.port) as counted:
            two = await promote_with_a_killed_piped(shop)
            assert counted.failed == {}
            bad = await roll_back_with_a_killed_piped(shop)
            assert set(counted.failed) == {(500, bad)}
        # Neither piped nor its deaths touched the supervisor.
        os.kill(supervisor, 0)
        [status] = await SupervisorClient.at(shop.programs).statuses()
        assert {i.commit for i in status.instances if not i.is_leaving} == {two}


async def promote_with_a_killed_piped(shop: Shop) -> str:
    two = shop.commit("two", has_gates=True)
    shop.close_gate("routing")
    shop.close_gate("two-canary.unready")
    await shop.kill_piped_in(two, "PROCESS_CANARY_ROLLOUT")
    shop.open_gate("two-canary.unready")
    async with shop.piped():
        await shop.reached(two, "SCRIPT_RUN", StageStatus.RUNNING)
    # A canary that is not healthy gets no requests, so the stage waits.
    shop.close_gate("two-canary.unready")
    await shop.is_unhealthy("canary")
    shop.open_gate("routing")
    await shop.kill_piped_in(two, "PROCESS_TRAFFIC_ROUTING")
    shop.close_gate("two-primary.unready")
    shop.open_gate("two-canary.unready")
    await shop.kill_piped_in(two, "PROCESS_PRIMARY_ROLLOUT")
    shop.close_gate("two-canary.stay")
    shop.open_gate("two-primary.unready")
    await shop.kill_piped_in(two, "PROCESS_CANARY_CLEAN")
    shop.open_gate("two-canary.stay")
    async with shop.piped():
        deployment, lines = await shop.completed(two)
    assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
    return two


async def roll_back_with_a_killed_piped(shop: Shop) -> str:
    bad = shop.commit("bad", has_gates=True, STATUS="500 Broken")
    shop.close_gate("analysis")
    async with shop.piped():
        await shop.reached(bad, "PROCESS_TRAFFIC_ROUTING", StageStatus.SUCCESS)
    # The rollback waits until primary is healthy, which serves all the same.
    shop.close_gate("two-primary.unready")
    await shop.is_unhealthy("primary")
    shop.open_gate("analysis")
    await shop.kill_piped_in(bad, "PROCESS_ROLLBACK")
    shop.open_gate("two-primary.unready")
    async with shop.piped():
        deployment, lines = await shop.completed(bad)
    statuses = {stage.name: StageStatus(stage.status) for stage in deployment.stages}
    assert statuses["ANALYSIS"] is StageStatus.FAILURE
    assert statuses["PROCESS_ROLLBACK"] is StageStatus.SUCCESS, lines
    return bad


async def test_programs_go_on_without_piped(tmp_path: Path) -> None:
    async with open_shop(tmp_path) as shop:
        async with shop.piped():
            await shop.completed(shop.commit("one"))
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


def sample(language: str, containing: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.M | re.S)
    return next(each for each in found if containing in each)


async def test_the_sample_of_the_guide_runs(tmp_path: Path) -> None:
    """With its plugins and its analysis; only ports, the directory and durations differ."""
    piped = yaml.safe_load(sample("yaml", "kind: Piped"))["spec"]
    [target] = [t for p in piped["plugins"] for t in p.get("deployTargets", ())]
    async with open_shop(tmp_path, name="shop", target=target["name"]) as shop:
        target["config"] |= {"directory": str(shop.programs), "statusPort": shop.status_port}
        shop.plugins = piped["plugins"]
        config = sample("yaml", "kind: Application")
        for before, after in {
            "port: 8000": f"port: {shop.port}",
            "127.0.0.1:9180": f"127.0.0.1:{shop.status_port}",
            "duration: 2m": "duration: 3s",
            "interval: 5s": "interval: 500ms",
        }.items():
            assert before in config
            config = config.replace(before, after)
        server = sample("python", "ThreadingHTTPServer")
        files = {"shop/app.pipecd.yaml": config, "shop/server.py": server}
        one = shop.installation.origin.commit(files, "one")
        async with shop.piped():
            deployment, lines = await shop.completed(one)
            assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
            async with load(shop.port) as counted:
                two = shop.installation.origin.commit({"shop/new": ""}, "two")
                deployment, lines = await shop.completed(two)
            assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS, lines
        assert counted.failed == {}
        stages = {s.name: StageStatus(s.status) for s in deployment.stages if not s.rollback}
        assert stages == dict.fromkeys(PIPELINE, StageStatus.SUCCESS)
        assert (200, f"shop at {two}\n") in counted.answers
