# SPDX-License-Identifier: Apache-2.0
"""Builds plan previews: merges the branch, and plans every application that the merge triggers."""

import asyncio
import shutil
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pipecd.config.application import ApplicationSpec, config_path
from pipecd.config.read import ApplicationConfig
from pipecd.config.units import Duration
from pipecd.git.commit import Commit
from pipecd.git.merge import MergeConflict, TrialMerge, merge_commits, resolve_commit
from pipecd.git.mirror import Mirror, Mirrors, Repository
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.plan import reason
from pipecd.piped.plan.stages import TargetsByPlugin
from pipecd.piped.planning.baseline import Baselines, CommitTrigger, invalid_config
from pipecd.piped.planning.deployment import Cause, new_deployment
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.planning.planner import Planner, last_success
from pipecd.piped.planning.plugin_previews import get_previews
from pipecd.piped.planpreview.result import add_plugin_results, empty_result, mask
from pipecd.piped.pluginhost.masking import SecretMasks
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.piped.source.sources import Sources
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.planpreview_pb2 import ApplicationPlanPreviewResult

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Applications of all previews together; more working copies at once are not faster.
_CONCURRENT_APPLICATIONS = 8
# The commit message of the merge is not known yet. With a commander, as in upstream, rules about
# commit messages do not apply.
_COMMANDER = "pipectl"
_NOT_DECRYPTED = (
    "secrets are placeholders in previews of commits that are not merged; "
    "secretManagement.decryptInPreviews of the piped changes that"
)


@dataclass(frozen=True)
class MergePreview:
    """The preview of a merge that is not pushed yet."""

    command_id: str
    request: Command.BuildPlanPreview
    repository: Repository
    merged: Commit
    is_on_branch: bool
    """Whether the head commit is on the base branch already, so that the merge changes nothing."""
    deadline: float
    """When the preview must be ready, by the clock of the event loop."""
    time_limit: Duration


class PreviewFailed(PipecdError):
    """A step of a preview failed; the message names it."""


@dataclass(frozen=True, kw_only=True)
class ApplicationPreviewer:
    """Previews single applications with the sources and the plugins of this piped."""

    api: ControlPlaneClient
    sources: Sources
    unmerged_sources: Sources
    """The sources of commits that are not on the branch: anybody who may push has written them."""
    plugins: PluginRegistry
    masks: SecretMasks
    targets: TargetsByPlugin
    now: Now = utc_now

    async def preview(
        self, application: Application, spec: ApplicationSpec, merge: MergePreview, into: Path
    ) -> ApplicationPlanPreviewResult:
        """Returns the result, also of a failure; removes its working copies in `into`."""
        result = empty_result(application, merge.request, now=to_unix(self.now()))
        # The deployment that the merge would trigger; its id differs for each command.
        deployment = new_deployment(
            application,
            spec,
            Cause(key=f"preview\0{merge.command_id}", commander=_COMMANDER),
            commit=merge.merged,
            repository=merge.repository,
            now=self.now(),
        )
        sources = self.sources if merge.is_on_branch else self.unmerged_sources
        try:
            async with asyncio.timeout_at(merge.deadline):
                await self._plan(result, deployment, into, sources)
        except TimeoutError:
            result.error = f"there was no preview within {merge.time_limit}"
        except PipecdError as e:
            result.error = str(e)
            if spec.encryption is not None and sources is not self.sources:
                result.error += f" ({_NOT_DECRYPTED})"
        except OSError as e:
            result.error = f"failed while planning, {e.strerror or e}"
        finally:
            await asyncio.to_thread(shutil.rmtree, into, ignore_errors=True)
            mask(result, self.masks.of(deployment.id))
            self.masks.forget(deployment.id)
        return result

    async def _plan(
        self,
        result: ApplicationPlanPreviewResult,
        deployment: Deployment,
        into: Path,
        sources: Sources,
    ) -> None:
        try:
            running = await last_success(self.api, deployment.application_id)
        except PipecdError as e:
            raise PreviewFailed(f"failed while finding the last successful deployment ({e})") from e
        # The builder limits the number of concurrent applications as a whole.
        copies = DeploymentSources(sources, self.masks, deployment.id, nullcontext())
        planner = Planner(copies, self.plugins, targets=self.targets, now=self.now)
        try:
            input = await planner.prepare(deployment, running, into)
            result.plugin_names[:] = [plugin.name for plugin in input.plugins]
            plan = await planner.decide(input)
        except PipecdError as e:
            raise PreviewFailed(f"failed while planning, {e}") from e
        previews = await get_previews(input)
        add_plugin_results(result, plan.strategy, previews)
        if previews.errors:
            errors = "".join(f"\n{error}" for error in previews.errors)
            raise PreviewFailed(f"failed to get plan preview, {errors}")


