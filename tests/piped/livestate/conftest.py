# SPDX-License-Identifier: Apache-2.0
"""The part of a piped that looks at what runs, between a control plane, Git and a shelf."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import DeployTargetSpec, PluginSpec
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.application import SyncStatus
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
from pipecd.piped.source.sources import Sources
from pipecd.proto.model.application_pb2 import ApplicationSyncState
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot
from pipecd.sdk import Stage, StageContext, StagePlugin, StageResult
from servers.control_plane import GatedControlPlane, OpenControlPlane, running
from servers.directory_plugin import DirectoryPlugin
from servers.notifier import RecordingNotifier
from servers.origin import Origin

MIRROR_EVERY = 0.05
# Nothing but a reason makes these tests look.
INTERVALS = WatchIntervals(
    poll=30, poll_if_pushed=30, minimum=0.01, commit_grace=0.3, first_backoff=0.05, stale_after=0.5
)

CONFIG = """\
apiVersion: pipecd.dev/v1beta1
kind: Application
spec:
  name: NAME
  plugins: {shelf: {}}
"""


def config(name: str, more: str = "") -> str:
    """The configuration of an application."""
    return CONFIG.replace("NAME", name) + more


class Pause(StagePlugin):
    """A plugin of stages only, which cannot tell what runs."""

    stages = (Stage("PAUSE"),)

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()


@dataclass
class Scene:
    """A control plane, a repository and a shelf."""

    plane: GatedControlPlane
    origin: Origin
    directory: Path
    shelf: DirectoryPlugin = field(default_factory=DirectoryPlugin)
    notifier: RecordingNotifier = field(default_factory=RecordingNotifier)

    intervals = INTERVALS

    @property
    def copies(self) -> Path:
        """Where the working copies are."""
        return self.directory / "work" / "livestate"

    def put(self, application: str, **files: str) -> None:
        """Puts files on the shelf."""
        place = self.directory / "shelf" / application
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name).write_text(content)

    def push(self, application: str, more: str = "", **files: str) -> str:
        """Commits an application that declares files."""
        written = {f"{application}/files/{name}": content for name, content in files.items()}
        settings = {f"{application}/app.pipecd.yaml": config(application, more)}
        return self.origin.commit(settings | written)

    async def deployed(self, application: str, more: str = "", **files: str) -> str:
        """An application that runs as it is declared, and its id."""
        self.push(application, more, **files)
        self.put(application, **files)
        return await self.plane.piped.add_application(application)

    async def state(self, application_id: str) -> ApplicationSyncState:
        return (await self.plane.application(application_id)).sync_state

    def is_in(self, application_id: str, status: SyncStatus, reason: str = "") -> Any:
        """A question for `eventually`: is the application in that state?"""

        async def ask() -> ApplicationSyncState | None:
            state = await self.state(application_id)
            return state if state.status == status and reason in state.reason else None

        return ask

    async def snapshot(self, application_id: str) -> ApplicationLiveStateSnapshot | None:
        return await self.plane.live_state(application_id)

    def has_file(self, application_id: str, name: str, content: str) -> Any:
        """A question for `eventually`: does the control plane know that this runs?"""

        async def ask() -> ApplicationLiveStateSnapshot | None:
            snapshot = await self.snapshot(application_id)
            if snapshot is None:
                return None
            first = [(r.name, r.health_description) for r in snapshot.kubernetes.resources]
            second = snapshot.application_live_state.resources
            found = first + [(r.name, r.health_description) for r in second]
            return snapshot if (name, content) in found else None

        return ask

    @asynccontextmanager
    async def reporting(
        self,
        *,
        intervals: WatchIntervals = INTERVALS,
        plugin_timeout: float = 5,
        decrypt: Any = None,
    ) -> AsyncGenerator[LiveStateReporter]:
        """Runs the live state reporter; leaving the block kills it."""
        work = self.directory / "work"
        site = Repository("site", self.origin.remote, "main")
        target = DeployTargetSpec(name="p", config={"directory": str(self.directory / "shelf")})
        spec = PluginSpec(name="shelf", deploy_targets=(target,))
        async with (
            self.plane.piped.api() as api,
            open_mirrors([site], directory=work / "git", credentials=GitCredentials()) as mirrors,
        ):
            callbacks = Callbacks(
                api,
                commands=CommandCache(api),
                metadata=MetadataStore(api),
                tools=ToolRegistry(work / "tools"),
            )
            applications = ApplicationCache(api, interval=MIRROR_EVERY)
            deployments = DeploymentCache(api, interval=MIRROR_EVERY)
            heads = RepositoryHeads(mirrors)
            states = SyncStates(
                api,
                applications,
                deployments,
                on_change=SyncStatusNotifier(self.notifier).on_change,
            )
            configs = ApplicationConfigs(load_catalog())
            sources = Sources(mirrors, configs, decrypt=decrypt)
            desired_states = DesiredStates(mirrors, configs, sources, self.copies)
            async with PluginHost.start(
                [spec], callbacks=callbacks, builtins={"shelf": lambda: self.shelf, "pause": Pause}
            ) as plugins:
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


@pytest.fixture
def open_scene(
    open_plane: OpenControlPlane, origin: Origin, tmp_path: Path
) -> Callable[[], AbstractAsyncContextManager[Scene]]:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Scene]:
        async with open_plane() as plane:
            await plane.piped.add_repository("site", origin.remote)
            yield Scene(plane, origin, tmp_path)

    return opened
