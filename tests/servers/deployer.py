# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""The deployer of a piped between a control plane and a repository, and stages that act as configured."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import PluginSpec
from pipecd.config.units import Duration
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.clock import Now, utc_now
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.ids import new_id
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.deploy.changes import ChangeReporter
from pipecd.piped.deploy.context import DeploymentContext, logs_directory
from pipecd.piped.deploy.deployer import Deployer
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.host import PluginHost
from pipecd.piped.pluginhost.local import builtin_plugins
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.process import PluginTimeouts
from pipecd.piped.pluginhost.tool_registry import ToolRegistry
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Decrypt, Sources
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.sdk import PlannedStage, Spec, Stage, StageContext, StagePlugin, StageResult
from servers.control_plane import GatedControlPlane, open_control_plane, running
from servers.gate import Trace
from servers.notifier import RecordingNotifier
from servers.origin import Origin
from servers.samples import CART

POLL_INTERVAL = 0.03


class ActOptions(Spec):
    """What a stage of the tests does, one of the cases of `ActPlugin`."""

    do: str = "succeed"
    undo: str = ""


class ActPlugin(StagePlugin):
    """Stages that act as configured and record that they ran."""

    stages = (Stage("ACT", ActOptions), Stage("ACT_ROLLBACK"))

    def __init__(self, trace: Trace, release: dict[str, asyncio.Event]) -> None:
        self._trace, self._release = trace, release

    async def plan_stage(self, requested: Any, *, rollback: bool) -> Sequence[PlannedStage]:
        options = requested.options(ActOptions)
        planned = PlannedStage("ACT", requested.index, requested.description)
        undo = PlannedStage("ACT_ROLLBACK", requested.index, is_rollback=True)
        return (planned, undo) if rollback and options.undo else (planned,)

    async def execute(self, stage: StageContext) -> StageResult:
        options = stage.options(ActOptions)
        what = options.undo if stage.is_rollback else options.do
        me = f"{'undo' if stage.is_rollback else 'act'} {stage.index}"
        await self._trace.write(f"{me} begins")
        stage.log.info(f"{me}: {what}")
        if what == "list-skipped":
            stage.log.info(f"skipped: {sorted(stage.deployment.skipped_stages)}")
        try:
            result = await self._act(what, me)
        except asyncio.CancelledError:
            await self._trace.write(f"{me} is stopped")
            if what == "stubborn":
                result = StageResult.succeeded("it was too late to stop")
            elif what == "offended":
                return StageResult.failed("stopped")
            else:
                raise
        await self._trace.write(f"{me} ends")
        return result

    async def _act(self, what: str, me: str) -> StageResult:
        match what:
            case "succeed" | "list-skipped":
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


