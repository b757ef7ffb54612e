# SPDX-License-Identifier: Apache-2.0
"""Runs one deployment: plans it if it is pending, then runs its stages.

The deployer calls `run_deployment` for one deployment of each application at a time.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Self

import structlog
from structlog.contextvars import bound_contextvars

from pipecd.config.units import Duration
from pipecd.model.backoff import Backoff
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus
from pipecd.model.errors import Denied, NotFound, PipecdError, Unavailable, UserMistake
from pipecd.piped.deploy.context import DeploymentContext
from pipecd.piped.deploy.journal import Journal
from pipecd.piped.deploy.reports import error_text
from pipecd.piped.deploy.scheduler import Scheduler
from pipecd.piped.deploy.stop import until_stopped
from pipecd.piped.plan.rollback import TIMED_OUT, Stop
from pipecd.piped.plan.v0_stages import adopt_v0_stages
from pipecd.piped.planning.deployment_sources import DeploymentSources
from pipecd.piped.planning.planner import Plan, Planner, RunningCommit, last_success
from pipecd.piped.pluginhost.plugin import PluginDied, PluginNotStarted
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2

log = structlog.get_logger()

# Before a deferred deployment is tried again, in seconds.
RETRY = Backoff(first=1.0, longest=10.0)
# Every plugin call and every git command has a shorter timeout of its own.
_PLAN_TIMEOUT = 30 * 60.0
# How often a plan is tried if a plugin dies each time.
_PLAN_ATTEMPTS = 3


@dataclass(frozen=True)
class Deferral:
    """A deployment waits until a time of the event loop, or until its chain may have moved on."""

    until: float
    is_for_chain: bool = False

    @classmethod
    def of(cls, seconds: float, *, is_for_chain: bool = False) -> Self:
        return cls(asyncio.get_running_loop().time() + seconds, is_for_chain)

    def is_active(self, now: float, *, chain_changed: bool) -> bool:
        return now < self.until and not (self.is_for_chain and chain_changed)


async def run_deployment(
    context: DeploymentContext, listed: Deployment, stop: asyncio.Future[Stop], *, failures: int
) -> Deferral | None:
    """Runs a deployment until it is completed; returns a deferral if it has to wait.

    It waits the longer the more often it failed before.
    """
    with bound_contextvars(
        deployment=listed.id,
        application=listed.application_id,
        application_name=listed.application_name,
    ):
        has_files = True
        try:
            deployment = await context.load(listed.id)
            if not DeploymentStatus(deployment.status).is_completed:
                with context.metadata.open(deployment):
                    if not await _plan_and_run(context, deployment, stop):
                        return Deferral.of(RETRY.longest, is_for_chain=True)
            await context.report_cancel_commands(deployment)
            await context.remove_files(listed.id)
            has_files = False
        except (PipecdError, OSError) as e:
            text = f"Deferred, retrying within {Duration(RETRY.longest)}: {error_text(e)}"
            reason, known = context.callbacks.masks.hide(listed.id, text), ""
            try:
                deployment = await context.load(listed.id)
                known = deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, "")
                await context.reports(deployment).waiting(reason)
            except PipecdError as not_reported:
                log.warning("reason of the deferral not reported", error=str(not_reported))
            if known != reason:
                # Once for each cause, however often it is retried.
                log.warning("deployment deferred", error=str(e))
            return Deferral.of(RETRY.after(failures + 1))
        finally:
            if has_files:
                await context.remove_sources(listed.id)
    return None


async def _plan_and_run(
    context: DeploymentContext, deployment: Deployment, stop: asyncio.Future[Stop]
) -> bool:
    """Returns False if the deployment has to wait for the previous block of its chain."""
    reports, sources = context.reports(deployment), context.sources_of(deployment.id)
    journal: Journal | None = None
    if DeploymentStatus(deployment.status) is DeploymentStatus.PENDING:
        if deployment.deployment_chain_id:
            chain = await context.api.in_chain_deployment_plannable(
                piped_pb2.InChainDeploymentPlannableRequest(
                    deployment_id=deployment.id,
                    deployment_chain_id=deployment.deployment_chain_id,
                    deployment_chain_block_index=deployment.deployment_chain_block_index,
                )
            )
            if chain.cancel:
                await reports.completed(DeploymentStatus.CANCELLED, chain.cancel_reason)
                return True
            if not chain.plannable:
                await reports.waiting(
                    "Waiting for the previous block of its deployment chain to end"
                )
                return False
        try:
            await reports.deploying(True)
        except (UserMistake, NotFound, Denied) as e:
            # The application was deleted or moved to another piped while the deployment waited.
            reason = f"The application is no longer deployed by this piped ({e})"
            await reports.deployment_completed(DeploymentStatus.CANCELLED, reason)
            return True
        with context.telemetry.traces.plan(deployment):
            is_planned = await PlanRun(context, deployment, sources, stop).run()
        if not is_planned:
            return True
        # None of its stages has run yet.
        journal = Journal.create(context.journal_file(deployment.id))
    adopt_v0_stages(deployment, context.catalog)
    await reports.waiting()
    journal = journal or await Journal.open(context.journal_file(deployment.id))
    with context.telemetry.traces.deploy(deployment):
        await Scheduler(context, deployment, sources, journal, stop).run()
    return True


class PlanRun:
    """Plans one pending deployment, or completes it with the reason why it cannot be planned."""

    def __init__(
        self,
        context: DeploymentContext,
        deployment: Deployment,
        sources: DeploymentSources,
        stop: asyncio.Future[Stop],
    ) -> None:
        self._context, self._deployment, self._stop = context, deployment, stop
        self._sources = sources
        self._reports = context.reports(deployment)

    async def run(self) -> bool:
        """Returns whether the deployment is planned; if not, it is completed."""
        running = await last_success(self._context.api, self._deployment.application_id)
        task = asyncio.create_task(self._plan(running), name="plan")
        try:
            ended = await until_stopped(task, self._stop, time_limit=_PLAN_TIMEOUT)
        except PluginDied as e:
            return await self._failed(f"{e}; given up after {_PLAN_ATTEMPTS} attempts")
        except Unavailable:
            # The deployment is deferred until what is unavailable is back.
            raise
        except PipecdError as e:
            if isinstance(e, PluginNotStarted) and e.is_temporary:
                raise
            masks = self._context.callbacks.masks
            return await self._failed(masks.hide(self._deployment.id, str(e)))
        if ended == TIMED_OUT:
            return await self._failed(f"timed out after {Duration(_PLAN_TIMEOUT)}")
        if isinstance(ended, Stop):
            reason = f"Deployment was cancelled by {ended.by} while planning"
            await self._reports.completed(DeploymentStatus.CANCELLED, reason, by=ended.by)
            return False
        # Plugins may have copied secrets from the sources into the plan.
        hide = self._context.callbacks.masks.of(self._deployment.id).hide
        for stage in ended.stages:
            stage.desc = hide(stage.desc)
        for version in ended.versions:
            version.version, version.name = hide(version.version), hide(version.name)
            version.url = hide(version.url)
        plan = replace(ended, summary=hide(ended.summary))
        await self._reports.planned(plan, running)
        self._context.changes.planned(self._deployment, running)
        log.info("deployment planned", summary=plan.summary)
        return True

    async def _failed(self, cause: str) -> bool:
        reason = f"Unable to plan the deployment ({cause})"
        await self._reports.completed(DeploymentStatus.FAILURE, reason)
        return False

    async def _plan(self, running: RunningCommit | None) -> Plan:
        context, into = self._context, self._context.sources_directory(self._deployment.id) / "plan"
        planner = Planner(self._sources, context.plugins, targets=context.targets, now=context.now)
        for _ in range(_PLAN_ATTEMPTS - 1):
            try:
                return await planner.plan(self._deployment, running, into)
            except PluginDied as e:
                await self._sources.discard()
                await self._reports.waiting(f"Planned again as soon as the plugin is back: {e}")
        return await planner.plan(self._deployment, running, into)
