# SPDX-License-Identifier: Apache-2.0
"""From the request for a preview to its result: the merge, the applications it touches, each."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from pipecd.config.duration import Duration
from pipecd.config.read import ApplicationConfig
from pipecd.git.commit import Commit
from pipecd.git.merge import MergeConflict, merge_commits, resolve_commit
from pipecd.git.mirror import Mirror, Mirrors
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import NotFound, PipecdError, UserMistake
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.plan import reason
from pipecd.piped.planning.baseline import Baselines
from pipecd.piped.planning.judgement import Judgement, mistake_in
from pipecd.piped.planpreview.application import ApplicationPreviews, Change
from pipecd.piped.planpreview.result import described
from pipecd.piped.source.configs import Configs, Read
from pipecd.piped.source.sources import config_path
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.planpreview_pb2 import ApplicationPlanPreviewResult

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# Applications of all previews together; more working copies at once would not make it faster.
_AT_ONCE = 8

Results = list[ApplicationPlanPreviewResult]


@dataclass(frozen=True, kw_only=True)
class Builder:
    """Builds previews with what this piped knows and has at hand."""

    applications: ApplicationCache
    heads: RepositoryHeads
    mirrors: Mirrors
    configs: Configs
    baselines: Baselines
    previews: ApplicationPreviews
    now: Now = utc_now
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))

    async def build(
        self, command: Command, *, deadline: float, within: Duration, into: Path
    ) -> Results:
        """The result of every application that the change touches.

        What keeps the whole from being built is raised; what goes wrong with one application is
        its result. The working copies in `into` are removed.
        """
        wanted = command.build_plan_preview
        mirror = self._mirror(wanted)
        applications = self.applications.of_repository(wanted.repository_id)
        if not applications:
            return []
        async with asyncio.timeout_at(deadline):
            base = await self._base(wanted)
            merged = await self._merge(mirror, base, wanted)
            change = Change(command.id, wanted, mirror.repository, merged, deadline, within)
            found = await self._touched(mirror, base, change, applications)
        log.info("plan preview begun", command=command.id, applications=len(found))
        async with asyncio.TaskGroup() as tasks:
            made = [
                tasks.create_task(self._preview(application, read, change, into / application.id))
                for application, read in found
            ]
        return [task.result() for task in made]

    def _mirror(self, wanted: Command.BuildPlanPreview) -> Mirror:
        if wanted.repository_id not in self.mirrors:
            raise NotFound(f"repository {wanted.repository_id} was not found in Piped config")
        mirror = self.mirrors.of(wanted.repository_id)
        if mirror.repository.branch != wanted.base_branch:
            raise UserMistake(
                f"base branch of repository {wanted.repository_id} was not matched, requested "
                f"{wanted.base_branch}, expected {mirror.repository.branch}"
            )
        return mirror

    async def _base(self, wanted: Command.BuildPlanPreview) -> Commit:
        """The head of the base branch; who asks for a preview means what is pushed by now."""
        head = await self.heads.poll(wanted.repository_id)
        if head.error is not None:
            raise head.error
        if head.commit is None:
            raise NotFound(f"branch {wanted.base_branch} has no commit")
        return head.commit

    async def _merge(
        self, mirror: Mirror, base: Commit, wanted: Command.BuildPlanPreview
    ) -> Commit:
        message = (
            f"Plan-preview: merged {wanted.head_commit} commit from {wanted.head_branch} branch "
            f"into {wanted.base_branch} base branch"
        )
        head = await resolve_commit(mirror.clone, wanted.head_commit, wanted.head_branch)
        try:
            return await mirror.objects.commit(
                await merge_commits(mirror.clone, base.hash, head, message)
            )
        except MergeConflict as e:
            raise UserMistake(
                f"detected conflicts between commit {wanted.head_commit} at {wanted.head_branch} "
                f"branch and the base branch {wanted.base_branch} ({', '.join(e.files)})",
                hint=f"merge {wanted.base_branch} into {wanted.head_branch} and settle them there",
            ) from e

    async def _touched(
        self, mirror: Mirror, base: Commit, change: Change, applications: tuple[Application, ...]
    ) -> list[tuple[Application, ApplicationConfig | str]]:
        """The applications that the merge would deploy, and those of which that is not known."""
        merged = change.merged.hash
        paths = {each.id: config_path(each.git_path) for each in applications}
        configs = await self.configs.at(mirror.objects, merged, paths.values())
        judge = _Judge(
            Judgement(self.baselines, mirror, merged),
            await mirror.objects.changed_files(base.hash, merged),
            configs,
        )
        found = [(each, await judge.verdict(each, paths[each.id])) for each in applications]
        return [(application, read) for application, read in found if read is not None]

    async def _preview(
        self, application: Application, read: ApplicationConfig | str, change: Change, into: Path
    ) -> ApplicationPlanPreviewResult:
        if isinstance(read, str):
            result = described(application, change.wanted, now=to_unix(self.now()))
            result.error = (
                f"failed while determining the application should be triggered or not, {read}"
            )
            return result
        async with self.turns:
            return await self.previews.of(application, read.spec, change, into)


@dataclass(frozen=True)
class _Judge:
    """Judges a merge: `changed` are the paths that differ between it and its base."""

    judgement: Judgement
    changed: tuple[str, ...]
    configs: Mapping[str, Read]

    async def verdict(self, application: Application, path: str) -> ApplicationConfig | str | None:
        """The configuration of one to deploy, what keeps that from being known, or nothing."""
        read = self.configs[path]
        mistake = mistake_in(application, read)
        if mistake or isinstance(read, PipecdError):
            return mistake if self._concerns(application) else None
        if unclear := reason.pattern_mistake(read.spec.trigger.on_commit):
            return unclear if self._concerns(application) else None
        try:
            decision = await self.judgement.on_commit(application, read.spec)
        except PipecdError as e:
            return str(e)
        return read if decision.deploy else None

    def _concerns(self, application: Application) -> bool:
        """Whether the change touches the application: what was broken before is not its fault."""
        prefix = reason.directory_prefix(application.git_path.path)
        return any(path.startswith(prefix) for path in self.changed)
