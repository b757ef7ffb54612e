# SPDX-License-Identifier: Apache-2.0
"""A previewer between a real control plane, a repository and plugins."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from pipecd.config.catalog import load_catalog
from pipecd.config.units import Duration
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.model.errors import NotFound
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.planning.baseline import Baselines, IgnoredCommits
from pipecd.piped.planpreview.builder import ApplicationPreviewer, PreviewBuilder
from pipecd.piped.planpreview.previewer import Previewer, PreviewMetrics
from pipecd.piped.pluginhost.local import LocalPlugin
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.registry import PluginRegistry, RegisteredPlugin
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.sources import Sources
from pipecd.plugins.wait.plugin import WaitPlugin
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.application_pb2 import Application, ApplicationDeploymentReference
from pipecd.proto.model.common_pb2 import ApplicationGitPath
from pipecd.proto.model.deployment_pb2 import Commit, DeploymentTrigger, DeployTargets
from pipecd.proto.model.planpreview_pb2 import PlanPreviewCommandResult
from pipecd.proto.service.api_pb2 import RequestPlanPreviewRequest
from pipecd.proto.service.piped_pb2 import ReportApplicationMostRecentDeploymentRequest
from pipecd.sdk import (
    DeploymentPlugin,
    DeployTarget,
    PipecdError,
    PlanContext,
    PlannedStage,
    PluginEntry,
    Preview,
    PreviewContext,
    PreviewPlugin,
    Stage,
    StageContext,
    StageResult,
    Strategy,
    Version,
)
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.testing import MemoryHost
from servers.control_plane import GatedControlPlane, OpenControlPlane, running
from servers.origin import Origin

LOOK_EVERY = 0.02


@dataclass
class Platform(DeploymentPlugin, PreviewPlugin):
    """A platform whose applications are one file; a change of it takes the pipeline."""

    error: str = ""
    held: asyncio.Event | None = None
    previewed: list[PreviewContext] = field(default_factory=list[PreviewContext])
    at_once: int = 0
    most_at_once: int = 0

    stages = (Stage("CANARY"), Stage("SYNC"), Stage("SYNC_ROLLBACK"))

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        return [Version(_tag(plan.target))]

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        return Strategy(SyncStrategy.PIPELINE, "the tag changed")

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        return [PlannedStage("SYNC")]

    async def execute(self, stage: StageContext) -> StageResult:
        return StageResult.succeeded()

    async def preview(self, change: PreviewContext) -> Sequence[Preview]:
        self.previewed.append(change)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.held is not None:
                await self.held.wait()
        finally:
            self.at_once -= 1
        wanted = _tag(change.target)
        if self.error:
            raise PipecdError(f"{self.error} at {wanted}")
        running = _tag(change.running) if change.running is not None else ""
        if wanted == running:
            return [
                Preview(t.name, "No changes were detected", no_change=True) for t in change.targets
            ]
        return [
            Preview(t.name, "1 tag changed", f"- {running}\n+ {wanted}\n") for t in change.targets
        ]


def _tag(source: Any) -> str:
    return (source.application_directory / "tag").read_text().strip()


@dataclass
class Scene:
    """A control plane, a repository, and a piped of which only the previews run."""

    plane: GatedControlPlane
    origin: Origin
    platform: Platform = field(default_factory=Platform)
    targets: tuple[str, ...] = ("dev",)
    decrypt: Callable[[str], str] | None = None
    workers: int = 3
    within: float = 300
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    applications: ApplicationCache | None = None
    masks: SecretMasks = field(default_factory=SecretMasks)

    @property
    def workspace(self) -> Path:
        return self.plane.directory / "workspace"

    @asynccontextmanager
    async def previewing(self) -> AsyncGenerator[Previewer]:
        """The part of a piped; leaving the block stops it."""
        self.registry = CollectorRegistry()
        site = Repository("site", self.origin.remote, "main")
        directory = self.plane.directory / "mirrors"
        async with (
            self.plane.piped.api() as api,
            open_mirrors([site], directory=directory, credentials=GitCredentials()) as mirrors,
        ):
            configs = ApplicationConfigs(load_catalog())
            previewer = Previewer(
                commands=CommandCache(api, interval=LOOK_EVERY),
                builder=PreviewBuilder(
                    applications=ApplicationCache(api, interval=LOOK_EVERY),
                    heads=RepositoryHeads(mirrors),
                    mirrors=mirrors,
                    configs=configs,
                    baselines=Baselines(IgnoredCommits(self.workspace / "seen.json")),
                    previewer=ApplicationPreviewer(
                        api=api,
                        sources=Sources(mirrors, configs, decrypt=self.decrypt),
                        plugins=self._plugins(),
                        masks=self.masks,
                        targets={"platform": self.targets},
                    ),
                ),
                workspace=self.workspace,
                workers=self.workers,
                default_timeout=Duration(self.within),
                metrics=PreviewMetrics(self.registry),
            )
            await previewer.builder.baselines.load()
            parts = (previewer.commands, previewer.builder.applications, previewer)
            async with running(*parts):
                self.applications = previewer.builder.applications
                yield previewer
                self.applications = None

    def _plugins(self) -> PluginRegistry:
        entry = PluginEntry("platform", {}, tuple(DeployTarget(t, {}, {}) for t in self.targets))
        platform = LocalPlugin(PluginServer(self.platform, entry, MemoryHost()))
        wait = LocalPlugin(PluginServer(WaitPlugin(), PluginEntry("wait", {}, ()), MemoryHost()))
        return PluginRegistry(
            [
                RegisteredPlugin(platform, frozenset(s.name for s in self.platform.stages)),
                RegisteredPlugin(wait, frozenset({"WAIT"})),
            ]
        )

    async def add(self, path: str, *, deployed: str = "") -> str:
        """Registers an application, whose last deployment succeeded at a commit."""
        draft = Application(
            name=path,
            piped_id=self.plane.piped.id,
            git_path=ApplicationGitPath(
                repo=self.plane.piped.repositories["site"],
                path=path,
                config_filename="app.pipecd.yaml",
            ),
            deploy_targets_by_plugin={"platform": DeployTargets(deploy_targets=self.targets)},
        )
        id_ = await self.plane.cases.applications.add(draft, by=self.plane.admin)
        if deployed:
            await self._deployed(id_, deployed)
        return id_

    async def _deployed(self, application_id: str, commit: str) -> None:
        now = int(time.time())
        reference = ApplicationDeploymentReference(
            deployment_id="d",
            trigger=DeploymentTrigger(
                commit=Commit(hash=commit, message="m", author="a", branch="main", created_at=now),
                timestamp=now,
            ),
            config_filename="app.pipecd.yaml",
            started_at=now,
        )
        async with self.plane.piped.api() as api:
            for status in (DeploymentStatus.PENDING, DeploymentStatus.SUCCESS):
                await api.report_application_most_recent_deployment(
                    ReportApplicationMostRecentDeploymentRequest(
                        application_id=application_id,
                        status=deployment_pb2.DeploymentStatus.ValueType(status),
                        deployment=reference,
                    )
                )

    def branch(self, files: dict[str, Any], name: str = "feature") -> str:
        """Pushes a branch with one commit and returns that."""
        self.origin.git("checkout", "-q", "-b", name)
        made = self.origin.commit(files)
        self.origin.git("checkout", "-q", "main")
        return made

    async def request(self, commit: str, branch: str = "feature", **more: Any) -> str:
        if self.applications is not None:
            # What was registered a moment ago has to be known first.
            reads = self.applications.poll_count
            while self.applications.poll_count < reads + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        wanted = RequestPlanPreviewRequest(
            repo_remote_url=self.origin.remote,
            base_branch="main",
            head_branch=branch,
            head_commit=commit,
            **more,
        )
        [command] = await self.plane.cases.plan_previews.request(wanted, by=self.plane.admin)
        return command

    async def result(self, command: str, at_most: float = 15) -> PlanPreviewCommandResult:
        """What pipectl is told, once there is something."""
        stored = await self.plane.wait_for_command(command, within=at_most)
        try:
            [result] = await self.plane.cases.plan_previews.results([command], by=self.plane.admin)
        except NotFound as e:
            raise AssertionError from e
        assert (stored.status == 1) is not bool(result.error)
        return result

    async def preview(self, commit: str, branch: str = "feature") -> PlanPreviewCommandResult:
        """Asks for a preview and waits for it."""
        return await self.result(await self.request(commit, branch))


@pytest.fixture
def open_scene(
    open_plane: OpenControlPlane, origin: Origin
) -> Callable[..., AbstractAsyncContextManager[Scene]]:
    @asynccontextmanager
    async def opened(**more: Any) -> AsyncGenerator[Scene]:
        async with open_plane() as plane:
            await plane.piped.add_repository("site", origin.remote)
            yield Scene(plane, origin, **more)

    return opened
