# SPDX-License-Identifier: Apache-2.0
"""A real control plane that can fail on purpose, and real repositories, for piped's components."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import indent
from typing import Any

import grpc
import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_piped
from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.wire.server import grpc_server
from servers.origin import Origin

PROJECT = "shop"
ADMIN = User(PROJECT, "root", ("Admin",))


@dataclass
class Gate(grpc.GenericRpcHandler):
    """Sits before the control plane: records the calls and injects failures."""

    table: grpc.GenericRpcHandler
    calls: list[str] = field(default_factory=list[str])
    refusals: dict[str, grpc.StatusCode] = field(default_factory=dict[str, grpc.StatusCode])
    lost_answers: set[str] = field(default_factory=set[str])
    held_answers: set[str] = field(default_factory=set[str])
    """RPCs that are handled but never answered, until the caller is killed."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        self.calls.append(name)
        code = self.refusals.get(name) or self.refusals.get("*")
        if code is not None:
            return grpc.unary_unary_rpc_method_handler(_refusing(code))  # type: ignore[arg-type]
        handler = self.table.service(handler_call_details)
        if name in self.lost_answers and handler is not None:
            self.lost_answers.discard(name)
            return grpc.unary_unary_rpc_method_handler(_losing(handler.unary_unary))
        if name in self.held_answers and handler is not None:
            return grpc.unary_unary_rpc_method_handler(self._holding(name, handler.unary_unary))
        return handler

    def _holding(self, name: str, serve: Any) -> Any:
        async def hold(request: bytes, context: Any) -> bytes:
            await serve(request, context)
            self.calls.append(f"{name} done")
            await asyncio.Event().wait()
            return b""

        return hold

    def count(self, name: str) -> int:
        return self.calls.count(name)


def _refusing(code: grpc.StatusCode) -> Callable[[bytes, Any], Coroutine[Any, Any, bytes]]:
    async def refuse(request: bytes, context: Any) -> bytes:
        await context.abort(code, f"the gate says {code.name}")
        return b""

    return refuse


def _losing(serve: Any) -> Any:
    async def lose(request: bytes, context: Any) -> bytes:
        await serve(request, context)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        return b""

    return lose


@dataclass
class Plane:
    """A control plane with one registered piped."""

    directory: Path
    cases: UseCases
    gate: Gate
    address: str
    registered: RegisteredPiped
    repositories: dict[str, ApplicationGitRepository] = field(
        default_factory=dict[str, ApplicationGitRepository]
    )

    admin = ADMIN

    @property
    def caller(self) -> PipedCaller:
        return PipedCaller(PROJECT, self.registered.id)

    def api(self) -> AbstractAsyncContextManager[ControlPlaneClient]:
        return ControlPlaneClient.connect(
            self.address,
            project=PROJECT,
            piped=self.registered.id,
            key=lambda: self.registered.key,
            insecure=True,
        )

    async def add_repository(self, id_: str, remote: str) -> None:
        repository = ApplicationGitRepository(id=id_, remote=remote, branch="main")
        self.repositories[id_] = repository
        request = ReportPipedMetaRequest(repositories=self.repositories.values(), config="{}")
        await self.cases.pipeds.report_meta(request, by=self.caller)

    async def add_application(self, path: str, *, repository: str = "site", name: str = "") -> str:
        draft = Application(
            name=name or path,
            piped_id=self.registered.id,
            git_path=ApplicationGitPath(
                repo=self.repositories[repository], path=path, config_filename="app.pipecd.yaml"
            ),
            platform_provider="p",
        )
        return await self.cases.applications.add(draft, by=ADMIN)

    async def application(self, id_: str) -> Application:
        return await self.cases.applications.get(id_, by=ADMIN)


@pytest.fixture
def new_origin(tmp_path: Path) -> Callable[[str], Origin]:
    return lambda name: Origin.begin(tmp_path / name)


