# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""A real control plane, a real repository, and a deployer between them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import PluginSpec
from pipecd.controlplane.api.piped_service import piped_table
from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.stage_logs import StageLogPart, StageRun
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.usecases import UseCases, build_use_cases
from pipecd.controlplane.usecases.pipeds import RegisteredPiped
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.clock import Now, utc_now
from pipecd.model.deployment import DeploymentStatus, StageStatus, SyncStrategy
from pipecd.model.errors import NotFound
from pipecd.model.ids import new_id
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.deploy.context import DeploymentContext, logs_directory
from pipecd.piped.deploy.deployer import Deployer
from pipecd.piped.notify.event import NotificationEvent
from pipecd.piped.notify.notifier import Notifier
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.host import PluginHost
from pipecd.piped.pluginhost.local import builtin_plugins
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.process import PluginTimeouts
from pipecd.piped.pluginhost.tool_registry import ToolRegistry
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.sources import Sources
from pipecd.proto.model import common_pb2 as common
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from pipecd.sdk import PlannedStage, Spec, Stage, StageContext, StagePlugin, StageResult
from pipecd.wire.server import grpc_server
from servers.origin import Origin
from servers.samples import CART

T = TypeVar("T")

PROJECT = "shop"
ADMIN = User(PROJECT, "root", ("Admin",))
LOOK_EVERY = 0.03


class Story(list[str]):
    """What happened, line by line, with a way to wait for a line."""

    def __init__(self) -> None:
        super().__init__()
        self._written = asyncio.Condition()

    async def write(self, line: str) -> None:
        self.append(line)
        async with self._written:
            self._written.notify_all()

    async def told(self, line: str) -> None:
        async with self._written:
            await self._written.wait_for(lambda: line in self)


class ActOptions(Spec):
    """What a stage of the tests does: a word, see `ActPlugin`."""

    do: str = "succeed"
    undo: str = ""


class ActPlugin(StagePlugin):
    """Stages that do as they are told and remember that they ran."""

    stages = (Stage("ACT", ActOptions), Stage("ACT_ROLLBACK"))

    def __init__(self, story: Story, release: dict[str, asyncio.Event]) -> None:
        self._story, self._release = story, release

    async def plan_stage(self, requested: Any, *, rollback: bool) -> Sequence[PlannedStage]:
        options = requested.options(ActOptions)
        planned = PlannedStage("ACT", requested.index, requested.description)
        undo = PlannedStage("ACT_ROLLBACK", requested.index, is_rollback=True)
        return (planned, undo) if rollback and options.undo else (planned,)

    async def execute(self, stage: StageContext) -> StageResult:
        options = stage.options(ActOptions)
        what = options.undo if stage.is_rollback else options.do
        me = f"{'undo' if stage.is_rollback else 'act'} {stage.index}"
        await self._story.write(f"{me} begins")
        stage.log.info(f"{me}: {what}")
        try:
            result = await self._act(what, me)
        except asyncio.CancelledError:
            await self._story.write(f"{me} is stopped")
            if what == "stubborn":
                result = StageResult.succeeded("it was too late to stop")
            elif what == "offended":
                return StageResult.failed("stopped")
            else:
                raise
        await self._story.write(f"{me} ends")
        return result

    async def _act(self, what: str, me: str) -> StageResult:
        match what:
            case "succeed":
                return StageResult.succeeded()
            case "fail":
                return StageResult.failed("it did not work")
            case "raise":
                raise ZeroDivisionError("a bug in the plugin")
            case "exit":
                return StageResult.exited("nothing left to do")
            case "skip":
                return StageResult.skipped("not needed")
            case _:  # "hang", "stubborn", "offended": until released
                await self._release.setdefault(me, asyncio.Event()).wait()
                return StageResult.succeeded("released")


class Heard(list[NotificationEvent]):
    """What people were told, in order."""

    def notify(self, event: NotificationEvent) -> None:
        self.append(event)

    @property
    def names(self) -> list[str]:
        return [event.type.name for event in self]


