# SPDX-License-Identifier: Apache-2.0
"""A real control plane and a real piped process, with one application between them."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.model.application import ApplicationKind
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import NotFound
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.common_pb2 import ApplicationKind as ApplicationKindPb
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from servers.control_plane import StartControlPlane
from servers.origin import Origin
from servers.piped import piped_arguments, piped_config
from servers.programs import OUR_PIPED

PATIENCE = 40.0

T = TypeVar("T")


@dataclass
class Installation:
    """What a test holds on to."""

    directory: Path
    cases: Any
    address: str
    piped_id: str
    piped_key: str
    application_id: str = ""

    @property
    def origin(self) -> Origin:
        return Origin(self.directory / "origin")

    def person(self, name: str) -> User:
        return User(project="demo", name=name, roles=("Admin",))

    def push(self, app: str, message: str = "a change", **files: str) -> str:
        """Commits the file of the application, and others; answers the hash."""
        return self.origin.commit({"shop/app.pipecd.yaml": app, **files}, message)

    @asynccontextmanager
    async def piped(self, more: str = "", **environment: str) -> AsyncGenerator["Piped", None]:
        """Runs a piped; `more` are further lines of its `spec`."""
        config = self.directory / "piped.yaml"
        place = {"address": self.address, "remote": self.origin.remote}
        text = piped_config(self.piped_id, self.piped_key, **place, project="demo", rest=more)
        config.write_text(text)
        arguments = piped_arguments(config, "--plugin-service-port=0")
        with (self.directory / "piped.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                OUR_PIPED, *arguments, stdout=log, stderr=log, env={**os.environ, **environment}
            )
        running = Piped(process)
        try:
            yield running
        finally:
            await running.end(signal.SIGTERM)

    async def seen(self, look: Callable[[], Awaitable[T]], is_so: Callable[[T], Any]) -> T:
        """Looks again and again until it is so."""
        found: Any = None
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    if is_so(found := await look()):
                        return found
                    await asyncio.sleep(0.02)
        except TimeoutError:
            log = (self.directory / "piped.log").read_text()[-3000:]
            raise AssertionError(f"it did not become so: {found}\npiped said:\n{log}") from None

    async def deployment(self, commit: str, is_so: Callable[[Deployment], Any]) -> Deployment:
        """The deployment of a commit, once it is so."""

        async def look() -> Deployment | None:
            wanted = DeploymentFilter(project="demo", application_ids=(self.application_id,))
            page = await self.cases.deployments.list(wanted, by=self.person("root"))
            of_commit = (d for d in page.items if d.trigger.commit.hash == commit)
            return next(of_commit, None)

        found = await self.seen(look, lambda d: d is not None and is_so(d))
        assert found is not None
        return found

    async def finished(self, commit: str) -> Deployment:
        return await self.deployment(commit, lambda d: DeploymentStatus(d.status).is_completed)

    async def running(self, commit: str, name: str) -> tuple[Deployment, PipelineStage]:
        """The deployment of a commit and its stage of that name, once the stage runs."""

        def runs(deployment: Deployment) -> bool:
            return any(
                s.name == name and s.status == StageStatus.RUNNING for s in deployment.stages
            )

        found = await self.deployment(commit, runs)
        return found, next(s for s in found.stages if s.name == name)

    async def lines(self, deployment: Deployment, stage: PipelineStage) -> list[str]:
        run = StageRun(deployment.id, stage.id)
        try:
            part = await self.cases.logs.stage_log(run, by=self.person("root"))
        except NotFound:
            return []
        return [block.log for block in part.blocks]

    def statuses(self, deployment: Deployment) -> list[str]:
        return [f"{s.name} {StageStatus(s.status).name}" for s in deployment.stages]


@dataclass
class Piped:
    """A running piped."""

    process: asyncio.subprocess.Process

    async def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self.process.returncode is None:
            self.process.send_signal(how)
        async with asyncio.timeout(PATIENCE):
            await self.process.wait()


OpenInstallation = Callable[..., AbstractAsyncContextManager[Installation]]


@pytest.fixture
def installation(start_plane: StartControlPlane, tmp_path: Path) -> OpenInstallation:
    """Opens a control plane with one application: `async with installation() as own`."""

    @asynccontextmanager
    async def opened(
        kind: ApplicationKind = ApplicationKind.KUBERNETES,
    ) -> AsyncGenerator[Installation, None]:
        async with start_plane() as plane:
            cases = plane.running.cases
            registered = await cases.pipeds.register("dev", "", by=plane.admin)
            made = Installation(tmp_path, cases, plane.address, registered.id, registered.key)
            Origin.begin(made.origin.path)
            repository = ApplicationGitRepository(
                id="site", remote=made.origin.remote, branch="main"
            )
            await _introduce(cases, registered.id, repository)
            draft = Application(
                name="shop",
                piped_id=registered.id,
                kind=ApplicationKindPb.ValueType(kind),
                platform_provider="p",
                git_path=ApplicationGitPath(
                    repo=repository, path="shop", config_filename="app.pipecd.yaml"
                ),
            )
            made.application_id = await cases.applications.add(draft, by=plane.admin)
            yield made

    return opened


async def _introduce(cases: Any, piped_id: str, repository: ApplicationGitRepository) -> None:
    """Applications are added to repositories that their piped has told of."""
    from pipecd.controlplane.auth.subject import PipedCaller
    from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest

    meta = ReportPipedMetaRequest(repositories=[repository], config="{}")
    await cases.pipeds.report_meta(meta, by=PipedCaller("demo", piped_id))
