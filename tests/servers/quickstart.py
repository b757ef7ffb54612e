# SPDX-License-Identifier: Apache-2.0
"""`pipecd quickstart` as a process."""

import asyncio
import os
import re
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from servers.polling import eventually
from servers.programs import OUR_PIPECD

if TYPE_CHECKING:
    from pipecd.proto.service.api_pb2_grpc import APIServiceAsyncStub

TIMEOUT = 90.0


@dataclass
class Quickstart:
    """A running `pipecd quickstart`; `lines` is what it has printed so far."""

    process: asyncio.subprocess.Process
    data: Path
    address: str = ""
    lines: list[str] = field(default_factory=list[str])

    @property
    def output(self) -> str:
        return "".join(self.lines)

    @property
    def repository(self) -> Path:
        return self.data / "sample"

    @property
    def service(self) -> str:
        """The address of the web service."""
        match = re.search(r"web service: (\S+)", self.output)
        assert match
        return match[1]

    @property
    def password(self) -> str:
        match = re.search(r"password +(\S+)", self.output)
        assert match
        return match[1]

    def head(self) -> str:
        """The newest commit of the sample repository."""
        return self._git("rev-parse", "HEAD")

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        """Writes the files, commits them and returns the hash."""
        for name, content in files.items():
            path = self.repository / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self._git("add", "--all")
        self._git("commit", "--quiet", "--message", message)
        return self.head()

    def _git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=dev", "-c", "user.email=dev@localhost")
        command = ["git", "-C", str(self.repository), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @asynccontextmanager
    async def api(self) -> "AsyncGenerator[APIServiceAsyncStub]":
        key = (self.data / "api-key").read_text()
        async with open_channel(
            self.address, authorization=credentials.api_key(key), insecure=True
        ) as channel:
            yield APIServiceStub(channel)

    async def wait_for_application(self, matches: Callable[[Application], bool]) -> Application:
        """Returns a sample application once it matches."""
        async with self.api() as api:

            async def matching() -> Application | None:
                listed = await api.ListApplications(pb.ListApplicationsRequest())
                return next(filter(matches, listed.applications), None)

            return await eventually(matching, TIMEOUT)

    async def wait_for_completed(self, commit: str, application: str = "hello") -> Deployment:
        """Returns the deployment of an application at a commit once it is completed."""
        async with self.api() as api:

            async def completed() -> Deployment | None:
                listed = await api.ListDeployments(pb.ListDeploymentsRequest())
                for deployment in listed.deployments:
                    is_completed = DeploymentStatus(deployment.status).is_completed
                    is_meant = deployment.application_name == application
                    if is_meant and deployment.trigger.commit.hash == commit and is_completed:
                        return deployment
                return None

            return await eventually(completed, TIMEOUT)

    async def log_lines(self, deployment: Deployment) -> list[str]:
        """The log lines of all stages."""
        async with self.api() as api:
            response = await api.ListStageLogs(pb.ListStageLogsRequest(deployment_id=deployment.id))
        return [block.log for log in response.stage_logs.values() for block in log.blocks]

    async def stop(self, signal_: signal.Signals = signal.SIGINT) -> int:
        """Sends the signal and returns the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(signal_)
        async with asyncio.timeout(TIMEOUT):
            return await self.process.wait()


@asynccontextmanager
async def start_quickstart(data: Path) -> AsyncGenerator[Quickstart]:
    """Runs a quickstart on a free port until the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *(OUR_PIPECD, "quickstart", "--data-dir", str(data), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"},
    )
    quickstart = Quickstart(process, data)

    async def read_lines() -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            quickstart.lines.append(line.decode())

    def printed_address() -> str:
        assert process.returncode is None, f"it exited: {quickstart.output}"
        match = re.search(r"http://(127\.0\.0\.1:\d+)", quickstart.output)
        return match[1] if match and "Ctrl-C" in quickstart.output else ""

    reading = asyncio.create_task(read_lines())
    try:
        quickstart.address = await eventually(printed_address, TIMEOUT)
        yield quickstart
    finally:
        await quickstart.stop()
        await reading
