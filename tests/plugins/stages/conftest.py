# SPDX-License-Identifier: Apache-2.0
"""A control plane and a piped process with one application."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.model.application import ApplicationKind
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from servers.control_plane import (
    LocalPiped,
    ServedControlPlane,
    StartControlPlane,
    has_running,
)
from servers.origin import Origin
from servers.piped import piped_arguments, piped_config
from servers.programs import OUR_PIPED

TIMEOUT = 40.0


@dataclass
class StageScene:
    """The application `shop` in a repository, on a control plane with one piped."""

    plane: ServedControlPlane
    registered: LocalPiped
    origin: Origin
    application_id: str

    def user(self, name: str) -> User:
        return User(project=self.plane.admin.project, name=name, roles=("Admin",))

    def push(self, app: str, message: str = "a change", **files: str) -> str:
        """Commits the configuration of the application and other files; returns the hash."""
        return self.origin.commit({"shop/app.pipecd.yaml": app, **files}, message)

    @asynccontextmanager
    async def piped(
        self, rest: str = "", *, is_killed: bool = False, **environment: str
    ) -> AsyncGenerator[None, None]:
        """Runs a piped that is terminated or killed at the end; `rest` is appended to its spec."""
        config = self.plane.directory / "piped.yaml"
        config.write_text(
            piped_config(
                self.registered.id,
                self.registered.key,
                address=self.plane.address,
                remote=self.origin.remote,
                project=self.plane.admin.project,
                rest=rest,
            )
        )
        process = await asyncio.create_subprocess_exec(
            OUR_PIPED,
            *piped_arguments(config, "--plugin-service-port=0"),
            env={**os.environ, **environment},
        )
        try:
            yield
        finally:
            if is_killed:
                process.kill()
            else:
                process.terminate()
            async with asyncio.timeout(TIMEOUT):
                await process.wait()

    async def deployment(self, commit: str, matches: Callable[[Deployment], bool]) -> Deployment:
        """Returns the deployment of a commit once it matches."""
        return await self.plane.wait_for_deployment(
            lambda d: d.trigger.commit.hash == commit and matches(d), within=TIMEOUT
        )

    async def completed(self, commit: str) -> Deployment:
        return await self.plane.wait_for_completed(commit, within=TIMEOUT)

    async def running(self, commit: str, name: str) -> tuple[Deployment, PipelineStage]:
        """Returns the deployment of a commit and its stage of a name once the stage runs."""
        deployment = await self.deployment(commit, lambda d: has_running(d, name))
        return deployment, next(s for s in deployment.stages if s.name == name)

    async def log_lines(self, deployment: Deployment, stage: PipelineStage) -> list[str]:
        return await self.plane.log_lines(deployment.id, stage.id)


OpenScene = Callable[..., AbstractAsyncContextManager[StageScene]]


@pytest.fixture
def open_scene(start_plane: StartControlPlane) -> OpenScene:
    """Starts a control plane with one application: `async with open_scene() as scene`."""

    @asynccontextmanager
    async def opened(
        kind: ApplicationKind = ApplicationKind.KUBERNETES,
    ) -> AsyncGenerator[StageScene, None]:
        async with start_plane() as plane:
            registered = await plane.register_piped()
            origin = Origin.begin(plane.directory / "origin")
            await registered.add_repository("site", origin.remote)
            application = await registered.add_application(
                "shop", kind=kind.value, platform_provider="p"
            )
            yield StageScene(plane, registered, origin, application)

    return opened
