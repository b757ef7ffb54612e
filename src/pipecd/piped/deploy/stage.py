# SPDX-License-Identifier: Apache-2.0
"""Runs one stage: skip it or call its plugin, stop it when told to, and say how it ended."""

import asyncio
import json
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from pipecd.config.application.pipeline import StageSpec
from pipecd.config.application.spec import ApplicationSpec
from pipecd.config.duration import Duration
from pipecd.model.clock import to_unix
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import STAGE_ANSWERS, StageStatus, SyncStrategy, began_at
from pipecd.model.errors import PipecdError
from pipecd.piped.deploy.desk import Desk
from pipecd.piped.deploy.journal import Journal, StageEntry
from pipecd.piped.deploy.outcome import StageEnding, ending_of
from pipecd.piped.deploy.reports import Reports, words
from pipecd.piped.deploy.stop import Stop, StopReason, until_stopped
from pipecd.piped.plan.skip import skip_reason
from pipecd.piped.pluginhost.plugin import Plugin, PluginDied
from pipecd.piped.retry import retry_while_unavailable
from pipecd.piped.source.sources import Source
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from pipecd.proto.plugin import deployment_pb2 as pb
from pipecd.proto.service.piped_pb2 import (
    ReportStageLogsFromLastCheckpointRequest as Checkpoint,
)
from pipecd.sdk.log import StageLog

log = structlog.get_logger()

# How often a stage is run when its plugin dies each time.
_RUNS = 3