@dataclass(frozen=True, kw_only=True)
class PreviewBuilder:
    """Builds the previews that commands request."""

    applications: ApplicationCache
    heads: RepositoryHeads
    mirrors: Mirrors
    configs: ApplicationConfigs
    baselines: Baselines
    previewer: ApplicationPreviewer
    now: Now = utc_now
    concurrency: asyncio.Semaphore = field(
        default_factory=lambda: asyncio.Semaphore(_CONCURRENT_APPLICATIONS)
    )

    async def build(
        self, command: Command, *, deadline: float, time_limit: Duration, into: Path
    ) -> list[ApplicationPlanPreviewResult]:
        """Returns the result of every application that the merge triggers.

        Raises what concerns the whole preview; the error of one application is in its result. The
        working copies in `into` are removed.
        """
        request = command.build_plan_preview
        if request.repository_id not in self.mirrors:
            raise NotFound(f"repository {request.repository_id} was not found in Piped config")
        mirror = self.mirrors.of(request.repository_id)
        if mirror.repository.branch != request.base_branch:
            raise UserMistake(
                f"base branch of repository {request.repository_id} was not matched, requested "
                f"{request.base_branch}, expected {mirror.repository.branch}"
            )
        applications = self.applications.of_repository(request.repository_id)
        if not applications:
            return []
        async with asyncio.timeout_at(deadline):
            # Including what is pushed by now.
            head = await self.heads.poll(request.repository_id)
            if head.error is not None:
                raise head.error
            if (base := head.commit) is None:
                raise NotFound(f"branch {request.base_branch} has no commit")
            trial = await self._merge(mirror, base, request, applications)
            merged = await mirror.objects.commit(trial.commit)
            merge = MergePreview(
                command_id=command.id,
                request=request,
                repository=mirror.repository,
                merged=merged,
                # Merging a commit that is part of the branch creates no commit.
                is_on_branch=merged.hash == base.hash,
                deadline=deadline,
                time_limit=time_limit,
            )
            too_large = {
                each.id: str(trial.left_out[each.git_path.path])
                for each in applications
                if each.git_path.path in trial.left_out
            }
            mergeable = tuple(each for each in applications if each.id not in too_large)
            triggered: list[tuple[Application, ApplicationConfig | str]] = [
                *((each, too_large[each.id]) for each in applications if each.id in too_large),
                *await self._triggered(mirror, base, merged, mergeable),
            ]
        log.info("plan preview started", command=command.id, applications=len(triggered))
        async with asyncio.TaskGroup() as tasks:
            previews = [
                tasks.create_task(self._preview(application, config, merge, into / application.id))
                for application, config in triggered
            ]
        return [preview.result() for preview in previews]

    async def _merge(
        self,
        mirror: Mirror,
        base: Commit,
        request: Command.BuildPlanPreview,
        applications: tuple[Application, ...],
    ) -> TrialMerge:
        """Merges the branch without the directories of applications that are too large to merge."""
        message = (
            f"Plan-preview: merged {request.head_commit} commit from {request.head_branch} branch "
            f"into {request.base_branch} base branch"
        )
        head = await resolve_commit(mirror.clone, request.head_commit, request.head_branch)
        try:
            return await merge_commits(
                mirror.clone,
                base.hash,
                head,
                message,
                directories=[each.git_path.path for each in applications],
            )
        except MergeConflict as e:
            raise UserMistake(
                f"detected conflicts between commit {request.head_commit} at {request.head_branch} "
                f"branch and the base branch {request.base_branch} ({', '.join(e.files)})",
                hint=f"merge {request.base_branch} into {request.head_branch} and resolve them",
            ) from e

    async def _triggered(
        self, mirror: Mirror, base: Commit, merged: Commit, applications: tuple[Application, ...]
    ) -> list[tuple[Application, ApplicationConfig | str]]:
        """Returns the applications that the merge triggers, each with its config or an error.

        An error that existed before the merge is not reported unless the merge changes the
        application.
        """
        paths = {each.id: config_path(each.git_path) for each in applications}
        configs = await self.configs.at(mirror.objects, merged.hash, paths.values())
        changed = await mirror.objects.changed_files(base.hash, merged.hash)
        trigger = CommitTrigger(self.baselines, mirror, merged.hash)
        triggered: list[tuple[Application, ApplicationConfig | str]] = []
        for application in applications:
            config = configs[paths[application.id]]
            error = invalid_config(application, config)
            if not error and not isinstance(config, PipecdError):
                error = reason.invalid_patterns(config.spec.trigger.on_commit)
            if error:
                prefix = reason.directory_prefix(application.git_path.path)
                if any(path.startswith(prefix) for path in changed):
                    triggered.append((application, error))
            elif not isinstance(config, PipecdError):
                try:
                    decision = await trigger.decide(application, config.spec)
                except PipecdError as e:
                    triggered.append((application, str(e)))
                else:
                    if decision.deploy:
                        triggered.append((application, config))
        return triggered

    async def _preview(
        self,
        application: Application,
        config: ApplicationConfig | str,
        merge: MergePreview,
        into: Path,
    ) -> ApplicationPlanPreviewResult:
        if isinstance(config, str):
            result = empty_result(application, merge.request, now=to_unix(self.now()))
            result.error = (
                f"failed while determining the application should be triggered or not, {config}"
            )
            return result
        async with self.concurrency:
            return await self.previewer.preview(application, config.spec, merge, into)
