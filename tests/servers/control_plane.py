# SPDX-License-Identifier: Apache-2.0
"""A control plane in the process of the test, and the pipeds that are registered with it.

`open_control_plane` serves only what pipeds call, behind a gate that a test can close;
`start_control_plane` serves everything that `pipecd server` does. Both are on SQLite and local
files, have one project with an administrator, and share the methods by which tests register
applications and wait for deployments and commands.

Installations of whole programs, ours or upstream's, each in a process of its own, are in
`installation.py`.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any, TypeVar

from pipecd.config.catalog import load_catalog
from pipecd.config.controlplane import (
    ControlPlaneSpec,
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from pipecd.config.read import read_startable_piped
from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.stage_logs import StageLogPart, StageRun
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.projects import StaticAdmin
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import AlreadyExists, NotFound
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.wire.server import grpc_server
from servers.gate import RpcGate
from servers.piped import piped_config

TIMEOUT = 20.0
# How often a condition is checked again although the bus signalled no change.
RECHECK_INTERVAL = 0.05
STOP_TIMEOUT = 20.0

T = TypeVar("T")


@dataclass
class LocalControlPlane:
    """A control plane with one project and its administrator."""

    directory: Path
    cases: UseCases
    address: str
    admin: User

    async def register_piped(self, name: str = "dev") -> "LocalPiped":
        made = await self.cases.pipeds.register(name, "", by=self.admin)
        return LocalPiped(self, name, made.id, made.key)

    async def application(self, id_: str) -> Application:
        return await self.cases.applications.get(id_, by=self.admin)

    async def application_named(self, name: str) -> Application:
        query = ApplicationFilter(project=self.admin.project, name=name)
        return (await self.cases.applications.list(query, by=self.admin)).items[0]

    async def live_state(self, application_id: str) -> ApplicationLiveStateSnapshot | None:
        try:
            return await self.cases.livestate.get(application_id, by=self.admin)
        except NotFound:
            return None

    async def deployment(self, id_: str) -> Deployment:
        return await self.cases.deployments.get(id_, by=self.admin)

    async def deployments(self) -> list[Deployment]:
        """The deployments of the project, the oldest first."""
        query = DeploymentFilter(project=self.admin.project)
        listed = await self.cases.deployments.list(query, by=self.admin)
        return sorted(listed.items, key=lambda d: (d.created_at, d.id))

    async def completed_deployments(self) -> list[Deployment]:
        found = await self.deployments()
        return [d for d in found if DeploymentStatus(d.status).is_completed]

    async def wait_for_deployment(
        self, matches: Callable[[Deployment], bool], *, within: float = TIMEOUT
    ) -> Deployment:
        """Returns the newest deployment that matches, once there is one."""
        found = await self.wait_for(
            self.deployments, lambda found: any(map(matches, found)), within=within
        )
        return next(filter(matches, reversed(found)))

    async def wait_for_newest_deployment(
        self, matches: Callable[[Deployment], bool], *, within: float = TIMEOUT
    ) -> Deployment:
        """Returns the newest deployment once it matches."""
        found = await self.wait_for(
            self.deployments, lambda found: any(map(matches, found[-1:])), within=within
        )
        return found[-1]

    async def wait_for_completed(self, commit: str, *, within: float = TIMEOUT) -> Deployment:
        """Returns the deployment of a commit once it is completed."""
        return await self.wait_for_deployment(
            lambda d: d.trigger.commit.hash == commit and DeploymentStatus(d.status).is_completed,
            within=within,
        )

    async def stage_log(self, deployment_id: str, stage_id: str) -> StageLogPart:
        """The log of a stage; it is empty before the first line is reported."""
        try:
            return await self.cases.logs.stage_log(StageRun(deployment_id, stage_id), by=self.admin)
        except NotFound:
            return StageLogPart((), completed=False)

    async def log_lines(self, deployment_id: str, stage_id: str) -> list[str]:
        return [block.log for block in (await self.stage_log(deployment_id, stage_id)).blocks]

    async def command(self, id_: str) -> Command:
        return await self.cases.commands.get(id_, by=self.admin)

    async def wait_for_command(self, id_: str, *, within: float = TIMEOUT) -> Command:
        """Returns a command once it is handled."""
        return await self.wait_for(
            lambda: self.command(id_), lambda c: c.status != 0, within=within
        )

    async def wait_for(
        self,
        read: Callable[[], Awaitable[T]],
        matches: Callable[[T], Any],
        *,
        within: float = TIMEOUT,
    ) -> T:
        """Reads whenever the bus signals a change, and now and then, until the value matches."""
        async with asyncio.timeout(within), self.cases.bus.subscribe() as signals:
            while not matches(value := await read()):
                with suppress(TimeoutError):
                    async with asyncio.timeout(RECHECK_INTERVAL):
                        await anext(aiter(signals))
        return value


@dataclass
class LocalPiped:
    """A piped that a control plane knows: its client, its applications, and the piped itself."""

    plane: LocalControlPlane
    name: str
    id: str
    key: str
    repositories: dict[str, ApplicationGitRepository] = field(
        default_factory=dict[str, ApplicationGitRepository]
    )

    @property
    def caller(self) -> PipedCaller:
        return PipedCaller(self.plane.admin.project, self.id)

    @property
    def workspace(self) -> Path:
        return self.plane.directory / f"workspace of {self.name}"

    def api(self) -> AbstractAsyncContextManager[ControlPlaneClient]:
        return ControlPlaneClient.connect(
            self.plane.address,
            project=self.plane.admin.project,
            piped=self.id,
            key=lambda: self.key,
            insecure=True,
        )

    async def add_repository(self, id_: str, remote: str) -> None:
        """Reports one more repository, as the piped does when it starts."""
        self.repositories[id_] = ApplicationGitRepository(id=id_, remote=remote, branch="main")
        request = ReportPipedMetaRequest(repositories=self.repositories.values(), config="{}")
        await self.plane.cases.pipeds.report_meta(request, by=self.caller)

    async def add_application(
        self, path: str, *, repository: str = "site", name: str = "", **fields: Any
    ) -> str:
        """Registers the application of a directory and returns its id."""
        git_path = ApplicationGitPath(
            repo=self.repositories[repository], path=path, config_filename="app.pipecd.yaml"
        )
        draft = Application(
            name=name or path,
            piped_id=self.id,
            git_path=git_path,
            **(fields or {"platform_provider": "p"}),
        )
        return await self.plane.cases.applications.add(draft, by=self.plane.admin)

    def settings(
        self, remote: str, more: str = "", key_file: Path | None = None, **chosen: Any
    ) -> PipedSettings:
        """The settings of a piped with the repository `site`.

        `more` are further lines of its configuration, `chosen` further settings; with a `key_file`
        the configuration names that file instead of the key.
        """
        self.repositories["site"] = ApplicationGitRepository(
            id="site", remote=remote, branch="main"
        )
        if key_file is not None:
            key_file.write_text(self.key)
        text = piped_config(
            self.id,
            key_file or self.key,
            address=self.plane.address,
            remote=remote,
            project=self.plane.admin.project,
            rest=indent(more, "  "),
        )
        config = read_startable_piped(text, file="piped.yaml", catalog=load_catalog())
        return PipedSettings(config=config, insecure=True, workspace=self.workspace, **chosen)

    @asynccontextmanager
    async def run(
        self, remote: str, more: str = "", key_file: Path | None = None, **chosen: Any
    ) -> AsyncGenerator["asyncio.Task[None]", None]:
        """Runs the piped with these `settings`; it is stopped at the end of the block."""
        async with running_piped(self.settings(remote, more, key_file, **chosen)) as task:
            yield task


@asynccontextmanager
async def running_piped(settings: PipedSettings) -> AsyncGenerator["asyncio.Task[None]", None]:
    """Runs a piped from when it is ready until the end of the block; its failure is the test's."""
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(run_piped(settings, ready=ready.set))
        waiting = tasks.create_task(ready.wait())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        yield task
        task.cancel()
        async with asyncio.timeout(STOP_TIMEOUT):
            await asyncio.wait({task})


