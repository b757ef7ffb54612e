# SPDX-License-Identifier: Apache-2.0
"""Authenticated calls per second of a control plane, in the mix that pipeds make them."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from pipecd.model.ids import new_id
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import (
    Commit,
    Deployment,
    DeploymentTrigger,
    PipelineStage,
    StageStatus,
)
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import api_pb2, piped_pb2
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2_grpc import PipedServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel

CONNECTIONS = 16
SECONDS = 8.0
PLANE = """
import asyncio, sys
from pathlib import Path
from pipecd.config.read import read_control_plane
from pipecd.controlplane.app import ServerSettings, control_plane
from pipecd.controlplane.auth.subject import Person
from pipecd.proto.model.apikey_pb2 import APIKey

async def main() -> None:
    spec = read_control_plane(Path(sys.argv[1]).read_text(), file="bench")
    settings = ServerSettings(spec, b"k" * 32, host="127.0.0.1", port=0)
    async with control_plane(settings) as plane:
        await plane.cases.projects.add("bench")
        admin = Person("bench", "admin", ("Admin",))
        key = await plane.cases.api_keys.generate("bench", APIKey.READ_WRITE, by=admin)
        print(plane.port, key, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
CONFIG = """apiVersion: pipecd.dev/v1beta1
kind: ControlPlane
spec:
  address: http://127.0.0.1
  stateKey: bench
  datastore: {{type: SQLITE, config: {{path: {data}/pipecd.db}}}}
  filestore: {{type: LOCAL, config: {{path: {data}/files}}}}
"""


def start(data: Path) -> tuple["subprocess.Popen[str]", str, str]:
    """A control plane of its own process; answers it with its address and an API key."""
    config = data / "control-plane.yaml"
    config.write_text(CONFIG.format(data=data))
    process = subprocess.Popen(
        [sys.executable, "-c", PLANE, str(config)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    assert process.stdout is not None
    port, key = process.stdout.readline().split()
    return process, f"127.0.0.1:{port}", key


class Agent:
    """One piped with one connection, one application and one running deployment."""

    def __init__(self, api: Any, deployment: Deployment) -> None:
        self._api, self._deployment, self._index = api, deployment, 0

    async def round(self) -> list[float]:
        """One of each call of the mix; answers how long each took."""
        taken: list[float] = []
        stage = self._deployment.stages[0]
        self._index += 1
        block = LogBlock(index=self._index, log="a line of a log", created_at=1)
        for call in (
            self._api.ListUnhandledCommands(piped_pb2.ListUnhandledCommandsRequest()),
            self._api.ListNotCompletedDeployments(piped_pb2.ListNotCompletedDeploymentsRequest()),
            self._api.ReportStageStatusChanged(
                piped_pb2.ReportStageStatusChangedRequest(
                    deployment_id=self._deployment.id,
                    stage_id=stage.id,
                    status=StageStatus.STAGE_RUNNING,
                    completed_at=1,
                )
            ),
            self._api.ReportStageLogs(
                piped_pb2.ReportStageLogsRequest(
                    deployment_id=self._deployment.id, stage_id=stage.id, blocks=[block]
                )
            ),
        ):
            began = time.perf_counter()
            await call
            taken.append(time.perf_counter() - began)
        return taken


def deployment(application: str, piped: str) -> Deployment:
    git_path = ApplicationGitPath(repo=ApplicationGitRepository(id="r"), path="app")
    commit = Commit(hash="0" * 40, message="m", author="a", branch="main", created_at=1)
    return Deployment(
        id=new_id(),
        application_id=application,
        application_name="app",
        piped_id=piped,
        project_id="bench",
        git_path=git_path,
        trigger=DeploymentTrigger(commit=commit, timestamp=1),
        stages=[PipelineStage(id=new_id(), name="WAIT", created_at=1, updated_at=1)],
        created_at=1,
        updated_at=1,
    )


async def agent(address: str, external: Any, opened: AsyncExitStack) -> Agent:
    registered = await external.RegisterPiped(api_pb2.RegisterPipedRequest(name="p", desc="d"))
    token = credentials.piped_token("bench", registered.id, registered.key)
    channel = await opened.enter_async_context(
        open_channel(address, authorization=token, insecure=True)
    )
    api: Any = PipedServiceStub(channel)
    repository = ApplicationGitRepository(id="r", remote="https://host/o/r.git", branch="main")
    await api.ReportPipedMeta(
        piped_pb2.ReportPipedMetaRequest(version="v1", repositories=[repository])
    )
    added = await external.AddApplication(
        api_pb2.AddApplicationRequest(
            name="app",
            piped_id=registered.id,
            git_path=ApplicationGitPath(repo=repository, path="app"),
            platform_provider="p",
        )
    )
    made = deployment(added.application_id, registered.id)
    await api.CreateDeployment(piped_pb2.CreateDeploymentRequest(deployment=made))
    return Agent(api, made)


async def drive(one: Agent, until: float) -> list[float]:
    taken: list[float] = []
    while time.perf_counter() < until:
        taken += await one.round()
    return taken


async def measure(address: str, key: str) -> None:
    async with AsyncExitStack() as opened:
        channel = await opened.enter_async_context(
            open_channel(address, authorization=credentials.api_key(key), insecure=True)
        )
        external = APIServiceStub(channel)
        agents = [await agent(address, external, opened) for _ in range(CONNECTIONS)]
        began = time.perf_counter()
        answers = await asyncio.gather(*(drive(a, began + SECONDS) for a in agents))
        seconds = time.perf_counter() - began
    taken = sorted(t for one in answers for t in one)
    rate = len(taken) / seconds
    p99 = taken[int(0.99 * len(taken))]
    print(f"calls per second     {rate:8.0f}      (asked: 1500; upstream: 22)")
    print(f"latency p50          {statistics.median(taken) * 1000:8.1f} ms")
    print(f"latency p99          {p99 * 1000:8.1f} ms   (asked: 50)")


def main() -> None:
    with tempfile.TemporaryDirectory() as data:
        process, address, key = start(Path(data))
        try:
            asyncio.run(measure(address, key))
        finally:
            process.terminate()
            process.wait(10)


if __name__ == "__main__":
    main()