@dataclass(frozen=True)
class _Limit:
    """How many seconds a stage may take, and how many of them are left."""

    whole: float
    left: float


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One stage of one deployment."""

    desk: Desk
    reports: Reports
    journal: Journal
    deployment: Deployment
    spec: ApplicationSpec
    stage: PipelineStage
    later: Callable[[Coroutine[Any, Any, None]], None]
    """Takes what need not be waited for before the deployment goes on."""

    @property
    def configured(self) -> StageSpec | None:
        """The entry of the pipeline that the stage was planned from; a quick sync has none."""
        if SyncStrategy(self.deployment.trigger.sync_strategy) is SyncStrategy.QUICK_SYNC:
            return None
        stages = self.spec.pipeline.stages
        return stages[self.stage.index] if self.stage.index < len(stages) else None

    async def forward(self, stop: asyncio.Future[Stop], *, at_most: float) -> StageEnding:
        """Runs a stage of the pipeline or of a quick sync; its time goes on after a restart."""
        entry, passed = self.configured, self._passed()
        whole = passed + at_most if entry is None else min(passed + at_most, entry.timeout)
        with self._traced():
            return await self._run(stop, limit=_Limit(whole, max(0.0, whole - passed)), requires=())

    async def undo(self, *, requires: Sequence[str]) -> StageEnding:
        """Runs a stage of the rollback, which nothing stops."""
        never: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
        with self._traced():
            return await self._run(never, limit=None, requires=requires)

    def _passed(self) -> int:
        """For how many seconds the stage has been under way, in earlier lives of piped too."""
        began = began_at(self.stage)
        # A clock that was set back takes nothing away.
        return max(0, to_unix(self.desk.now()) - began) if began else 0

    def _traced(self) -> AbstractContextManager[None]:
        return self.desk.telemetry.traces.stage(self.deployment, self.stage)

    async def _run(
        self, stop: asyncio.Future[Stop], *, limit: _Limit | None, requires: Sequence[str]
    ) -> StageEnding:
        work = asyncio.create_task(self._work(requires), name=f"stage {self.stage.name}")
        try:
            ended = await until_stopped(work, stop, at_most=limit and limit.left)
        except asyncio.CancelledError:
            await self._keep_late_ending(work)
            raise
        if isinstance(ended, Stop):
            ended = _late_ending(work) or await self._stopped(ended, limit)
        return await self._ended(ended)

    async def give_up(self, ending: StageEnding) -> None:
        """Ends a stage that an earlier life of piped left behind, without running it again."""
        await self._close_log(ending.message)
        await self._ended(ending)

    async def _ended(self, ended: StageEnding) -> StageEnding:
        entry = await self._remember(ended)
        # The working copies are of no use to anyone else, and may hold secrets.
        await asyncio.to_thread(shutil.rmtree, self._place, ignore_errors=True)
        await self.reports.stage_over(self.stage, entry)
        await self._settle_commands()
        log.info("stage ended", stage=self.stage.name, status=ended.status.name)
        return ended

    async def _remember(self, ended: StageEnding) -> StageEntry:
        """From here on the stage does not run again; only then may its log be closed."""
        log_end = self.desk.callbacks.take_end(self.deployment.id, self.stage.id)
        before = self.journal.stages.get(self.stage.id)
        kept = () if before is None else before.log
        entry = StageEntry(ended.status, ended.message, _one_log(*kept, *log_end))
        await self.journal.stage_ended(self.stage.id, entry)
        self.desk.callbacks.forget_spooled(self.deployment.id, self.stage.id)
        return entry

    async def _work(self, requires: Sequence[str]) -> StageEnding:
        """Everything that may take time or fail; a failure ends in the log of the stage."""
        try:
            if (reason := await self._skip_reason()) is not None:
                told = f"Skipped because {reason}"
                await self._close_log(told, failed=False)
                return StageEnding(StageStatus.SKIPPED, told)
            if StageStatus(self.stage.status) is StageStatus.RUNNING:
                await self._say("Piped was started again and takes up this stage")
            await self.reports.stage(self.stage, StageStatus.RUNNING, requires=requires)
            log.info("stage started", stage=self.stage.name)
            return await self._execute()
        except (PipecdError, OSError) as e:
            await self._close_log(words(e))
            return StageEnding(StageStatus.FAILURE, self._masked(words(e)))

    async def _skip_reason(self) -> str | None:
        entry = self.configured
        if self.stage.rollback or entry is None:
            return None
        changed = None
        before, commit = self.deployment.running_commit_hash, self.deployment.trigger.commit
        if before and entry.skip_on.paths:
            changed = await self.desk.sources.changed_files(
                self.deployment.git_path, before, commit.hash
            )
        return skip_reason(entry.skip_on, commit_message=commit.message, changed_files=changed)

    async def _execute(self) -> StageEnding:
        """Runs the stage, again if its plugin died: as after a restart, with fresh sources."""
        plugin, died = self._plugin(), 0
        while True:
            request = pb.ExecuteStageRequest(input=await self._input())
            try:
                return self._judged(plugin, await plugin.ExecuteStage(request))
            except PluginDied as e:
                died += 1
                if died >= _RUNS:
                    raise PipecdError(f"{e}; given up after {died} runs of the stage") from e
                await self._say(f"{e}; the stage is run again as soon as the plugin is back")

    def _judged(self, plugin: Plugin, answer: pb.ExecuteStageResponse) -> StageEnding:
        if answer.status not in STAGE_ANSWERS:
            told = f"plugin {plugin.name} answered status {answer.status}, which is not an ending"
            return StageEnding(StageStatus.FAILURE, told)
        return StageEnding(StageStatus(answer.status), self._masked(answer.message))

    def _plugin(self) -> Plugin:
        targets = self.deployment.deploy_targets_by_plugin.keys()
        return self.desk.plugins.for_stage(self.stage.name, self.spec, targets=targets)

    async def _input(self) -> pb.ExecutePluginInput:
        own = self.deployment
        target = await self._source(own.trigger.commit.hash, "target")
        running = None
        if own.running_commit_hash:
            running = await self._source(
                own.running_commit_hash, "running", config_filename=own.running_config_filename
            )
        entry = self.configured
        return pb.ExecutePluginInput(
            deployment=own,
            stage=self.stage,
            stage_config=b"" if entry is None else json.dumps(entry.with_).encode(),
            target_deployment_source=target.to_proto(),
            running_deployment_source=None if running is None else running.to_proto(),
        )

    async def _source(self, commit: str, name: str, *, config_filename: str = "") -> Source:
        """A working copy; a repository that is away is waited for."""
        own, sources = self.deployment, self.desk.masked_sources(self.deployment.id)
        return await retry_while_unavailable(
            lambda: sources.at(
                own.git_path, commit, config_filename=config_filename, into=self._place / name
            ),
            what="repository",
        )

    @property
    def _place(self) -> Path:
        return self.desk.sources_of(self.deployment.id) / self.stage.id

    def _masked(self, text: str) -> str:
        return self.desk.callbacks.masks.hide(self.deployment.id, text)

    async def _keep_late_ending(self, work: asyncio.Task[StageEnding]) -> None:
        """Piped ends, and the stage ended before it could be stopped: it must not run again."""
        if (ended := _late_ending(work)) is not None:
            await self._remember(ended)

    async def _settle_commands(self) -> None:
        """What people told the stage has been heard."""
        for command in self.desk.commands.for_stage(self.deployment.id, self.stage.id):
            await self.desk.commands.report(command, CommandStatus.SUCCEEDED)

    async def _stopped(self, stop: Stop, limit: _Limit | None) -> StageEnding:
        """The ending of a stage that was stopped, with the last line of its log."""
        ending = ending_of(stop)
        await self._remember(ending)
        timed_out = stop.reason is StopReason.TIMED_OUT
        whole = Duration(round(limit.whole, 1)) if limit else Duration(0)
        last_words = f"Timed out after {whole}" if timed_out else ending.message
        if lag := self._log_lag():
            self.later(self._close_log_after(lag, last_words))
        else:
            await self._close_log(last_words)
        return ending

    def _log_lag(self) -> float:
        try:
            return self._plugin().log_lag
        except PipecdError:
            return 0.0

    async def _close_log_after(self, seconds: float, text: str) -> None:
        await asyncio.sleep(seconds)
        await self._close_log(text)
        await self.reports.log_ended(
            self.desk.callbacks.take_end(self.deployment.id, self.stage.id)
        )

    async def _say(self, text: str) -> None:
        """Adds a line for people while the stage goes on."""
        stage_log = StageLog(self.desk.callbacks, self.deployment.id, self.stage.id)
        async with stage_log.kept(closes=False) as lines:
            lines.info(text)

    async def _close_log(self, text: str, *, failed: bool = True) -> None:
        """Adds the last line for a stage that could not do so itself."""
        stage_log = StageLog(self.desk.callbacks, self.deployment.id, self.stage.id)
        async with stage_log.kept() as lines:
            (lines.error if failed else lines.info)(text)


def _one_log(*parts: Checkpoint) -> tuple[Checkpoint, ...]:
    """Only the last part of a log closes it."""
    for part in parts[:-1]:
        part.completed = False
    return parts


def _late_ending(work: asyncio.Task[StageEnding]) -> StageEnding | None:
    """How a stage ended that was over before it could be stopped."""
    if not work.done() or work.cancelled() or work.exception() is not None:
        return None
    return work.result()
