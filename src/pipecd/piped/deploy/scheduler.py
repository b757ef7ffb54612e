# SPDX-License-Identifier: Apache-2.0
"""Carries out a planned deployment: its stages in order and, if need be, its rollback.

Each step can be interrupted at any instruction; the next start finds in the control plane and in
the journal how far it got and goes on from there. Called by the deployer, one at a time per
application.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import structlog

from pipecd.config.application.spec import ApplicationSpec
from pipecd.model.clock import to_unix
from pipecd.model.deployment import DeploymentStatus, StageStatus, began_at
from pipecd.model.errors import PipecdError
from pipecd.piped.deploy.desk import Desk
from pipecd.piped.deploy.journal import Journal
from pipecd.piped.deploy.outcome import (
    SUCCEEDED,
    Outcome,
    StageEnding,
    ending_of,
    next_stage,
    outcome_after,
    outcome_between,
    remembered,
    resumed_rollback,
    without_rollback,
)
from pipecd.piped.deploy.stage import StageRun
from pipecd.piped.deploy.stop import TIME_IS_UP, Stop, until_stopped
from pipecd.piped.planning.gather import set_targets
from pipecd.piped.retry import retry_while_unavailable
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

log = structlog.get_logger()


class Scheduler:
    """One planned, running or rolling-back deployment on its way to its end."""

    def __init__(
        self, desk: Desk, deployment: Deployment, journal: Journal, stop: asyncio.Future[Stop]
    ) -> None:
        self._desk, self._deployment, self._journal, self._stop = desk, deployment, journal, stop
        self._reports = desk.reports(deployment)
        self._loose_ends: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Returns when the deployment is completed and the control plane knows it."""
        try:
            await self._run()
            await asyncio.gather(*self._loose_ends)
        finally:
            for task in self._loose_ends:
                task.cancel()

    async def _run(self) -> None:
        for stage, entry in self._journal.untold(self._deployment):
            await self._reports.stage_over(stage, entry)
        for stage in self._deployment.stages:
            if StageStatus(stage.status) is StageStatus.RUNNING:
                await self._desk.callbacks.send_spooled(self._deployment.id, stage.id)
        outcome = self._journal.outcome or await self._decide()
        if outcome.rolls_back and self._rollback_stages():
            await self._roll_back(outcome)
        await self._reports.completed(outcome.status, outcome.reason, by=outcome.by)

    async def _decide(self) -> Outcome:
        """Runs the stages, unless a rollback had begun, and writes down what it comes to."""
        if DeploymentStatus(self._deployment.status) is DeploymentStatus.ROLLING_BACK:
            outcome = resumed_rollback(self._deployment)
        else:
            await self._reports.started()
            outcome = await self._forward()
        if self._stop.done() and not self._rollback_stages():
            outcome = without_rollback(outcome, self._stop.result())
        await self._journal.decided(outcome)
        return outcome

    async def _forward(self) -> Outcome:
        """Runs the stages that are left, until one of them or somebody ends the deployment."""
        try:
            asking = asyncio.create_task(
                retry_while_unavailable(self._spec, what="repository"), name="source"
            )
            spec = await until_stopped(asking, self._stop)
        except PipecdError as e:
            reason = f"Failed to get deploy source at target commit ({e})"
            return await self._end_between(StageEnding(StageStatus.FAILURE, reason))
        if isinstance(spec, Stop):
            return await self._end_between(ending_of(spec))
        deadline = asyncio.get_running_loop().time() + spec.timeout - self._passed()
        for stage in self._forward_stages():
            if StageStatus(stage.status).is_completed:
                outcome = outcome_after(stage, remembered(stage))
            elif (stopped := self._stopped(deadline)) is not None:
                return await self._end_between(ending_of(stopped))
            else:
                left = deadline - asyncio.get_running_loop().time()
                ending = await self._run_of(stage, spec).forward(self._stop, at_most=left)
                outcome = outcome_after(stage, ending)
            if outcome is not None:
                return outcome
        return Outcome(DeploymentStatus.SUCCESS, SUCCEEDED)

    def _passed(self) -> int:
        """For how many seconds the stages have been under way, in earlier lives of piped too."""
        now = to_unix(self._desk.now())
        if not self._journal.began:
            begun = [began for stage in self._forward_stages() if (began := began_at(stage))]
            self._journal.began = min(begun, default=now)
        # A clock that was set back takes nothing away.
        return max(0, now - self._journal.began)

    async def _end_between(self, ending: StageEnding) -> Outcome:
        """Ends the deployment while no stage runs, though one may have been interrupted before."""
        following, last = next_stage(self._deployment)
        if following is not None and StageStatus(following.status) is StageStatus.RUNNING:
            await self._run_of(following, ApplicationSpec()).give_up(ending)
            return outcome_after(following, ending) or Outcome(DeploymentStatus.SUCCESS, SUCCEEDED)
        return outcome_between(following, last, ending)

    async def _roll_back(self, outcome: Outcome) -> None:
        """Runs every stage of the rollback, whatever becomes of each."""
        await self._reports.rolling_back(outcome.reason)
        remaining = [s for s in self._rollback_stages() if not StageStatus(s.status).is_completed]
        try:
            spec = await retry_while_unavailable(self._spec, what="repository")
        except PipecdError as e:
            for stage in remaining:
                await self._reports.stage(stage, StageStatus.FAILURE, str(e))
            return
        requires = [outcome.last_stage] if outcome.last_stage else []
        for stage in remaining:
            await self._run_of(stage, spec).undo(requires=requires)

    def _stopped(self, deadline: float) -> Stop | None:
        if self._stop.done():
            return self._stop.result()
        return TIME_IS_UP if asyncio.get_running_loop().time() >= deadline else None

    def _run_of(self, stage: PipelineStage, spec: ApplicationSpec) -> StageRun:
        return StageRun(
            desk=self._desk,
            reports=self._reports,
            journal=self._journal,
            deployment=self._deployment,
            spec=spec,
            stage=stage,
            later=self._later,
        )

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        self._loose_ends.add(asyncio.create_task(work))

    async def _spec(self) -> ApplicationSpec:
        own = self._deployment
        spec = (await self._desk.sources.config(own.git_path, own.trigger.commit.hash)).spec
        set_targets(own, spec, self._desk.targets)
        return spec

    def _forward_stages(self) -> Iterator[PipelineStage]:
        return (stage for stage in self._deployment.stages if not stage.rollback)

    def _rollback_stages(self) -> list[PipelineStage]:
        return [stage for stage in self._deployment.stages if stage.rollback]