@dataclass
class DeployerSetup:
    """A control plane with one application, and the deployer of its piped."""

    plane: GatedControlPlane
    origin: Origin
    application: Application
    trace: Trace = field(default_factory=Trace)
    notifier: RecordingNotifier = field(default_factory=RecordingNotifier)
    release: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    decrypt: Decrypt | None = None
    time_limit_of_changes: float = 60
    plugins: Mapping[str, Callable[[], StagePlugin]] = field(
        default_factory=dict[str, Callable[[], StagePlugin]]
    )
    """More plugins than those of piped and `ActPlugin`."""

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
            piped_id=self.plane.piped.id,
            project_id=self.application.project_id,
            git_path=self.application.git_path,
            trigger=DeploymentTrigger(
                commit=Commit(hash=commit, message=message, author="ann", branch="main", created_at=when),
                timestamp=when,
                sync_strategy=strategy,
                strategy_summary="as requested" if strategy else "",
            ),
            **changes,
        )  # fmt: skip
        await self.plane.cases.deployment_reports.create(deployment, by=self.plane.piped.caller)
        return deployment.id

    async def until(self, id: str, matches: Callable[[Deployment], object]) -> Deployment:
        """Returns the deployment once it matches."""
        return await self.plane.wait_for(lambda: self.plane.deployment(id), matches)

    async def finished(self, id: str) -> Deployment:
        return await self.until(id, lambda d: DeploymentStatus(d.status).is_completed)

    async def app(self) -> Application:
        return await self.plane.application(self.application.id)

    async def set_deploying(self) -> None:
        """Sets the deploying flag of the application without a deployment, as if it was lost."""

        def change(application: Application) -> None:
            application.deploying = True

        await self.plane.stores.applications.update(self.application.id, change)

    async def cancel(self, id: str, *, rollback: bool = False, no_rollback: bool = False) -> str:
        cancel = self.plane.cases.deployments.cancel
        return await cancel(id, rollback, no_rollback, by=self.plane.admin)

    @property
    def started(self) -> list[str]:
        """The stages in the order they started, each as often as it started."""
        return [line.removesuffix(" begins") for line in self.trace if line.endswith(" begins")]

    def release_stage(self, me: str) -> None:
        self.release.setdefault(me, asyncio.Event()).set()

    @asynccontextmanager
    async def piped(
        self, specs: Sequence[PluginSpec] = (), *, now: Now = utc_now
    ) -> AsyncGenerator[Deployer, None]:
        """Runs the deployer of a piped; leaving the block ends it as SIGTERM would."""
        repository = Repository("site", self.origin.remote, "main")
        async with (
            self.plane.piped.api() as api,
            open_mirrors(
                [repository],
                directory=self.plane.directory / "mirrors",
                credentials=GitCredentials(),
            ) as mirrors,
            WorkerPool() as workers,
        ):
            commands = CommandCache(api, interval=POLL_INTERVAL)
            metadata = MetadataStore(api)
            tools = ToolRegistry(self.plane.directory / "tools")
            callbacks = Callbacks(
                api,
                commands=commands,
                metadata=metadata,
                tools=tools,
                logs=partial(logs_directory, self.plane.directory / "work"),
            )
            act = {"act": lambda: ActPlugin(self.trace, self.release)}
            async with PluginHost.start(
                specs,
                callbacks=callbacks,
                builtins={**builtin_plugins(), **act, **self.plugins},
                timeouts=PluginTimeouts(grace=1),
            ) as plugins:
                sources = Sources(
                    mirrors,
                    ApplicationConfigs(load_catalog()),
                    project=self.plane.admin.project,
                    renderer=TemplateRenderer(workers),
                    decrypt=self.decrypt,
                )
                workspace = self.plane.directory / "work"
                context = DeploymentContext(
                    api=api,
                    deployments=DeploymentCache(api, interval=POLL_INTERVAL),
                    commands=commands,
                    sources=sources,
                    plugins=plugins,
                    catalog=load_catalog(),
                    callbacks=callbacks,
                    metadata=metadata,
                    notifier=self.notifier,
                    changes=ChangeReporter(
                        api=api,
                        sources=sources,
                        plugins=plugins,
                        masks=callbacks.masks,
                        targets={},
                        workspace=workspace,
                        time_limit=Duration(self.time_limit_of_changes),
                    ),
                    workspace=workspace,
                    now=now,
                )
                deployer = Deployer(
                    context=context,
                    applications=ApplicationCache(api, interval=POLL_INTERVAL),
                )
                async with running(context.deployments, commands, deployer.applications, deployer):
                    yield deployer


OpenDeployer = Callable[[], AbstractAsyncContextManager[DeployerSetup]]


@asynccontextmanager
async def open_deployer(directory: Path) -> AsyncGenerator[DeployerSetup, None]:
    """Opens a control plane with the application `cart`."""
    origin = Origin.begin(directory / "origin")
    async with open_control_plane(directory) as plane:
        await plane.piped.add_repository("site", origin.remote)
        application = await plane.application(await plane.piped.add_application("cart"))
        yield DeployerSetup(plane, origin, application)
