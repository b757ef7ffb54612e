# SPDX-License-Identifier: Apache-2.0
"""Whole processes, as a person starts them."""

import asyncio
import os
import re
import signal
import subprocess
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from servers.programs import OUR_PIPECD

PATIENCE = 90.0


def quickstart_arguments(data: Path, *more: str) -> list[str]:
    return [str(OUR_PIPECD), "quickstart", "--data-dir", str(data), "--port", "0", *more]


@dataclass
class Quickstart:
    """A running `pipecd quickstart`; `shown` is what it has printed so far."""

    process: asyncio.subprocess.Process
    data: Path
    address: str
    shown: list[str]

    @property
    def repository(self) -> Path:
        return self.data / "sample"

    @property
    def password(self) -> str:
        found = re.search(r"password +(\S+)", "".join(self.shown))
        assert found
        return found[1]

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        """Commits as a person does and answers the hash."""
        for name, content in files.items():
            path = self.repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        return commit_all(self.repository, message)

    @asynccontextmanager
    async def api(self) -> AsyncGenerator[Any, None]:
        key = (self.data / "api-key").read_text()
        async with open_channel(
            self.address, authorization=credentials.api_key(key), insecure=True
        ) as channel:
            yield APIServiceStub(channel)

    async def application(
        self, wanted: Callable[[Application], bool] = lambda _: True
    ) -> Application:
        """The sample application once it is as wanted."""
        async with self.api() as api, asyncio.timeout(PATIENCE):
            while True:
                listed = await api.ListApplications(pb.ListApplicationsRequest())
                for application in listed.applications:
                    if wanted(application):
                        return application
                await asyncio.sleep(0.05)

    async def finished(self, sha: str) -> Deployment:
        """The deployment of that commit once it has ended."""
        async with self.api() as api, asyncio.timeout(PATIENCE):
            while True:
                listed = await api.ListDeployments(pb.ListDeploymentsRequest())
                for deployment in listed.deployments:
                    is_it = deployment.trigger.commit.hash == sha
                    if is_it and DeploymentStatus(deployment.status).is_completed:
                        return deployment
                await asyncio.sleep(0.05)

    async def logs(self, deployment: Deployment) -> dict[str, list[str]]:
        """What each stage has logged."""
        async with self.api() as api:
            answer = await api.ListStageLogs(pb.ListStageLogsRequest(deployment_id=deployment.id))
        return {stage: [b.log for b in log.blocks] for stage, log in answer.stage_logs.items()}

    async def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            return await self.process.wait()


def commit_all(repository: Path, message: str) -> str:
    git = ["git", "-C", str(repository), "-c", "user.name=dev", "-c", "user.email=dev@localhost"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", message], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    return head.stdout.strip()


StartQuickstart = Callable[[Path], AbstractAsyncContextManager[Quickstart]]


@pytest.fixture
def quickstart() -> StartQuickstart:
    """Starts a quickstart on a free port: `async with quickstart(directory) as qs`."""

    @asynccontextmanager
    async def start(data: Path) -> AsyncGenerator[Quickstart, None]:
        process = await asyncio.create_subprocess_exec(
            *quickstart_arguments(data),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
        )
        shown: list[str] = []
        assert process.stdout is not None
        reading = asyncio.create_task(read_into(process.stdout, shown))
        running = Quickstart(process, data, "", shown)
        try:
            running.address = await address_in(shown, process)
            yield running
        finally:
            await running.stop()
            await reading

    return start


async def read_into(stream: asyncio.StreamReader, lines: list[str]) -> None:
    while line := await stream.readline():
        lines.append(line.decode())


async def address_in(shown: list[str], process: asyncio.subprocess.Process) -> str:
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE:
        text = "".join(shown)
        if (found := re.search(r"http://(127\.0\.0\.1:\d+)", text)) and "Ctrl-C" in text:
            return found[1]
        assert process.returncode is None, f"it ended: {text}"
        await asyncio.sleep(0.02)
    raise AssertionError(f"not ready within {PATIENCE} s: {''.join(shown)}")
