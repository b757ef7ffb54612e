# SPDX-License-Identifier: Apache-2.0
"""Works on every open deployment of this piped, one at a time for each application.

It looks at its mirrors whenever they change or work is finished: what people cancelled is stopped,
and every idle application goes on with its next deployment. Nothing is remembered here that a
restart would miss.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from pipecd.model.clock import Now, utc_now
from pipecd.model.command import CommandKind
from pipecd.observe.telemetry import DeploymentTelemetry
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import Watch
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.deploy.desk import Desk
from pipecd.piped.deploy.metadata import MetadataStores
from pipecd.piped.deploy.stop import Stop, stop_of
from pipecd.piped.deploy.waiting import WaitingRoom
from pipecd.piped.deploy.work import Hold, carry_out
from pipecd.piped.notify.notice import Notices
from pipecd.piped.plan.targets import KnownTargets
from pipecd.piped.plan.turns import next_turns
from pipecd.piped.pluginhost.callbacks import Callbacks
from pipecd.piped.pluginhost.registry import PluginRegistry
from pipecd.piped.source.sources import Sources
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service.piped_pb2 import (
    ReportApplicationDeployingStatusRequest,
)

# The safety net, should a change go unnoticed; upstream's controller looks as often.
_LOOK_EVERY = 10.0


@dataclass(frozen=True)
class _Work:
    """A deployment at work and the way to stop it."""

    deployment_id: str
    stop: asyncio.Future[Stop]

    def tell(self, command: Command) -> None:
        """Passes an order to stop on; the first one counts."""
        if not self.stop.done():
            self.stop.set_result(stop_of(command))


@dataclass(kw_only=True)
class Deployer:
    """Plans and carries out deployments."""

    api: ControlPlaneClient
    deployments: DeploymentCache
    commands: CommandCache
    applications: ApplicationCache
    sources: Sources
    plugins: PluginRegistry
    targets: KnownTargets = field(default_factory=dict[str, tuple[str, ...]])
    callbacks: Callbacks
    metadata: MetadataStores
    notices: Notices
    workspace: Path
    telemetry: DeploymentTelemetry = field(default_factory=DeploymentTelemetry)
    now: Now = utc_now
    _at_work: dict[str, _Work] = field(init=False, default_factory=dict[str, _Work])
    """What is being done, by application."""
    _settled: set[str] = field(init=False, default_factory=set[str])
    """Deployments that are over, for as long as the mirror lists them."""
    _held: dict[str, Hold] = field(init=False, default_factory=dict[str, Hold])
    """Deployments that were laid aside."""
    _news: Watch = field(init=False, default_factory=Watch)
    _news_heard: int = field(init=False, default=0)
    _woken: Watch = field(init=False, default_factory=Watch)

    async def run(self) -> None:
        desk = self._desk()
        await desk.forget_sources()
        for mirror in (self.deployments, self.commands):
            mirror.changes.add(self._woken)
        for watch in (self._news, self._woken):
            self.deployments.schedule.wakeups.add(watch)
        async with asyncio.TaskGroup() as works:
            works.create_task(self._correct_deploying(), name="deploying")
            waiting = WaitingRoom(desk=desk, works=works, settled=self._settled, woken=self._woken)
            while True:
                self._look(desk, waiting, works)
                await self._woken.wait(self._until_next_look())

    def _look(self, desk: Desk, waiting: WaitingRoom, works: asyncio.TaskGroup) -> None:
        """One look at the mirrors; everything that takes time becomes a task."""
        now, listed = asyncio.get_running_loop().time(), self.deployments.all
        self._settled &= {deployment.id for deployment in listed}
        has_news = self._news.taken()
        self._news_heard += has_news
        self._held = {
            id: hold for id, hold in self._held.items() if hold.goes_on(now, has_news=has_news)
        }
        passed_over = waiting.pass_over(listed, self._busy)
        settled = self._settled | waiting.dealt_with | passed_over
        for deployment in next_turns(listed, busy=self._busy, settled=settled):
            if deployment.id not in self._held:
                self._begin(deployment, desk, works)
        waiting.explain(listed, self._busy)
        for command in self.commands.of_kind(CommandKind.CANCEL_DEPLOYMENT):
            self._cancel(command, waiting)

    @property
    def _busy(self) -> dict[str, str]:
        """The applications at work and the deployment of each."""
        return {application: work.deployment_id for application, work in self._at_work.items()}

    def _until_next_look(self) -> float:
        now = asyncio.get_running_loop().time()
        return max(min([_LOOK_EVERY, *(hold.until - now for hold in self._held.values())]), 0)

    def _cancel(self, command: Command, waiting: WaitingRoom) -> None:
        """Stops the deployment where it is: at work, waiting for its turn, or over already."""
        for work in self._at_work.values():
            if work.deployment_id == command.deployment_id:
                work.tell(command)
                return
        waiting.cancel(command)

    def _begin(self, deployment: Deployment, desk: Desk, works: asyncio.TaskGroup) -> None:
        work = _Work(deployment.id, asyncio.get_running_loop().create_future())
        self._at_work[deployment.application_id] = work
        works.create_task(self._carry_out(deployment, work, desk), name=deployment.id)

    async def _carry_out(self, deployment: Deployment, work: _Work, desk: Desk) -> None:
        news_heard = self._news_heard
        try:
            hold = await carry_out(desk, deployment, work.stop)
        finally:
            del self._at_work[deployment.application_id]
        # News that came meanwhile may be what its chain was waiting for; it asks again at once.
        is_late = hold is not None and hold.is_for_chain and news_heard != self._news_heard
        if hold is None:
            self._settled.add(deployment.id)
        elif not is_late:
            self._held[deployment.id] = hold
        # Nobody tells a piped what it reported itself.
        self.deployments.refresh_soon()
        self._woken.mark()

    async def _correct_deploying(self) -> None:
        """An application that lost its piped amid a deployment may say forever that it deploys."""
        await self.applications.wait_until_loaded()
        applications = self.applications.all
        # The deployments must be newer than the applications, which may have begun to deploy.
        await self.deployments.refresh()
        for application in applications:
            if application.deploying and not self.deployments.not_completed_of(application.id):
                await self.api.report_application_deploying_status(
                    ReportApplicationDeployingStatusRequest(application_id=application.id)
                )

    def _desk(self) -> Desk:
        return Desk(
            api=self.api,
            commands=self.commands,
            sources=self.sources,
            plugins=self.plugins,
            targets=self.targets,
            callbacks=self.callbacks,
            metadata=self.metadata,
            notices=self.notices,
            workspace=self.workspace,
            telemetry=self.telemetry,
            now=self.now,
        )