@asynccontextmanager
async def running(*components: Any) -> AsyncGenerator[None, None]:
    """Runs components of a piped while a block runs; one that dies fails the test."""
    async with asyncio.TaskGroup() as loops:
        tasks = [loops.create_task(component.run()) for component in components]
        yield
        for task in tasks:
            task.cancel()


@dataclass
class GatedControlPlane(LocalControlPlane):
    """A control plane that serves one registered piped, behind a gate."""

    stores: Stores
    gate: RpcGate
    piped: LocalPiped = field(init=False)


@dataclass
class ServedControlPlane(LocalControlPlane):
    """A control plane as `pipecd server` runs it, with an API key and a password to sign in."""

    running: ControlPlane
    api_key: str
    password: str


OpenControlPlane = Callable[[], AbstractAsyncContextManager[GatedControlPlane]]
StartControlPlane = Callable[..., AbstractAsyncContextManager[ServedControlPlane]]
RunPiped = Callable[..., AbstractAsyncContextManager[LocalPiped]]


@asynccontextmanager
async def open_control_plane(directory: Path) -> AsyncGenerator[GatedControlPlane, None]:
    """Serves the project `shop` with the piped `dev`."""
    admin = User("shop", "root", ("Admin",))
    files = await LocalFiles.open(directory / "files")
    async with open_sqlite(directory / "pipecd.db") as database:
        stores = create_stores(database, files, MemoryCache())
        cases = build_use_cases(stores, MemoryBus(), address="http://cp", encryption_key=b"k" * 32)
        await cases.projects.add(admin.project, "the shop")
        gate = RpcGate(piped_table(cases))
        async with grpc_server([gate], host="127.0.0.1", port=0, grace=0) as port:
            plane = GatedControlPlane(directory, cases, f"127.0.0.1:{port}", admin, stores, gate)
            plane.piped = await plane.register_piped()
            yield plane


