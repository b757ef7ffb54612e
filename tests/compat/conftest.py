# SPDX-License-Identifier: Apache-2.0
"""Binaries of upstream, given by the environment, and what they are run with.

Nothing here builds them: a test without its binary is skipped and says which one it needs.
"""

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from structlog.testing import capture_logs

from pipecd.controlplane.stores.deployments import DeploymentFilter
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped

PATIENCE = 120.0

T = TypeVar("T")


def given(variable: str, what: str) -> Path:
    """The path in an environment variable; without it the test is skipped."""
    value = os.environ.get(variable, "")
    if not value:
        pytest.skip(f"set {variable} to {what} to run this test")
    path = Path(value)
    assert path.exists(), f"{variable} names {value}, which is not there"
    return path.resolve()


@pytest.fixture
def upstream_pipectl() -> Path:
    return given("PIPECD_UPSTREAM_PIPECTL", "the path of upstream's pipectl")


@pytest.fixture
def upstream_piped() -> Path:
    return given("PIPECD_UPSTREAM_PIPED", "the path of upstream's first-generation piped")


@pytest.fixture
def upstream_pipedv1() -> Path:
    return given("PIPECD_UPSTREAM_PIPEDV1", "the path of upstream's piped for plugins")


@pytest.fixture
def upstream_plugins() -> Path:
    return given(
        "PIPECD_UPSTREAM_PLUGINS", "a directory with upstream's plugins, named as they are"
    )


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

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(30):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Origin:
    """A repository as a person would have it, and where pipeds find it."""

    path: Path

    @property
    def remote(self) -> str:
        return f"file://{self.path}"

    def commit(self, files: Mapping[str, str], message: str = "a change") -> str:
        """Writes files, commits them and returns the hash."""
        for name, content in files.items():
            file = self.path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", message)
        return self.git("rev-parse", "HEAD")

    def branch(self, files: Mapping[str, str]) -> tuple[str, str]:
        """Commits to a new branch and returns its name and hash."""
        self.git("checkout", "--quiet", "-b", "feature")
        commit = self.commit(files, "a proposal")
        self.git("checkout", "--quiet", "main")
        return "feature", commit

    def git(self, *arguments: str) -> str:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"]
        done = subprocess.run(
            ["git", *who, *arguments], cwd=self.path, env=variables, check=True, capture_output=True
        )
        return done.stdout.decode().strip()


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    path = tmp_path / "origin"
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", path], check=True)
    made = Origin(path)
    # A piped may push to the branch that is checked out.
    made.git("config", "receive.denyCurrentBranch", "updateInstead")
    made.commit({"README": "sources\n"}, "the beginning")
    return made


@dataclass(frozen=True)
class Agent:
    """A registered piped and the file that it is started with."""

    id: str
    config: Path


