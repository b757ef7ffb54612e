# SPDX-License-Identifier: Apache-2.0
"""An installation of whole programs: a control plane, a repository and pipeds."""

import asyncio
import contextlib
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from servers.origin import Origin
from servers.piped import piped_config

TIMEOUT = 120.0

T = TypeVar("T")


@dataclass
class Program:
    """A running program and what it has printed so far."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self.lines)

    async def read(self) -> None:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.lines.append(line.decode("utf-8", "replace"))

    async def stop(self, grace: float = 30) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise


@dataclass(frozen=True)
class Completed:
    """The exit code and output of a command."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class Agent:
    """A registered piped and its configuration file."""

    id: str
    config: Path


class Installation(ABC):
    """One control plane with one repository, and the programs that connect to it."""

    # The address that pipeds connect to.
    address: str

    def __init__(self, origin: Origin, directory: Path) -> None:
        self.origin, self.directory = origin, directory

    @abstractmethod
    async def register(self, name: str) -> tuple[str, str]:
        """Registers a piped; its id and its key."""

    @abstractmethod
    async def deployments(self) -> list[Deployment]:
        """All deployments of the project."""

    async def register_piped(self, name: str, rest: str = "") -> Agent:
        """Registers a piped and writes its configuration; `rest` is appended to its spec."""
        id_, key = await self.register(name)
        text = piped_config(
            id_,
            key,
            address=self.address,
            remote=self.origin.remote,
            project="demo",
            rest=f"  syncInterval: 5s\n  appConfigSyncInterval: 5s\n{rest}",
        )
        file = self.directory / f"{name}.yaml"
        await asyncio.to_thread(file.write_text, text)
        return Agent(id_, file)

    @asynccontextmanager
    async def running(
        self, program: Path, *arguments: str, grace: float = 30
    ) -> AsyncGenerator[Program, None]:
        """Runs a program with its own home directory; it must exit with 0 on SIGTERM."""
        started = await self._start(program, *arguments)
        reading = asyncio.create_task(started.read())
        try:
            yield started
        finally:
            await started.stop(grace)
            await reading
        assert started.process.returncode == 0, started.text

    @asynccontextmanager
    async def killed(self, program: Path, *arguments: str) -> AsyncGenerator[Program, None]:
        """Runs a program that is killed with everything it started at the end of the block."""
        started = await self._start(program, *arguments, is_leader=True)
        reading = asyncio.create_task(started.read())
        try:
            yield started
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.process.pid, signal.SIGKILL)
            await started.process.wait()
            await reading

    async def _start(self, program: Path, *arguments: str, is_leader: bool = False) -> Program:
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        # Settings of this machine for Terraform are not meant for the tests.
        variables = {k: v for k, v in os.environ.items() if not k.startswith("TF_")}
        process = await asyncio.create_subprocess_exec(
            program,
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**variables, "HOME": str(home), "CHECKPOINT_DISABLE": "1"},
            start_new_session=is_leader,
        )
        return Program(process)

    async def run(self, program: Path, *arguments: str) -> Completed:
        """Runs a program to its end."""
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(TIMEOUT):
            out, err = await process.communicate()
        return Completed(process.returncode or 0, out.decode(), err.decode())

    async def eventually(
        self,
        question: Callable[[], Awaitable[T | None]],
        program: Program | None = None,
        *,
        within: float = TIMEOUT,
    ) -> T:
        """Polls until the result is true; on timeout fails with what the program printed."""
        try:
            async with asyncio.timeout(within):
                while not (answer := await question()):
                    if program is not None:
                        assert program.process.returncode is None, program.text
                    await asyncio.sleep(0.05)
                return answer
        except TimeoutError:
            raise AssertionError(
                program.text if program else "the condition was not met in time"
            ) from None

    async def deployment(self, commit: str) -> Deployment | None:
        """The deployment of a commit."""
        found = await self.deployments()
        return next((d for d in found if d.trigger.commit.hash == commit), None)

    async def ended(self, commit: str) -> Deployment | None:
        """The deployment of a commit once it is completed."""
        deployment = await self.deployment(commit)
        if deployment and DeploymentStatus(deployment.status).is_completed:
            return deployment
        return None

    async def stage(self, commit: str, name: str) -> tuple[str, str] | None:
        """The ids of the deployment and of its stage of that name once the stage runs."""
        deployment = await self.deployment(commit)
        for one in deployment.stages if deployment else ():
            if deployment and one.name == name and one.status == StageStatus.RUNNING:
                return deployment.id, one.id
        return None
