# SPDX-License-Identifier: Apache-2.0
"""The live state reporter of a piped between a control plane, a repository and a plugin."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.livestate.desired_state import DesiredStates
from pipecd.piped.livestate.notifications import HealthNotifier, SyncStatusNotifier
from pipecd.piped.livestate.reader import LiveStateReader
from pipecd.piped.livestate.reporter import LiveStateReporter
from pipecd.piped.livestate.watcher import WatcherContext, WatchIntervals
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.host import PluginHost
from pipecd.piped.pluginhost.metadata_store import MetadataStore
from pipecd.piped.pluginhost.tool_registry import ToolRegistry
from pipecd.piped.reporting.sync_states import SyncStates
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Decrypt, Sources
from pipecd.program.workers import WorkerPool
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.sdk import Stage, StageContext, StagePlugin, StageResult
from servers.control_plane import running
from servers.directory_plugin import DirectoryPlugin
from servers.environment import POLL_INTERVAL, PipedEnvironment

# So long that only a change makes the reporter read.
INTERVALS = WatchIntervals(
    poll=30, poll_if_pushed=30, minimum=0.01, commit_grace=0.3, first_backoff=0.05, stale_after=0.5
)
_CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  plugins: {shelf: {}}
"""


class PausePlugin(StagePlugin):
    """A plugin of stages only, which does not support live states."""

    stages = (Stage("PAUSE"),)

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()


@dataclass
class LiveStateEnvironment(PipedEnvironment):
    """Runs a live state reporter with a platform whose applications are files of a directory."""

    plugin: DirectoryPlugin = field(default_factory=DirectoryPlugin)

    @property
    def working_copies(self) -> Path:
        return self.plane.directory / "work" / "livestate"

    @property
    def target(self) -> Path:
        """The directory of the deploy target."""
        return self.plane.directory / "shelf"

    def write_live(self, application: str, **files: str) -> None:
        """Writes files of an application into the deploy target."""
        directory = self.target / application
        directory.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (directory / name).write_text(content)

    def push(self, application: str, more: str = "", **files: str) -> str:
        """Commits an application that declares files; `more` is added to its configuration."""
        declared = {f"{application}/files/{name}": content for name, content in files.items()}
        config = _CONFIG.replace("NAME", application) + more
        return self.origin.commit({f"{application}/app.pipecd.yaml": config, **declared})

    async def add_deployed(self, application: str, more: str = "", **files: str) -> str:
        """Adds an application that runs as it is declared, and returns its id."""
        self.push(application, more, **files)
        self.write_live(application, **files)
        return await self.plane.piped.add_application(application)

    def has_live_file(
        self, application_id: str, name: str, content: str
    ) -> Callable[[], Awaitable[ApplicationLiveStateSnapshot | None]]:
        """A condition for `eventually`: the reported live state, once it has the file."""
        return partial(self._snapshot_with, application_id, name, content)

    async def _snapshot_with(
        self, application_id: str, name: str, content: str
    ) -> ApplicationLiveStateSnapshot | None:
        snapshot = await self.plane.live_state(application_id)
        if snapshot is None:
            return None
        files = {(r.name, r.health_description) for r in snapshot.kubernetes.resources}
        v1 = snapshot.application_live_state.resources
        files |= {(r.name, r.health_description) for r in v1}
        return snapshot if (name, content) in files else None

    @asynccontextmanager
    async def reporting(
        self,
        *,
        intervals: WatchIntervals = INTERVALS,
        plugin_timeout: float = 5,
        decrypt: Decrypt | None = None,
    ) -> AsyncGenerator[LiveStateReporter]:
        """Runs the live state reporter; leaving the block kills it."""
        target = DeployTargetSpec(name="p", config={"directory": str(self.target)})
        spec = PluginSpec(name="shelf", deploy_targets=(target,))
        async with self.connect(self.site) as (api, mirrors), WorkerPool() as workers:
            callbacks = Callbacks(
                api,
                commands=CommandCache(api),
                metadata=MetadataStore(api),
                tools=ToolRegistry(self.plane.directory / "tools"),
            )
            applications = ApplicationCache(api, interval=POLL_INTERVAL)
            deployments = DeploymentCache(api, interval=POLL_INTERVAL)
            heads = RepositoryHeads(mirrors)
            states = SyncStates(
                api,
                applications,
                deployments,
                on_change=SyncStatusNotifier(self.notifier).on_change,
            )
            configs = ApplicationConfigs(load_catalog())
            sources = Sources(
                mirrors,
                configs,
                project=self.plane.admin.project,
                renderer=TemplateRenderer(workers),
                decrypt=decrypt,
            )
            desired_states = DesiredStates(mirrors, configs, sources, self.working_copies)
            builtins = {"shelf": lambda: self.plugin, "pause": PausePlugin}
            async with PluginHost.start([spec], callbacks=callbacks, builtins=builtins) as plugins:
                reporter = LiveStateReporter(
                    applications=applications,
                    mirrors=mirrors,
                    context=WatcherContext(
                        api=api,
                        deployments=deployments,
                        heads=heads,
                        desired_states=desired_states,
                        reader=LiveStateReader(
                            desired_states, plugins, {"shelf": ("p",)}, timeout=plugin_timeout
                        ),
                        states=states,
                        health=HealthNotifier(self.notifier),
                        intervals=intervals,
                    ),
                )
                callbacks.on_live_state_changed = reporter.changed
                async with running(applications, deployments, heads, states, reporter):
                    yield reporter


OpenLiveState = Callable[[], AbstractAsyncContextManager[LiveStateEnvironment]]