@dataclass
class Gate(grpc.GenericRpcHandler):
    """Stands before the control plane, counts the calls and may close."""

    table: grpc.GenericRpcHandler
    calls: list[str] = field(default_factory=list[str])
    closed: bool = False
    closed_for: set[str] = field(default_factory=set[str])
    refused: Story = field(default_factory=Story)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if self.closed or name in self.closed_for:
            return grpc.unary_unary_rpc_method_handler(self._away(name))
        self.calls.append(name)
        return self.table.service(handler_call_details)

    def _away(self, name: str) -> Any:
        async def away(request: bytes, context: Any) -> None:
            await self.refused.write(name)
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone fishing")

        return away


@dataclass
class Stand:
    """What a test holds on to."""

    directory: Path
    stores: Stores
    cases: UseCases
    gate: Gate
    address: str
    registered: RegisteredPiped
    application: Application
    story: Story = field(default_factory=Story)
    heard: Heard = field(default_factory=Heard)
    release: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])

    @property
    def caller(self) -> PipedCaller:
        return PipedCaller(PROJECT, self.registered.id)

    @property
    def origin(self) -> Origin:
        return Origin(self.directory / "origin")

    def push(self, spec: str, message: str = "a change", **files: str) -> str:
        """Commits the application's configuration and other files of its directory."""
        text = f"{CART}{spec}"
        written = {"app.pipecd.yaml": text, **files}
        return self.origin.commit({f"cart/{n}": content for n, content in written.items()}, message)

    async def trigger(self, commit: str, message: str = "a change", **changes: Any) -> str:
        """Creates a deployment as the trigger of a piped would."""
        strategy = changes.pop("strategy", SyncStrategy.AUTO)
        when = changes.pop("when", 1_700_000_000)
        deployment = Deployment(
            id=new_id(),
            application_id=self.application.id,
            application_name="cart",
            piped_id=self.registered.id,
            project_id=PROJECT,
            git_path=self.application.git_path,
            trigger=DeploymentTrigger(
                commit=Commit(hash=commit, message=message, author="ann", branch="main", created_at=when),
                timestamp=when,
                sync_strategy=strategy,
                strategy_summary="as told" if strategy else "",
            ),
            **changes,
        )  # fmt: skip
        await self.cases.deployment_reports.create(deployment, by=self.caller)
        return deployment.id

    async def deployment(self, id: str) -> Deployment:
        return await self.cases.deployments.get(id, by=self.caller)

    async def seen(self, look: Callable[[], Awaitable[T]], is_so: Callable[[T], bool]) -> T:
        """Looks whenever the control plane says that something changed, until it is so."""
        async with asyncio.timeout(20), self.cases.bus.subscribe() as signals:
            if is_so(found := await look()):
                return found
            async for _ in signals:
                if is_so(found := await look()):
                    return found
        raise AssertionError("the bus ended")

    async def until(self, id: str, is_so: Callable[[Deployment], bool]) -> Deployment:
        """Waits until the deployment is so."""
        return await self.seen(lambda: self.deployment(id), is_so)

    async def app(self) -> Application:
        return await self.cases.applications.get(self.application.id, by=self.caller)

    async def finished(self, id: str) -> Deployment:
        return await self.until(id, lambda d: DeploymentStatus(d.status).is_completed)

    async def told(self, line: str) -> None:
        """Waits until the stages of the tests have come so far."""
        async with asyncio.timeout(20):
            await self.story.told(line)

    async def settled(self, command_id: str) -> Command:
        """Waits until a command is handled."""
        return await self.seen(
            lambda: self.cases.commands.get(command_id, by=ADMIN), lambda c: c.status != 0
        )

    async def cancel(self, id: str, *, rollback: bool = False, no_rollback: bool = False) -> str:
        return await self.cases.deployments.cancel(id, rollback, no_rollback, by=ADMIN)

    async def log_of(self, id: str, stage_id: str) -> StageLogPart:
        try:
            return await self.cases.logs.stage_log(StageRun(id, stage_id), by=ADMIN)
        except NotFound:
            return StageLogPart((), completed=False)

    async def lines_of(self, id: str, stage_id: str) -> list[str]:
        return [block.log for block in (await self.log_of(id, stage_id)).blocks]

    @property
    def begun(self) -> list[str]:
        """The stages in the order they began, each as often as it did."""
        return [line.removesuffix(" begins") for line in self.story if line.endswith(" begins")]

    def let_go(self, me: str) -> None:
        self.release.setdefault(me, asyncio.Event()).set()

    def statuses(self, deployment: Deployment) -> list[str]:
        return [f"{s.name} {StageStatus(s.status).name}" for s in deployment.stages]

    @asynccontextmanager
    async def piped(
        self, specs: Sequence[PluginSpec] = (), *, now: Now = utc_now
    ) -> AsyncGenerator[Deployer, None]:
        """The deploying part of a piped; leaving the block ends it as SIGTERM would."""
        repository = Repository("site", self.origin.remote, "main")
        async with (
            ControlPlaneClient.connect(
                self.address,
                project=PROJECT,
                piped=self.registered.id,
                key=lambda: self.registered.key,
                insecure=True,
            ) as api,
            open_mirrors(
                [repository], directory=self.directory / "mirrors", credentials=GitCredentials()
            ) as mirrors,
        ):
            commands = CommandCache(api, interval=LOOK_EVERY)
            metadata = MetadataStore(api)
            tools = ToolRegistry(self.directory / "tools")
            callbacks = Callbacks(
                api,
                commands=commands,
                metadata=metadata,
                tools=tools,
                logs=partial(logs_directory, self.directory / "work"),
            )
            act = {"act": lambda: ActPlugin(self.story, self.release)}
            async with PluginHost.start(
                specs,
                callbacks=callbacks,
                builtins={**builtin_plugins(), **act},
                timeouts=PluginTimeouts(grace=1),
            ) as plugins:
                context = DeploymentContext(
                    api=api,
                    deployments=DeploymentCache(api, interval=LOOK_EVERY),
                    commands=commands,
                    sources=Sources(mirrors, ApplicationConfigs(load_catalog())),
                    plugins=plugins,
                    callbacks=callbacks,
                    metadata=metadata,
                    notifier=cast("Notifier", self.heard),
                    workspace=self.directory / "work",
                    now=now,
                )
                deployer = Deployer(
                    context=context,
                    applications=ApplicationCache(api, interval=LOOK_EVERY),
                )
                async with asyncio.TaskGroup() as loops:
                    parts = (context.deployments, commands, deployer.applications, deployer)
                    tasks = [loops.create_task(part.run()) for part in parts]
                    yield deployer
                    for task in tasks:
                        task.cancel()


