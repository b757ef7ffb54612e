# SPDX-License-Identifier: Apache-2.0
"""Runs one stage: skips it or calls its plugin, stops it on request, and reports its result."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from pipecd.config.application import ApplicationSpec, StageSpec
from pipecd.config.units import Duration
from pipecd.model.clock import to_unix
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import (
    PLUGIN_STAGE_STATUSES,
    DeploymentStatus,
    StageStatus,
    SyncStrategy,
    running_since,
)
from pipecd.model.errors import PipecdError
from pipecd.piped.deploy.context import DeploymentContext
from pipecd.piped.deploy.journal import Journal, StageEntry
from pipecd.piped.deploy.reports import DeploymentReports, error_text
from pipecd.piped.deploy.stop import until_stopped
from pipecd.piped.plan.rollback import (
    SUCCEEDED,
    DeploymentOutcome,
    StageOutcome,
    Stop,
    StopReason,
    outcome_after,
    stopped_stage,
)
from pipecd.piped.plan.stage_commands import failure_reason
from pipecd.piped.plan.stages import chosen_targets, skip_reason
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.pluginhost.plugin import Plugin, PluginDied, PluginNotStarted
from pipecd.piped.retry import retry_while_unavailable
from pipecd.piped.source.sources import Source
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.sdk.log import StageLog

log = structlog.get_logger()

# How often a stage is run if its plugin dies each time.
_ATTEMPTS = 3
# The safety net for a missed change of the plugins, in seconds.
_PLUGIN_CHECK_INTERVAL = 60.0


@dataclass(frozen=True, kw_only=True)
class StageExecutor:
    """Runs one stage of one deployment."""

    context: DeploymentContext
    reports: DeploymentReports
    journal: Journal
    deployment: Deployment
    sources: DeploymentSources
    spec: ApplicationSpec
    stage: PipelineStage
    is_last: bool = False
    """Whether the deployment succeeds with this stage."""
    run_in_background: Callable[[Coroutine[Any, Any, None]], None]
    """Takes work that the deployment does not wait for before its next stage."""

    @property
    def stage_config(self) -> StageSpec | None:
        """The entry of the pipeline that the stage was planned from; a quick sync has none.

        A first-generation piped does not store its strategy, but marks what is not in the pipeline.
        """
        if (
            self.stage.predefined
            or SyncStrategy(self.deployment.trigger.sync_strategy) is SyncStrategy.QUICK_SYNC
        ):
            return None
        stages = self.spec.pipeline.stages
        return stages[self.stage.index] if self.stage.index < len(stages) else None

    async def execute(self, stop: asyncio.Future[Stop], *, time_left: float) -> StageOutcome:
        """Runs a stage of the pipeline or of a quick sync.

        Its timeout continues after a restart. `time_left` is what the deployment's timeout leaves.
        """
        config, started_at = self.stage_config, running_since(self.stage)
        # A clock that was set back must not extend the timeout.
        elapsed = max(0, to_unix(self.context.now()) - started_at) if started_at else 0
        timeout = (
            elapsed + time_left if config is None else min(elapsed + time_left, config.timeout)
        )
        return await self._run(stop, timeout=timeout, elapsed=elapsed)

    async def execute_rollback(self, *, requires: Sequence[str]) -> StageOutcome:
        """Runs a rollback stage, which cannot be stopped and has no timeout."""
        never: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        return await self._run(never, timeout=None, requires=requires)

    async def abandon(self, ended: StageOutcome) -> None:
        """Completes a stage that an earlier process left running, without running it again."""
        await self._close_log(ended.message)
        await self._complete(ended)

    async def _run(
        self,
        stop: asyncio.Future[Stop],
        *,
        timeout: float | None,  # noqa: ASYNC109 - the configured one, of which `elapsed` is used up
        elapsed: float = 0,
        requires: Sequence[str] = (),
    ) -> StageOutcome:
        await self.context.drain.safe_point()
        with (
            bound_contextvars(stage=self.stage.name),
            self.context.telemetry.traces.stage(self.deployment, self.stage),
        ):
            task = asyncio.create_task(self._execute(requires), name=f"stage {self.stage.name}")
            time_limit = None if timeout is None else max(0.0, timeout - elapsed)
            try:
                ended = await until_stopped(task, stop, time_limit=time_limit)
            except asyncio.CancelledError:
                # Piped shuts down; a stage that has ended by itself must not run again.
                if (result := _result_of(task)) is not None:
                    await self._record(result)
                raise
            if isinstance(ended, Stop):
                # A program of the stage may still write to its working copies.
                await self.sources.discard()
                ended = _result_of(task) or await self._stopped(ended, timeout)
            return await self._complete(ended)

    async def _complete(self, ended: StageOutcome) -> StageOutcome:
        entry = await self._record(ended)
        await self.reports.stage_completed(self.stage, entry)
        for command in self.context.commands.for_stage(self.deployment.id, self.stage.id):
            if reason := failure_reason(command, self.stage, ended.status):
                await self.context.commands.reject(command, reason)
            else:
                await self.context.commands.report(command, CommandStatus.SUCCEEDED)
        log.info("stage completed", stage=self.stage.name, status=ended.status.name)
        return ended

    async def _record(self, ended: StageOutcome) -> StageEntry:
        """Writes the result to the journal, after which the stage never runs again."""
        callbacks, id, stage_id = self.context.callbacks, self.deployment.id, self.stage.id
        before = self.journal.stages.get(stage_id)
        checkpoints = (*(before.log if before else ()), *callbacks.take_unsent(id, stage_id))
        for checkpoint in checkpoints[:-1]:
            # Only the last part of a log closes it.
            checkpoint.completed = False
        entry = StageEntry(ended.status, ended.message, checkpoints)
        # With the last stage the deployment has succeeded, which is on disk at the same time.
        is_end = self.is_last and outcome_after(self.stage, ended) is None
        outcome = DeploymentOutcome(DeploymentStatus.SUCCESS, SUCCEEDED) if is_end else None
        await self.journal.record_stage(stage_id, entry, outcome)
        callbacks.forget_spooled(id, stage_id)
        return entry

    async def _execute(self, requires: Sequence[str]) -> StageOutcome:
        """Does everything that may take time or fail; an error is written to the stage log."""
        try:
            config, reason = self.stage_config, None
            if not self.stage.rollback and config is not None:
                changed, commit = None, self.deployment.trigger.commit
                if (before := self.deployment.running_commit_hash) and config.skip_on.paths:
                    changed = await self.context.sources.changed_files(
                        self.deployment.git_path, before, commit.hash
                    )
                reason = skip_reason(
                    config.skip_on, commit_message=commit.message, changed_files=changed
                )
            if reason is not None:
                message = f"Skipped because {reason}"
                await self._close_log(message, failed=False)
                return StageOutcome(StageStatus.SKIPPED, message)
            if StageStatus(self.stage.status) is StageStatus.RUNNING:
                await self._log_line("Piped was restarted and resumes this stage")
            await self.reports.stage(self.stage, StageStatus.RUNNING, requires=requires)
            log.info("stage started", stage=self.stage.name)
            return await self._call_plugin()
        except (PipecdError, OSError) as e:
            await self.sources.discard()
            await self._close_log(error_text(e))
            return StageOutcome(StageStatus.FAILURE, self._masked(error_text(e)))

    async def _call_plugin(self) -> StageOutcome:
        """Runs the stage, again if its plugin dies: as after a restart, with new sources."""
        plugin, died = await self._started_plugin(), 0
        while True:
            request = pb.ExecuteStageRequest(input=await self._input())
            try:
                response = await plugin.ExecuteStage(request)
            except PluginDied as e:
                await self.sources.discard()
                died += 1
                if died >= _ATTEMPTS:
                    raise PipecdError(f"{e}; given up after {died} attempts") from e
                await self._log_line(f"{e}; the stage is run again as soon as the plugin is back")
                continue
            if response.status not in PLUGIN_STAGE_STATUSES:
                error = f"plugin {plugin.name} returned invalid stage status {response.status}"
                return StageOutcome(StageStatus.FAILURE, error)
            return StageOutcome(StageStatus(response.status), self._masked(response.message))

    async def _started_plugin(self) -> Plugin:
        """Waits until the plugin runs: a stage that was planned is not given up without it."""
        changes, reason = self.context.plugins.changes.watch(), ""
        while True:
            try:
                return self._plugin()
            except PluginNotStarted as e:
                if reason != str(e):
                    reason = str(e)
                    await self._log_line(f"{e}; the stage begins as soon as it runs")
            await changes.wait(_PLUGIN_CHECK_INTERVAL)

    def _plugin(self) -> Plugin:
        targets = chosen_targets(self.deployment)
        return self.context.plugins.for_stage(self.stage.name, self.spec, targets=targets)

    async def _input(self) -> pb.ExecutePluginInput:
        own, config = self.deployment, self.stage_config
        target = await self._source(own.trigger.commit.hash, "target")
        running = None
        if own.running_commit_hash:
            running = await self._source(
                own.running_commit_hash, "running", config_filename=own.running_config_filename
            )
        return pb.ExecutePluginInput(
            deployment=own,
            stage=self.stage,
            stage_config=b"" if config is None else json.dumps(config.with_).encode(),
            target_deployment_source=target.to_proto(),
            running_deployment_source=None if running is None else running.to_proto(),
        )

    async def _source(self, commit: str, name: str, *, config_filename: str = "") -> Source:
        """Returns a working copy; retries while the Git repository is unavailable."""
        own = self.deployment
        into = self.context.sources_directory(own.id) / self.stage.id
        return await retry_while_unavailable(
            lambda: self.sources.at(
                own.git_path, commit, config_filename=config_filename, into=into, name=name
            ),
            repository=own.git_path.repo.id,
        )

    def _masked(self, text: str) -> str:
        return self.context.callbacks.masks.hide(self.deployment.id, text)

    async def _stopped(self, stop: Stop, timeout: float | None) -> StageOutcome:  # noqa: ASYNC109
        """Records the outcome of a stopped stage, then adds the last line to its log."""
        ended = stopped_stage(stop)
        await self._record(ended)
        last_line = ended.message
        if stop.reason is StopReason.TIMED_OUT:
            last_line = f"Timed out after {Duration(round(timeout or 0, 1))}"
        try:
            delay = self._plugin().log_lag
        except PipecdError:
            delay = 0.0
        if delay:
            self.run_in_background(self._close_log_after(delay, last_line))
        else:
            await self._close_log(last_line)
        return ended

    async def _close_log_after(self, seconds: float, text: str) -> None:
        await asyncio.sleep(seconds)
        await self._close_log(text)
        await self.reports.log_completed(
            self.context.callbacks.take_unsent(self.deployment.id, self.stage.id)
        )

    async def _log_line(self, text: str) -> None:
        """Adds a line to the stage log, which stays open."""
        stage_log = StageLog(self.context.callbacks, self.deployment.id, self.stage.id)
        async with stage_log.kept(closes=False) as lines:
            lines.info(text)

    async def _close_log(self, text: str, *, failed: bool = True) -> None:
        """Adds the last line to the log of a stage whose plugin did not close it."""
        stage_log = StageLog(self.context.callbacks, self.deployment.id, self.stage.id)
        async with stage_log.kept() as lines:
            (lines.error if failed else lines.info)(text)


def _result_of(task: asyncio.Task[StageOutcome]) -> StageOutcome | None:
    """Returns the result of a task that ended before it could be stopped."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()
