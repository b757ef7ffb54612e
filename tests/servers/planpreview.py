# SPDX-License-Identifier: Apache-2.0
"""The plan previewer of a piped between a control plane, a repository and plugins."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from pipecd.config.catalog import load_catalog
from pipecd.config.units import Duration
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
from pipecd.piped.source.render import TemplateRenderer
from pipecd.piped.source.sources import Decrypt, Sources
from pipecd.plugins.wait.plugin import WaitPlugin
from pipecd.program.workers import WorkerPool
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
    Source,
    Stage,
    StageContext,
    StageResult,
    Strategy,
    Version,
)
from pipecd.sdk.serving import PluginServer
from pipecd.sdk.testing import MemoryHost
from servers.control_plane import running
from servers.environment import POLL_INTERVAL, PipedEnvironment


@dataclass
class TagPlatform(DeploymentPlugin, PreviewPlugin):
    """A platform whose applications are the file `tag`; a change of it needs the pipeline."""

    error: str = ""
    release: asyncio.Event | None = None
    """Set by a test in order to hold previews until the event is set."""
    previewed: list[PreviewContext] = field(default_factory=list[PreviewContext])
    concurrent: int = 0
    max_concurrent: int = 0

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
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        try:
            if self.release is not None:
                await self.release.wait()
        finally:
            self.concurrent -= 1
        target = _tag(change.target)
        if self.error:
            raise PipecdError(f"{self.error} at {target}")
        running = _tag(change.running) if change.running is not None else ""
        if target == running:
            return [
                Preview(t.name, "No changes were detected", no_change=True) for t in change.targets
            ]
        return [
            Preview(t.name, "1 tag changed", f"- {running}\n+ {target}\n") for t in change.targets
        ]


def _tag(source: Source) -> str:
    return (source.application_directory / "tag").read_text().strip()


@dataclass
class PreviewEnvironment(PipedEnvironment):
    """Runs a plan previewer with a platform that a test controls."""

    platform: TagPlatform = field(default_factory=TagPlatform)
    targets: tuple[str, ...] = ("dev",)
    decrypt: Decrypt | None = None
    decrypt_unmerged: Decrypt | None = None
    """Used for commits that are not on the branch; `decrypt` if None."""
    workers: int = 3
    default_timeout: float = 300
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    applications: ApplicationCache | None = None
    masks: SecretMasks = field(default_factory=SecretMasks)

    @property
    def workspace(self) -> Path:
        return self.plane.directory / "workspace"

    @asynccontextmanager
    async def previewing(self) -> AsyncGenerator[Previewer]:
        """Runs the previewer; leaving the block stops it."""
        self.registry = CollectorRegistry()
        async with self.connect(self.site) as (api, mirrors), WorkerPool() as workers:
            configs = ApplicationConfigs(load_catalog())
            sources = Sources(
                mirrors,
                configs,
                project=self.plane.admin.project,
                renderer=TemplateRenderer(workers),
                decrypt=self.decrypt,
            )
            unmerged = sources
            if self.decrypt_unmerged is not None:
                unmerged = sources.decrypting_with(self.decrypt_unmerged)
            previewer = Previewer(
                commands=CommandCache(api, interval=POLL_INTERVAL),
                builder=PreviewBuilder(
                    applications=ApplicationCache(api, interval=POLL_INTERVAL),
                    heads=RepositoryHeads(mirrors),
                    mirrors=mirrors,
                    configs=configs,
                    baselines=Baselines(IgnoredCommits(self.workspace / "seen.json")),
                    previewer=ApplicationPreviewer(
                        api=api,
                        sources=sources,
                        unmerged_sources=unmerged,
                        plugins=self._plugins(),
                        masks=self.masks,
                        targets={"platform": self.targets},
                    ),
                ),
                workspace=self.workspace,
                workers=self.workers,
                default_timeout=Duration(self.default_timeout),
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

    async def add_application(self, path: str, *, deployed: str = "") -> str:
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
            await self._report_deployed(id_, deployed)
        return id_

    async def _report_deployed(self, application_id: str, commit: str) -> None:
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

    def push_branch(self, files: dict[str, str], name: str = "feature") -> str:
        """Pushes a branch with one commit and returns the commit."""
        self.origin.git("checkout", "-q", "-b", name)
        commit = self.origin.commit(files)
        self.origin.git("checkout", "-q", "main")
        return commit

    async def request(self, commit: str, branch: str = "feature", *, timeout: int = 0) -> str:  # noqa: ASYNC109
        """Requests a preview as pipectl does, and returns the id of the command."""
        if self.applications is not None:
            # The previewer must have listed applications that were added a moment ago.
            polls = self.applications.poll_count
            while self.applications.poll_count < polls + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        request = RequestPlanPreviewRequest(
            repo_remote_url=self.origin.remote,
            base_branch="main",
            head_branch=branch,
            head_commit=commit,
            timeout=timeout,
        )
        [command] = await self.plane.cases.plan_previews.request(request, by=self.plane.admin)
        return command

    async def result(self, command: str) -> PlanPreviewCommandResult:
        """The result that pipectl receives, once the command is handled."""
        stored = await self.plane.wait_for_command(command, within=15)
        try:
            [result] = await self.plane.cases.plan_previews.results([command], by=self.plane.admin)
        except NotFound as e:
            raise AssertionError from e
        assert (stored.status == 1) is not bool(result.error)
        return result

    async def preview(self, commit: str, branch: str = "feature") -> PlanPreviewCommandResult:
        """Requests a preview and waits for its result."""
        return await self.result(await self.request(commit, branch))


OpenPreviews = Callable[..., AbstractAsyncContextManager[PreviewEnvironment]]