@pytest.fixture
def open_stand(tmp_path: Path) -> Callable[[], AbstractAsyncContextManager[Stand]]:
    """Opens a control plane with one application of one piped."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Stand, None]:
        origin = Origin.begin(tmp_path / "origin")
        files = await LocalFiles.open(tmp_path / "files")
        async with open_sqlite(tmp_path / "pipecd.db") as database:
            stores = create_stores(database, files, MemoryCache())
            cases = build_use_cases(
                stores, MemoryBus(), address="http://cp", encryption_key=b"k" * 32
            )
            await cases.projects.add(PROJECT, "the shop")
            registered = await cases.pipeds.register("dev", "", by=ADMIN)
            caller = PipedCaller(PROJECT, registered.id)
            repository = common.ApplicationGitRepository(
                id="site", remote=origin.remote, branch="main"
            )
            await cases.pipeds.report_meta(
                ReportPipedMetaRequest(repositories=[repository], config="{}"), by=caller
            )
            draft = Application(
                name="cart",
                piped_id=registered.id,
                git_path=common.ApplicationGitPath(
                    repo=repository, path="cart", config_filename="app.pipecd.yaml"
                ),
                platform_provider="p",
            )
            id = await cases.applications.add(draft, by=ADMIN)
            gate = Gate(piped_table(cases))
            async with grpc_server([gate], host="127.0.0.1", port=0, grace=0) as port:
                application = await cases.applications.get(id, by=ADMIN)
                stand = Stand(
                    tmp_path, stores, cases, gate, f"127.0.0.1:{port}", registered, application
                )
                yield stand

    return opened
