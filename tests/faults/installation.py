# SPDX-License-Identifier: Apache-2.0
"""A whole installation in processes of its own, with a faulty network between its parts.

    piped ─ front (TcpProxy) ─ calls (RpcProxy) ─ balancer (TcpProxy) ─ replica, replica

Every program runs with a clock that a test can step. What really happened is recorded outside of the
programs: each run of a script appends a line when it begins and when it ends.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from faults.network import RpcProxy, TcpProxy
from faults.program import Program
from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import build_use_cases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.model.application import SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Unavailable
from pipecd.proto.model import command_pb2
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import web_pb2
from pipecd.proto.service.api_pb2_grpc import APIServiceStub
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.proto.service.web_pb2_grpc import WebServiceStub
from pipecd.wire import credentials
from pipecd.wire.channel import open_channel
from servers.load import patient
from servers.origin import Origin
from servers.piped import piped_arguments, piped_config
from servers.server import free_ports

if TYPE_CHECKING:
    from pipecd.proto.service.api_pb2_grpc import APIServiceAsyncStub
    from pipecd.proto.service.web_pb2_grpc import WebServiceAsyncStub

ADMIN = User("shop", "root", ("Admin",))
TIMEOUT = 60.0
_POLL_SECONDS = 0.05
_PORTS: tuple[str, ...] = ("port", "piped-api", "web-api", "http", "api", "admin", "envoy-authz")

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """One run of a script, as the script itself recorded it; `ended` is 0 if it did not end."""

    application: str
    deployment: str
    commit: str
    pid: str
    began: float
    ended: float = 0.0


@dataclass
class FaultyInstallation:
    """Control planes, a repository, and the network in between."""

    directory: Path
    origin: Origin
    replicas: list[Program]
    ports: list[dict[str, int]]
    piped_id: str
    piped_key: str
    api_key: str
    session: str
    """The session token of an administrator."""
    applications: dict[str, str]
    front: TcpProxy
    calls: RpcProxy
    balancer: TcpProxy
    datastore: DatastoreSpec
    pipeds: list[Program] = field(default_factory=list[Program])

    @property
    def truth(self) -> Path:
        return self.directory / "truth"

    def runs(self) -> list[Run]:
        """All runs of scripts in the order in which they began."""
        runs: dict[tuple[str, str], Run] = {}
        for line in self.truth.read_text().splitlines() if self.truth.exists() else ():
            what, application, deployment, commit, pid, at = line.split()
            key = (deployment, pid)
            if what == "overlap":
                continue
            if what == "begin":
                runs[key] = Run(application, deployment, commit, pid, float(at))
            elif key in runs:
                begun = runs[key]
                runs[key] = Run(application, deployment, commit, pid, begun.began, float(at))
        return sorted(runs.values(), key=lambda run: run.began)

    def overlaps(self) -> list[str]:
        """The runs that began while another one of the application was not over."""
        lines = self.truth.read_text().splitlines() if self.truth.exists() else []
        return [line for line in lines if line.startswith("overlap")]

    def application_file(self, name: str, *, seconds: float = 0.1, more: str = "") -> str:
        """An application whose pipeline runs one script and records it.

        The script locks a file of its application, which the kernel unlocks when it ends or dies.
        """
        record = f'$SR_APPLICATION_NAME $SR_DEPLOYMENT_ID $SR_TRIGGERED_COMMIT_HASH $$ $(date +%s.%N)" >> {self.truth}'  # fmt: skip
        lock = f"exec 9>{self.truth}.$SR_APPLICATION_NAME; flock -n 9"
        run = f'{lock} || echo "overlap {record}; echo "begin {record}; sleep {seconds}; echo "end {record}'
        return (
            "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n"
            f"  name: {name}\n  pipeline:\n    stages:\n"
            f"      - name: SCRIPT_RUN\n        with: {{run: {json.dumps(run)}}}\n{more}"
        )

    def push(self, name: str, *, seconds: float = 0.1, more: str = "", **variables: str) -> str:
        """Changes an application and returns the commit; `variables` are for git."""
        origin = Origin(self.origin.path, variables)
        text = f"{self.application_file(name, seconds=seconds, more=more)}# {time.time_ns()}\n"
        return origin.commit({f"{name}/app.pipecd.yaml": text})

    async def start_replica(self, number: int = 0) -> None:
        await self.replicas[number].start()
        for port in ("piped-api", "api"):
            await listening(self.ports[number][port])

    async def start_piped(
        self, name: str = "piped", *, rest: str = "", replica: int | None = None
    ) -> Program:
        """Starts a piped with a workspace of its own; every one of them has the same id.

        With a `replica` it connects to that one, without any proxy in between.
        """
        port = self.front.port if replica is None else self.ports[replica]["piped-api"]
        directory = self.directory / name
        directory.mkdir(exist_ok=True)
        config = directory / "piped.yaml"
        config.write_text(
            piped_config(
                self.piped_id,
                self.piped_key,
                address=f"127.0.0.1:{port}",
                remote=self.origin.remote,
                rest=rest,
            )
        )
        piped = Program(
            name, self.directory, ["piped", *piped_arguments(config, "--log-encoding=json")]
        )
        self.pipeds.append(piped)
        await piped.start()
        return piped

    @asynccontextmanager
    async def api(self, replica: int = 0) -> AsyncGenerator["APIServiceAsyncStub", None]:
        """The API of one replica, without any proxy in between."""
        address = f"127.0.0.1:{self.ports[replica]['api']}"
        authorization = credentials.api_key(self.api_key)
        async with open_channel(
            address, authorization=authorization, insecure=True, connect_timeout=3
        ) as channel:
            yield APIServiceStub(channel)

    async def deployments(self, replica: int = 0, *, limit: int = 0) -> list[Deployment]:
        """The newest deployments, by default all of them."""
        async with self.api(replica) as api:
            request = pb.ListDeploymentsRequest(limit=limit)
            listed = await api.ListDeployments(request, timeout=10)
        return list(listed.deployments)

    async def deployment_of(self, commit: str, replica: int = 0) -> Deployment | None:
        """The deployment of a commit."""
        return next(
            (d for d in await self.deployments(replica) if d.trigger.commit.hash == commit), None
        )

    async def completed(self, commit: str, replica: int = 0) -> Deployment | None:
        """The deployment of a commit once it is completed."""
        deployment = await self.deployment_of(commit, replica)
        if deployment is not None and DeploymentStatus(deployment.status).is_completed:
            return deployment
        return None

    async def running(self, commit: str, replica: int = 0) -> bool:
        """Whether the deployment of a commit runs."""
        deployment = await self.deployment_of(commit, replica)
        return deployment is not None and deployment.status == DeploymentStatus.RUNNING

    async def count_is(self, commit: str, count: int) -> bool:
        """Whether a commit has so many deployments."""
        deployments = await self.deployments()
        return sum(d.trigger.commit.hash == commit for d in deployments) == count

    async def all_completed(self) -> bool:
        """Whether every deployment is completed."""
        deployments = await self.deployments()
        return all(DeploymentStatus(d.status).is_completed for d in deployments)

    async def is_idle(self, name: str) -> bool:
        """Whether an application is not deploying, and its piped has reported that."""
        async with self.api() as api:
            request = pb.GetApplicationRequest(application_id=self.applications[name])
            application = (await api.GetApplication(request, timeout=10)).application
        reported = SyncStatus(application.sync_state.status)
        return not application.deploying and reported is not SyncStatus.DEPLOYING

    async def value_is(self, read: Callable[[], object], value: object) -> bool:
        """Whether something outside of the control plane has a value."""
        return read() == value

    async def sync(self, name: str, replica: int = 0) -> str:
        """Requests a sync of an application, as a user does; returns the id of the command."""
        async with self.api(replica) as api:
            request = pb.SyncApplicationRequest(application_id=self.applications[name])
            return (await api.SyncApplication(request, timeout=10)).command_id

    async def is_handled(self, command: str, replica: int = 0) -> bool:
        """Whether a command is handled."""
        async with self.api(replica) as api:
            response = await api.GetCommand(pb.GetCommandRequest(command_id=command), timeout=5)
        return response.command.status != command_pb2.COMMAND_NOT_HANDLED_YET

    async def cancel(self, deployment: str, replica: int = 0) -> str:
        """Cancels a deployment as a user of the console; returns the id of the command."""
        request = web_pb2.CancelDeploymentRequest(deployment_id=deployment)
        async with self._web(replica) as web:
            response = await web.CancelDeployment(request, metadata=self._cookie, timeout=10)
        return response.command_id

    async def approve(self, deployment: str, stage: str, replica: int = 0) -> str:
        """Approves a stage as a user of the console; returns the id of the command."""
        request = web_pb2.ApproveStageRequest(deployment_id=deployment, stage_id=stage)
        async with self._web(replica) as web:
            response = await web.ApproveStage(request, metadata=self._cookie, timeout=10)
        return response.command_id

    @asynccontextmanager
    async def _web(self, replica: int) -> AsyncGenerator["WebServiceAsyncStub", None]:
        address = f"127.0.0.1:{self.ports[replica]['web-api']}"
        async with open_channel(
            address, authorization="", insecure=True, connect_timeout=3
        ) as channel:
            yield WebServiceStub(channel)

    @property
    def _cookie(self) -> tuple[tuple[str, str], ...]:
        return (("cookie", f"token={self.session}"),)

    async def eventually(
        self,
        read: Callable[[], Awaitable[T | None]],
        *,
        within: float = TIMEOUT,
        what: str = "the condition was not met",
    ) -> T:
        """Polls until a value is true; on timeout it fails with the logs of all pipeds."""
        try:
            async with asyncio.timeout(within):
                while True:
                    with suppress(grpc.aio.AioRpcError, Unavailable):
                        if value := await read():
                            return value
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            logs = "\n".join(f"--- {p.name}\n{p.log[-4000:]}" for p in self.pipeds)
            raise AssertionError(f"{what} within {within:g}s\n{logs}") from None


@asynccontextmanager
async def open_installation(
    directory: Path,
    *,
    applications: Sequence[str] = ("cart",),
    datastore: DatastoreSpec | None = None,
    cache_address: str = "",
    replica_count: int = 1,
) -> AsyncGenerator[FaultyInstallation, None]:
    """Installs and starts control planes, without a piped; everything ends with the block.

    Without a `datastore` it is one server on SQLite; several replicas need a database server and the
    `cache_address` of a Redis.
    """
    (directory / "data").mkdir(exist_ok=True)
    spec = datastore or DatastoreSpec(
        type="SQLITE", config=DatastoreConfig(path=str(directory / "data" / "pipecd.db"))
    )
    origin = Origin.begin(directory / "origin")
    origin.commit({"README": "sources\n"}, "the beginning")
    ports = [dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True)) for _ in range(replica_count)]
    replicas = [
        Program(
            f"replica-{number}",
            directory,
            ["pipecd", *_server_arguments(directory, spec, cache_address, of_replica)],
        )
        for number, of_replica in enumerate(ports)
    ]
    balancer = TcpProxy([of_replica["piped-api"] for of_replica in ports])
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(balancer.serve())
        calls = await stack.enter_async_context(RpcProxy(balancer.port).serve())
        front = await stack.enter_async_context(TcpProxy([calls.port]).serve())
        registered = await _prepare(directory, spec, origin, applications)
        installed = FaultyInstallation(
            directory=directory,
            origin=origin,
            replicas=replicas,
            ports=ports,
            piped_id=registered.piped.id,
            piped_key=registered.piped.key,
            api_key=registered.api_key,
            session=registered.session,
            applications=registered.applications,
            front=front,
            calls=calls,
            balancer=balancer,
            datastore=spec,
        )
        stack.push_async_callback(_kill_all, installed)
        async with asyncio.TaskGroup() as tasks:
            for number in range(replica_count):
                tasks.create_task(installed.start_replica(number))
        yield installed


@dataclass(frozen=True)
class _Registered:
    """What an installation needs to know of what was registered."""

    piped: RegisteredPiped
    api_key: str
    session: str
    applications: dict[str, str]


async def _kill_all(installed: FaultyInstallation) -> None:
    for program in (*installed.pipeds, *installed.replicas):
        await program.kill()


def _server_arguments(
    directory: Path, spec: DatastoreSpec, cache_address: str, ports: dict[str, int]
) -> list[str]:
    config, key = directory / "control-plane.yaml", directory / "key"
    document = {
        "apiVersion": "pipecd.dev/v1beta1",
        "kind": "ControlPlane",
        "spec": {
            "address": "http://127.0.0.1",
            "stateKey": "s",
            "datastore": spec.model_dump(by_alias=True, exclude_defaults=True),
            "filestore": {"type": "LOCAL", "config": {"path": str(directory / "data" / "files")}},
        },
    }
    config.write_text(json.dumps(document))
    key.write_text("k" * 64)
    flags = [f"--{name}{'' if name == 'port' else '-port'}={port}" for name, port in ports.items()]
    if cache_address:
        flags.append(f"--cache-address={cache_address}")
    return [
        "server",
        f"--config-file={config}",
        f"--encryption-key-file={key}",
        "--host=127.0.0.1",
        *flags,
    ]


async def _prepare(
    directory: Path, spec: DatastoreSpec, origin: Origin, applications: Sequence[str]
) -> _Registered:
    """Registers a project, a piped, its applications and an API key before any server runs."""
    files = await LocalFiles.open(directory / "data" / "files")
    async with open_datastore(spec) as database:
        stores = create_stores(database, files, MemoryCache())
        cases = build_use_cases(stores, MemoryBus(), address="http://cp", encryption_key=b"k" * 64)
        await cases.projects.add(ADMIN.project, "")
        piped = await cases.pipeds.register("dev", "", by=ADMIN)
        repository = ApplicationGitRepository(id="site", remote=origin.remote, branch="main")
        meta = ReportPipedMetaRequest(repositories=[repository], config="{}")
        await cases.pipeds.report_meta(meta, by=PipedCaller(ADMIN.project, piped.id))
        ids: dict[str, str] = {}
        for name in applications:
            path = ApplicationGitPath(repo=repository, path=name, config_filename="app.pipecd.yaml")
            draft = Application(name=name, piped_id=piped.id, git_path=path, platform_provider="p")
            ids[name] = await cases.applications.add(draft, by=ADMIN)
        api_key = await cases.api_keys.generate("tests", APIKey.READ_WRITE, by=ADMIN)
        return _Registered(piped, api_key, cases.sessions.issue(ADMIN), ids)


async def listening(port: int) -> None:
    """Waits until something listens on the port."""
    async with asyncio.timeout(patient(TIMEOUT)):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(_POLL_SECONDS)
            else:
                writer.close()
                return