@asynccontextmanager
async def start_control_plane(
    directory: Path, port: int = 0, spec: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncGenerator[ServedControlPlane, None]:
    """Serves the project `demo`; a second call with the directory serves what the first stored.

    `spec` are further fields of the configuration file.
    """
    config = ControlPlaneSpec(
        address="http://127.0.0.1",
        state_key="state",
        datastore=DatastoreSpec(
            type="SQLITE", config=DatastoreConfig(path=str(directory / "pipecd.db"))
        ),
        filestore=FilestoreSpec(
            type="LOCAL", config=FilestoreConfig(path=str(directory / "files"))
        ),
        **(spec or {}),
    )
    chosen = ServerSettings(
        config, b"k" * 32, host="127.0.0.1", port=port, insecure_cookie=True, grace_period=1,
        **settings,
    )  # fmt: skip
    async with control_plane(chosen) as running:
        admin = User(project="demo", name="admin", roles=("Admin",))
        with suppress(AlreadyExists):
            await running.cases.projects.add("demo", "", StaticAdmin("admin", "hello-demo"))
        api_key = await running.cases.api_keys.generate("tests", APIKey.READ_WRITE, by=admin)
        address = f"127.0.0.1:{running.port}"
        yield ServedControlPlane(
            directory, running.cases, address, admin, running, api_key, "hello-demo"
        )


def has_running(deployment: Deployment, stage: str) -> bool:
    """Whether a stage of that name runs."""
    return any(s.name == stage and s.status == StageStatus.RUNNING for s in deployment.stages)


def stage_statuses(deployment: Deployment) -> list[str]:
    return [f"{s.name} {StageStatus(s.status).name}" for s in deployment.stages]
