# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of a planned deployment in order and, if necessary, its rollback.

It may be interrupted at any instruction. After a restart it resumes from the stage statuses in the
control plane and from the journal.
"""

import asyncio

import structlog

from pipecd.config.application import ApplicationSpec
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus, StageStatus, running_since
from pipecd.model.errors import PipecdError
from pipecd.piped.deploy.context import DeploymentContext
from pipecd.piped.deploy.journal import Journal
from pipecd.piped.deploy.stage import StageExecutor
from pipecd.piped.deploy.stop import until_stopped
from pipecd.piped.plan.rollback import (
    SUCCEEDED,
    TIMED_OUT,
    DeploymentOutcome,
    StageOutcome,
    Stop,
    next_stage,
    outcome_after,
    outcome_between,
    recorded_outcome,
    resumed_rollback,
    stopped_stage,
    without_rollback,
)
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.planning.planner import set_targets
from pipecd.piped.retry import retry_while_unavailable
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

log = structlog.get_logger()


class Scheduler:
    """Runs one planned, running or rolling-back deployment to its end."""

    def __init__(
        self,
        context: DeploymentContext,
        deployment: Deployment,
        sources: DeploymentSources,
        journal: Journal,
        stop: asyncio.Future[Stop],
    ) -> None:
        self._context, self._deployment, self._sources = context, deployment, sources
        self._journal, self._stop = journal, stop
        self._reports = context.reports(deployment)
        self._forward = [stage for stage in deployment.stages if not stage.rollback]
        self._rollback = [stage for stage in deployment.stages if stage.rollback]
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Returns when the deployment is completed and that is reported."""
        try:
            for stage, entry in self._journal.unreported(self._deployment):
                await self._reports.stage_completed(stage, entry)
            for stage in self._deployment.stages:
                if StageStatus(stage.status) is StageStatus.RUNNING:
                    await self._context.callbacks.send_spooled(self._deployment.id, stage.id)
            if (outcome := self._journal.outcome) is None:
                if DeploymentStatus(self._deployment.status) is DeploymentStatus.ROLLING_BACK:
                    outcome = resumed_rollback(self._deployment)
                else:
                    await self._reports.started()
                    outcome = await self._run_forward()
                if self._stop.done() and not self._rollback:
                    outcome = without_rollback(outcome, self._stop.result())
                await self._journal.record_outcome(outcome)
            if outcome.rolls_back and self._rollback:
                await self._roll_back(outcome)
            # The control plane may be unavailable for long, and working copies may hold secrets.
            await self._sources.discard()
            await self._reports.completed(outcome.status, outcome.reason, by=outcome.by)
            await asyncio.gather(*self._background)
        finally:
            for task in self._background:
                task.cancel()

    async def _run_forward(self) -> DeploymentOutcome:
        """Runs the remaining stages until one of them or a stop ends the deployment."""
        try:
            spec = await until_stopped(asyncio.create_task(self._load_spec()), self._stop)
        except PipecdError as e:
            reason = f"Failed to get deploy source at target commit ({e})"
            return await self._end_between_stages(StageOutcome(StageStatus.FAILURE, reason))
        if isinstance(spec, Stop):
            return await self._end_between_stages(stopped_stage(spec))
        now = to_unix(self._context.now())
        if not self._journal.started_at:
            started = [at for stage in self._forward if (at := running_since(stage))]
            self._journal.started_at = min(started, default=now)
        # The timeout continues after a restart; a clock that was set back must not extend it.
        elapsed = max(0, now - self._journal.started_at)
        clock = asyncio.get_running_loop().time
        deadline = clock() + spec.timeout - elapsed
        for stage in self._forward:
            if StageStatus(stage.status).is_completed:
                outcome = outcome_after(stage, recorded_outcome(stage))
            elif self._stop.done():
                return await self._end_between_stages(stopped_stage(self._stop.result()))
            elif clock() >= deadline:
                return await self._end_between_stages(stopped_stage(TIMED_OUT))
            else:
                executor = self._executor(stage, spec)
                ended = await executor.execute(self._stop, time_left=deadline - clock())
                outcome = outcome_after(stage, ended)
            if outcome is not None:
                return outcome
        return DeploymentOutcome(DeploymentStatus.SUCCESS, SUCCEEDED)

    async def _end_between_stages(self, ended: StageOutcome) -> DeploymentOutcome:
        """Ends the deployment while no stage runs; a restart may have interrupted one, though."""
        following, last = next_stage(self._deployment)
        if following is not None and StageStatus(following.status) is StageStatus.RUNNING:
            await self._executor(following, ApplicationSpec()).abandon(ended)
            return outcome_after(following, ended) or DeploymentOutcome(
                DeploymentStatus.SUCCESS, SUCCEEDED
            )
        return outcome_between(following, last, ended)

    async def _roll_back(self, outcome: DeploymentOutcome) -> None:
        """Runs every rollback stage, also after one of them failed."""
        await self._reports.rolling_back(outcome.reason)
        remaining = [s for s in self._rollback if not StageStatus(s.status).is_completed]
        try:
            spec = await self._load_spec()
        except PipecdError as e:
            for stage in remaining:
                await self._reports.stage(stage, StageStatus.FAILURE, str(e))
            return
        requires = [outcome.last_stage] if outcome.last_stage else []
        for stage in remaining:
            await self._executor(stage, spec).execute_rollback(requires=requires)

    def _executor(self, stage: PipelineStage, spec: ApplicationSpec) -> StageExecutor:
        return StageExecutor(
            context=self._context,
            reports=self._reports,
            journal=self._journal,
            deployment=self._deployment,
            sources=self._sources,
            spec=spec,
            stage=stage,
            is_last=bool(self._forward) and stage.id == self._forward[-1].id,
            run_in_background=lambda work: self._background.add(asyncio.create_task(work)),
        )

    async def _load_spec(self) -> ApplicationSpec:
        """Reads the configuration at the target commit and sets the deploy targets."""
        own = self._deployment
        config = await retry_while_unavailable(
            lambda: self._context.sources.config(own.git_path, own.trigger.commit.hash),
            repository=own.git_path.repo.id,
        )
        set_targets(own, config.spec, self._context.targets)
        return config.spec
