# SPDX-License-Identifier: Apache-2.0
"""Programs of upstream, in the directory `PIPECD_UPSTREAM`, and installations to run them in."""

import asyncio
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.ids import new_id
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.piped_pb2 import Piped
from servers import server
from servers.control_plane import StartControlPlane
from servers.installation import Installation
from servers.origin import Origin
from servers.upstream import UpstreamInstallation, UpstreamPlane


@pytest.fixture(scope="session")
def upstream() -> Path:
    """The directory with programs of upstream, which the test suite does not build."""
    value = os.environ.get("PIPECD_UPSTREAM", "")
    if not value:
        pytest.skip("set PIPECD_UPSTREAM to a directory with upstream's programs to run this test")
    return Path(value).resolve()


def given(upstream: Path, name: str) -> Path:
    if not (path := upstream / name).exists():
        pytest.skip(f"PIPECD_UPSTREAM names {upstream}, where there is no {name}")
    return path


@pytest.fixture
def upstream_pipecd(upstream: Path) -> Path:
    """Upstream's control plane."""
    return given(upstream, "pipecd")


@pytest.fixture
def upstream_pipectl(upstream: Path) -> Path:
    return given(upstream, "pipectl")


@pytest.fixture
def upstream_piped(upstream: Path) -> Path:
    """Upstream's first-generation piped."""
    return given(upstream, "piped")


@pytest.fixture
def upstream_pipedv1(upstream: Path) -> Path:
    """Upstream's piped for plugins."""
    return given(upstream, "pipedv1")


@pytest.fixture
def upstream_plugins(upstream: Path) -> Path:
    """A directory with upstream's plugins, named as they are."""
    return given(upstream, "plugins")


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    made = Origin.begin(tmp_path / "origin")
    # A piped may push to the branch that is checked out.
    made.git("config", "receive.denyCurrentBranch", "updateInstead")
    made.commit({"README": "sources\n"}, "the beginning")
    return made


class Bed(Installation):
    """One control plane of ours with one repository, and the programs that are tried on it."""

    def __init__(self, plane: Any, origin: Origin, directory: Path) -> None:
        self.plane, self.cases, self.stores = plane, plane.running.cases, plane.running.stores
        self.admin, self.address = plane.admin, plane.address
        super().__init__(origin, directory)

    async def register(self, name: str) -> tuple[str, str]:
        registered = await self.cases.pipeds.register(name, "", by=self.admin)
        return registered.id, registered.key

    async def deployments(self) -> list[Deployment]:
        page = await self.cases.deployments.list(DeploymentFilter(project="demo"), by=self.admin)
        return list(page.items)

    async def add_application(self, path: str, draft: Application) -> str:
        """Registers an application, also before its piped has reported its repositories."""
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

    def pipectl_flags(self) -> list[str]:
        return ["--address", self.plane.address, "--api-key", self.plane.api_key, "--insecure"]

    async def introduced(self, piped_id: str) -> Piped | None:
        """Returns a piped once it has reported its metadata."""
        piped: Piped = await self.stores.pipeds.get(piped_id)
        return piped if piped.started_at else None

    async def is_online(self, piped_id: str) -> bool:
        listed = await self.cases.pipeds.list(by=self.admin)
        return any(p.id == piped_id and p.status == Piped.ONLINE for p in listed)

    async def logs(self, deployment: Deployment) -> dict[str, str]:
        """The whole log of every stage, by the name of the stage."""
        parts = await self.cases.logs.of_deployment(deployment.id, by=self.admin)
        names = {stage.id: stage.name for stage in deployment.stages}
        assert all(part.completed for part in parts.values() if part.blocks)
        return {
            names[id_]: "\n".join(block.log for block in part.blocks) for id_, part in parts.items()
        }


# Requested again until there is a result.
MAY_COME_LATER = {"GetApplicationMostRecentDeployment", "GetPlanPreviewResults"}

OpenBed = Callable[..., AbstractAsyncContextManager[Bed]]


@pytest.fixture
def open_bed(start_plane: StartControlPlane, origin: Origin, tmp_path: Path) -> OpenBed:
    """Opens a bed: `async with open_bed() as bed`; settings go to the control plane.

    With `all_answered` the control plane must not have refused any call, apart from requests for
    objects that do not exist yet.
    """

    @asynccontextmanager
    async def opening(*, all_answered: bool = False, **settings: Any) -> AsyncGenerator[Bed, None]:
        with capture_logs() as logged:
            async with start_plane(**settings) as plane:
                yield Bed(plane, origin, tmp_path)
        calls = [line for line in logged if line["event"] in {"call rejected", "call failed"}]
        refused = [c for c in calls if c["rpc"] not in MAY_COME_LATER]
        assert not all_answered or refused == []

    return opening


@pytest.fixture
async def their_bed(
    request: pytest.FixtureRequest,
    upstream_pipecd: Path,
    origin: Origin,
    tmp_path: Path,
) -> AsyncGenerator[UpstreamInstallation, None]:
    """A control plane of upstream, with its administrator signed in."""
    dolt, redis, s3 = (request.getfixturevalue(name) for name in ("dolt", "redis", "s3"))
    name = f"upstream-{new_id()}"
    plane = await asyncio.to_thread(UpstreamPlane, upstream_pipecd, (dolt, redis, s3), name)
    try:
        bed = UpstreamInstallation(plane, origin, tmp_path)
        await bed.admin.sign_in()
        yield bed
    finally:
        await asyncio.to_thread(plane.close)


@pytest.fixture
def free_port() -> Callable[[], int]:
    """A free port; upstream's programs cannot choose one and report it."""
    return server.free_port


@pytest.fixture
def tools_dir(tmp_path: Path, terraform: str) -> Path:
    """Terraform where a first-generation piped keeps its tools, as version "given"."""
    made = tmp_path / "tools"
    made.mkdir()
    shutil.copy(terraform, made / "terraform-given")
    return made