@pytest.fixture
def origin(new_origin: Callable[[str], Origin]) -> Origin:
    return new_origin("origin")


@pytest.fixture
def open_plane(tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[Plane]]:
    """Opens a control plane with a piped and no application."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Plane, None]:
        files = await LocalFiles.open(tmp_path / "files")
        async with open_sqlite(tmp_path / "pipecd.db") as database:
            stores = create_stores(database, files, MemoryCache())
            cases = build_use_cases(
                stores, MemoryBus(), address="http://cp", encryption_key=b"k" * 32
            )
            await cases.projects.add(PROJECT, "the shop")
            registered = await cases.pipeds.register("dev", "", by=ADMIN)
            gate = Gate(piped_table(cases))
            async with grpc_server([gate], host="127.0.0.1", port=0, grace=0) as port:
                yield Plane(tmp_path, cases, gate, f"127.0.0.1:{port}", registered)

    return opened


@asynccontextmanager
async def _running(*parts: Any) -> AsyncGenerator[None, None]:
    async with asyncio.TaskGroup() as loops:
        tasks = [loops.create_task(part.run()) for part in parts]
        yield
        for task in tasks:
            task.cancel()


@pytest.fixture
def running() -> Callable[..., AbstractAsyncContextManager[None]]:
    """Runs components while a block runs; one that dies fails the test."""
    return _running


@pytest.fixture
def eventually() -> Callable[..., Coroutine[Any, Any, Any]]:
    """Waits until an awaited question has a true answer."""

    async def wait(ask: Callable[[], Any], at_most: float = 10) -> Any:
        async with asyncio.timeout(at_most):
            while True:
                answer = ask()
                if asyncio.iscoroutine(answer):
                    answer = await answer
                if answer:
                    return answer
                await asyncio.sleep(0.005)

    return wait


@dataclass
class WholePiped:
    """A piped that runs as its program does, for the project `demo` of a `start_plane`."""

    id: str
    key_file: Path
    plane: Any
    remote: str
    again: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    """Runs it once more, after it has ended."""

    async def add_application(self, name: str, **fields: Any) -> None:
        """Registers the application in the directory of its name."""
        fields = fields or {"platform_provider": "p"}
        site = ApplicationGitRepository(id="site", remote=self.remote, branch="main")
        path = ApplicationGitPath(repo=site, path=name, config_filename="app.pipecd.yaml")
        draft = Application(name=name, piped_id=self.id, git_path=path, **fields)
        await self.plane.running.cases.applications.add(draft, by=self.plane.admin)


@pytest.fixture
def whole_piped(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[WholePiped]]:
    """Runs a piped that watches one repository: `async with whole_piped(plane, remote) as piped`.

    `more` are further lines of its configuration, `chosen` further settings.
    """

    @asynccontextmanager
    async def run(
        plane: Any, remote: str, name: str = "dev", more: str = "", **chosen: Any
    ) -> AsyncGenerator[WholePiped]:
        made = await plane.running.cases.pipeds.register(name, "", by=plane.admin)
        piped = WholePiped(made.id, tmp_path / f"key of {name}", plane, remote)
        piped.key_file.write_text(made.key)
        text = f"""\
apiVersion: pipecd.dev/v1beta1
kind: Piped
spec:
  projectID: demo
  pipedID: {made.id}
  pipedKeyFile: {piped.key_file}
  apiAddress: {plane.address}
  repositories: [{{repoId: site, remote: {remote}, branch: main}}]
{indent(more, "  ")}"""
        config = read_piped(text, file="piped.yaml", catalog=load_catalog())
        work = tmp_path / f"work of {name}"
        settings = PipedSettings(config=config, insecure=True, workspace=work, **chosen)

        @asynccontextmanager
        async def running() -> AsyncGenerator[None]:
            ready = asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                task = tasks.create_task(run_piped(settings, ready=ready.set))
                await ready.wait()
                yield
                task.cancel()

        piped.again = running
        async with running():
            yield piped

    return run