class Bed:
    """One control plane of ours with one repository, and the programs that are tried on it."""

    def __init__(self, plane: Any, origin: Origin, directory: Path) -> None:
        self.plane, self.cases, self.stores = plane, plane.running.cases, plane.running.stores
        self.admin = plane.admin
        self.origin, self.directory = origin, directory

    async def enrol(self, name: str, rest: str = "") -> Agent:
        """Registers a piped and writes its file; `rest` goes on with its spec."""
        registered = await self.cases.pipeds.register(name, "", by=self.admin)
        text = f"""\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: demo
  pipedID: {registered.id}
  pipedKeyData: {base64.b64encode(registered.key.encode()).decode()}
  apiAddress: {self.plane.address}
  syncInterval: 5s
  appConfigSyncInterval: 5s
  repositories:
    - {{repoId: site, remote: "{self.origin.remote}", branch: main}}
{rest}"""
        file = self.directory / f"{name}.yaml"
        await asyncio.to_thread(file.write_text, text)
        return Agent(registered.id, file)

    async def add_application(self, path: str, draft: Application) -> str:
        """Registers an application, also before its piped has told its repositories."""
        repository = ApplicationGitRepository(id="site", remote=self.origin.remote, branch="main")

        def describe(piped: Piped) -> None:
            del piped.repositories[:]
            piped.repositories.append(repository)

        await self.stores.pipeds.update(draft.piped_id, describe)
        draft.git_path.CopyFrom(
            ApplicationGitPath(repo=repository, path=path, config_filename="app.pipecd.yaml")
        )
        id_: str = await self.cases.applications.add(draft, by=self.admin)
        return id_

    @asynccontextmanager
    async def running(self, program: Path, *arguments: str) -> AsyncGenerator[Program, None]:
        """Runs a program with a home of its own; it must end well when it is asked to."""
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
        )
        started = Program(process)
        reading = asyncio.create_task(started.read())
        try:
            yield started
        finally:
            await started.stop()
            await reading
        assert process.returncode == 0, started.text

    async def run(self, program: Path, *arguments: str) -> Ended:
        """Runs a program to its end."""
        process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        return Ended(process.returncode or 0, out.decode(), err.decode())

    def pipectl_flags(self) -> list[str]:
        return ["--address", self.plane.address, "--api-key", self.plane.api_key, "--insecure"]

    async def eventually(
        self, question: Callable[[], Awaitable[T]], program: Program | None = None
    ) -> T:
        """Asks until the answer is true; tells what the program printed if that never comes."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not (answer := await question()):
                    if program is not None:
                        assert program.process.returncode is None, program.text
                    await asyncio.sleep(0.05)
                return answer
        except TimeoutError:
            raise AssertionError(program.text if program else "it never came true") from None

    async def introduced(self, piped_id: str) -> Piped | None:
        """A piped once it has told what it is."""
        piped: Piped = await self.stores.pipeds.get(piped_id)
        return piped if piped.started_at else None

    async def is_online(self, piped_id: str) -> bool:
        listed = await self.cases.pipeds.listed(by=self.admin)
        return any(p.id == piped_id and p.status == Piped.ONLINE for p in listed)

    async def deployment(self, commit: str) -> Deployment | None:
        page = await self.cases.deployments.listed(DeploymentFilter(project="demo"), by=self.admin)
        return next((d for d in page.items if d.trigger.commit.hash == commit), None)

    async def ended(self, commit: str) -> Deployment | None:
        """The deployment of a commit once it is over."""
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

    async def logs(self, deployment: Deployment) -> dict[str, str]:
        """The whole log of every stage, by the name of the stage."""
        parts = await self.cases.logs.of_deployment(deployment.id, by=self.admin)
        names = {stage.id: stage.name for stage in deployment.stages}
        assert all(part.completed for part in parts.values() if part.blocks)
        return {
            names[id_]: "\n".join(block.log for block in part.blocks) for id_, part in parts.items()
        }


OpenBed = Callable[..., AbstractAsyncContextManager[Bed]]


@pytest.fixture
def open_bed(start_plane: Any, origin: Origin, tmp_path: Path) -> OpenBed:
    """Opens a bed: `async with open_bed() as bed`; settings go to the control plane.

    With `all_answered` the control plane must not have refused anything, apart from the question
    for a deployment that there is not yet.
    """

    @asynccontextmanager
    async def opening(*, all_answered: bool = False, **settings: Any) -> AsyncGenerator[Bed, None]:
        with capture_logs() as logged:
            async with start_plane(**settings) as plane:
                yield Bed(plane, origin, tmp_path)
        calls = [line for line in logged if line["event"] in {"call refused", "call failed"}]
        refused = [c for c in calls if c["rpc"] != "GetApplicationMostRecentDeployment"]
        assert not all_answered or refused == []

    return opening


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A port that nobody listens on; upstream's programs cannot take any and tell which."""

    def found() -> int:
        with socket.create_server(("localhost", 0)) as taken:
            port: int = taken.getsockname()[1]
            return port

    return found


@pytest.fixture
def tools_dir(tmp_path: Path, terraform: str) -> Path:
    """Terraform where a first-generation piped keeps its tools, as version "given"."""
    made = tmp_path / "tools"
    made.mkdir()
    shutil.copy(terraform, made / "terraform-given")
    return made
