# SPDX-License-Identifier: Apache-2.0
"""Runs every open deployment of this piped, one at a time for each application.

Whenever its caches change or a deployment ends, the deployer stops the deployments that users
cancelled and starts the next deployment of every idle application. It keeps no state that a
restart would lose.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from pipecd.model.command import CommandKind
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied, NotFound, PipecdError, UserMistake
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import Watch
from pipecd.piped.deploy.context import DeploymentContext
from pipecd.piped.deploy.run import Deferral, run_deployment
from pipecd.piped.plan.queue import next_deployments, superseded, waiting_reasons
from pipecd.piped.plan.rollback import Stop, stop_from
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import ReportApplicationDeployingStatusRequest

log = structlog.get_logger()

# The safety net for a missed change, in seconds; upstream's controller has the same interval.
_SYNC_INTERVAL = 10.0
# The pause after a pass, as a multiple of the CPU time that it took.
_PAUSE_PER_PASS = 10


@dataclass(frozen=True)
class _RunningDeployment:
    deployment_id: str
    stop: asyncio.Future[Stop]


@dataclass(kw_only=True)
class Deployer:
    """Starts, cancels and supersedes deployments."""

    context: DeploymentContext
    applications: ApplicationCache
    _running: dict[str, _RunningDeployment] = field(
        init=False, default_factory=dict[str, _RunningDeployment]
    )
    """The running deployment of each application."""
    _completed: set[str] = field(init=False, default_factory=set[str])
    """Deployments that are completed, for as long as the cache still lists them as open."""
    _deferred: dict[str, Deferral] = field(init=False, default_factory=dict[str, Deferral])
    _failures: Counter[str] = field(init=False, default_factory=Counter[str])
    """How often a deployment was deferred because of an error."""
    _chain_changes: Watch = field(init=False, default_factory=Watch)
    _chain_change_count: int = field(init=False, default=0)
    _wakeup: Watch = field(init=False, default_factory=Watch)

    async def run(self) -> None:
        await self.context.remove_old_sources()
        for cache in (self.context.deployments, self.context.commands):
            cache.changes.add(self._wakeup)
        for watch in (self._chain_changes, self._wakeup):
            self.context.deployments.schedule.wakeups.add(watch)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reset_deploying_flags(), name="deploying flags")
            tasks.create_task(self.context.changes.run(), name="changes of deployments")
            pending = PendingDeployments(
                context=self.context, tasks=tasks, completed=self._completed, wakeup=self._wakeup
            )
            while True:
                await self.context.drain.wait_until_resumed()
                began = time.thread_time()
                self._sync(pending, tasks)
                # A pass over thousands of deployments must not follow every single change.
                await asyncio.sleep(_PAUSE_PER_PASS * (time.thread_time() - began))
                now = asyncio.get_running_loop().time()
                ends = (deferral.until - now for deferral in self._deferred.values())
                await self._wakeup.wait(max(min([_SYNC_INTERVAL, *ends]), 0))

    def _sync(self, pending: "PendingDeployments", tasks: asyncio.TaskGroup) -> None:
        """Compares the caches with what runs; everything that takes time becomes a task.

        The first command to cancel a running deployment decides how it is stopped.
        """
        now, listed = asyncio.get_running_loop().time(), self.context.deployments.all
        open_ids = {deployment.id for deployment in listed}
        self._completed &= open_ids
        self._failures = Counter({id: n for id, n in self._failures.items() if id in open_ids})
        chain_changed = self._chain_changes.taken()
        self._chain_change_count += chain_changed
        self._deferred = {
            id: deferral
            for id, deferral in self._deferred.items()
            if deferral.is_active(now, chain_changed=chain_changed)
        }
        unavailable = pending.supersede(listed, self._busy) | pending.in_progress
        for deployment in next_deployments(
            listed, busy=self._busy, completed=self._completed, unavailable=unavailable
        ):
            if deployment.id not in self._deferred:
                started = _RunningDeployment(
                    deployment.id, asyncio.get_running_loop().create_future()
                )
                self._running[deployment.application_id] = started
                tasks.create_task(self._run(deployment, started), name=deployment.id)
        pending.report_waiting(listed, self._busy)
        running = {each.deployment_id: each for each in self._running.values()}
        for command in self.context.commands.of_kind(CommandKind.CANCEL_DEPLOYMENT):
            if command.deployment_id not in running:
                pending.cancel(command)
            elif not (stop := running[command.deployment_id].stop).done():
                stop.set_result(stop_from(command))

    @property
    def _busy(self) -> dict[str, str]:
        """The id of the running deployment by application."""
        return {application: each.deployment_id for application, each in self._running.items()}

    async def _run(self, deployment: Deployment, running: _RunningDeployment) -> None:
        changes_before = self._chain_change_count
        try:
            with self.context.drain.deployment():
                deferral = await run_deployment(
                    self.context,
                    deployment,
                    running.stop,
                    failures=self._failures[deployment.id],
                )
        finally:
            del self._running[deployment.application_id]
        if deferral is None:
            self._completed.add(deployment.id)
            self.context.deployments.remove_completed(deployment.id)
            return
        if not (deferral.is_for_chain and changes_before != self._chain_change_count):
            self._deferred[deployment.id] = deferral
            self._failures[deployment.id] += not deferral.is_for_chain
        # else: its chain changed meanwhile, so the deployment is tried again at once.
        # The control plane does not signal to a piped what that piped reported itself.
        self.context.deployments.refresh_soon()
        self._wakeup.mark()

    async def _reset_deploying_flags(self) -> None:
        """Clears `deploying` of applications whose piped ended in the middle of a deployment."""
        await self.applications.wait_until_loaded()
        applications = self.applications.all
        # A list of deployments that is older than that of the applications could lack a new one.
        deployments = self.context.deployments
        await deployments.refresh()
        for application in applications:
            if application.deploying and not deployments.not_completed_of(application.id):
                try:
                    await self.context.api.report_application_deploying_status(
                        ReportApplicationDeployingStatusRequest(application_id=application.id)
                    )
                except PipecdError as e:
                    # The next deployment of the application clears it.
                    log.warning(
                        "deploying flag not cleared",
                        application=application.id,
                        application_name=application.name,
                        error=str(e),
                    )


@dataclass(kw_only=True)
class PendingDeployments:
    """Cancels and supersedes deployments that do not run, and reports what they wait for."""

    context: DeploymentContext
    tasks: asyncio.TaskGroup
    completed: set[str]
    """Receives the ids of deployments that completed."""
    wakeup: Watch
    _in_progress: dict[str, str] = field(init=False, default_factory=dict[str, str])
    """The deployment of each task that is under way, by command id or deployment id."""
    _reported: dict[str, str] = field(init=False, default_factory=dict[str, str])

    @property
    def in_progress(self) -> frozenset[str]:
        """Deployments that must not start now, as a task reads or changes them."""
        return frozenset(self._in_progress.values())

    def cancel(self, command: Command) -> None:
        """Cancels a deployment that does not run."""
        if command.id not in self._in_progress:
            cancelling = cancel_pending(self.context, command)
            self._start(command.deployment_id, cancelling, key=command.id)

    def supersede(self, listed: Sequence[Deployment], running: Mapping[str, str]) -> set[str]:
        """Cancels superseded deployments and returns their ids; `running` is by application."""
        ids = superseded(listed, completed=self.completed.union(running.values()))
        for id, later in ids.items():
            if id not in self.in_progress:
                self._start(id, _cancel_superseded(self.context, id, later), key=id)
        return set(ids)

    def report_waiting(self, listed: Sequence[Deployment], running: Mapping[str, str]) -> None:
        """Reports which running deployment each pending one waits for."""
        reasons = waiting_reasons(listed, running)
        self._reported = {id: each for id, each in self._reported.items() if id in reasons}
        for id in reasons.keys() - self.completed - self.in_progress:
            if self._reported.get(id) != reasons[id]:
                self._reported[id] = reasons[id]
                self._start(id, self._report_waiting(id, reasons[id]), key=id)

    def _start(self, deployment_id: str, work: Coroutine[Any, Any, bool], *, key: str) -> None:
        self._in_progress[key] = deployment_id
        self.tasks.create_task(self._run(deployment_id, work, key), name=f"pending {key}")

    async def _run(self, deployment_id: str, work: Coroutine[Any, Any, bool], key: str) -> None:
        listed = (d for d in self.context.deployments.all if d.id == deployment_id)
        name = next((deployment.application_name for deployment in listed), "")
        with bound_contextvars(deployment=deployment_id, application_name=name):
            try:
                if await work:
                    self.completed.add(deployment_id)
                    # The control plane does not signal it to the piped that reported it.
                    self.context.deployments.remove_completed(deployment_id)
                    self.wakeup.mark()
            except PipecdError as e:
                log.warning("pending deployment not updated", error=str(e))
            finally:
                del self._in_progress[key]

    async def _report_waiting(self, deployment_id: str, reason: str) -> bool:
        try:
            deployment = await self.context.load(deployment_id)
            if DeploymentStatus(deployment.status) is DeploymentStatus.PENDING:
                await self.context.reports(deployment).waiting(reason)
        finally:
            # The deployment may be the next one by now.
            self.wakeup.mark()
        return False


async def cancel_pending(context: DeploymentContext, command: Command) -> bool:
    """Cancels a deployment that does not run; returns whether the command is handled.

    A deployment that has started is left to the deployer, which starts it in order to stop it.
    """
    try:
        deployment = await context.load(command.deployment_id)
        status = DeploymentStatus(deployment.status)
        if status in (DeploymentStatus.PENDING, DeploymentStatus.PLANNED):
            reason = f"Deployment was cancelled by {command.commander} before it began"
            # Another deployment of the application may be running, so its status is not touched.
            await context.reports(deployment).deployment_completed(
                DeploymentStatus.CANCELLED, reason, by=command.commander
            )
            status = DeploymentStatus.CANCELLED
        elif not status.is_completed:
            return False
    except (NotFound, Denied, UserMistake):
        await context.commands.reject(command, "this piped has no such deployment")
        return True
    # It may be cancelled by another command, or by this one before piped was killed.
    await context.report_cancel_command(command, status)
    return True


async def _cancel_superseded(
    context: DeploymentContext, deployment_id: str, later: Deployment
) -> bool:
    deployment = await context.load(deployment_id)
    if DeploymentStatus(deployment.status) is DeploymentStatus.PENDING:
        commit = later.trigger.commit.hash[:7]
        reason = f"Superseded by deployment {later.id} of the newer commit {commit}"
        await context.reports(deployment).deployment_completed(DeploymentStatus.CANCELLED, reason)
    return DeploymentStatus(deployment.status).is_completed
