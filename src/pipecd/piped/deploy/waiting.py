# SPDX-License-Identifier: Apache-2.0
"""The deployments that are not at work: told why they wait, cancelled, or passed over."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied, NotFound, PipecdError, UserMistake
from pipecd.piped.cache.changes import Watch
from pipecd.piped.deploy.desk import Desk
from pipecd.piped.plan.turns import superseded, waits_for
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import Deployment

log = structlog.get_logger()

_BEFORE_ITS_BEGINNING = (DeploymentStatus.PENDING, DeploymentStatus.PLANNED)


@dataclass(kw_only=True)
class WaitingRoom:
    """Deals with deployments while nobody works on them."""

    desk: Desk
    works: asyncio.TaskGroup
    settled: set[str]
    """Where deployments that are over are noted."""
    woken: Watch
    _dealt_with: dict[str, str] = field(init=False, default_factory=dict[str, str])
    """The deployments that something is being said about, by what it is."""
    _told: dict[str, str] = field(init=False, default_factory=dict[str, str])

    @property
    def dealt_with(self) -> frozenset[str]:
        """Deployments whose turn must not begin in this moment."""
        return frozenset(self._dealt_with.values())

    def cancel(self, command: Command) -> None:
        """A person cancelled what is not at work."""
        if command.id not in self._dealt_with:
            cancelling = cancel_idle(self.desk, command)
            self._deal_with(command.deployment_id, cancelling, what=command.id)

    def pass_over(self, listed: Sequence[Deployment], at_work: Mapping[str, str]) -> set[str]:
        """Ends deployments that a later one makes pointless; these get no turn.

        `at_work` are the busy applications and the deployment of each.
        """
        out_of_reach = self.settled.union(at_work.values())
        pointless = superseded(listed, settled=out_of_reach)
        for id, later in pointless.items():
            if id not in self.dealt_with:
                self._deal_with(id, _give_way(self.desk, id, later), what=id)
        return set(pointless)

    def explain(self, listed: Sequence[Deployment], at_work: Mapping[str, str]) -> None:
        """Tells people what deployments wait for."""
        reasons = waits_for(listed, at_work)
        self._told = {id: told for id, told in self._told.items() if id in reasons}
        for id in reasons.keys() - self.settled - self.dealt_with:
            if self._told.get(id) != reasons[id]:
                self._told[id] = reasons[id]
                self._deal_with(id, self._explain(id, reasons[id]), what=id)

    def _deal_with(
        self, deployment_id: str, doing: Coroutine[Any, Any, bool], *, what: str
    ) -> None:
        self._dealt_with[what] = deployment_id
        self.works.create_task(self._finish(deployment_id, doing, what), name=f"about {what}")

    async def _finish(
        self, deployment_id: str, doing: Coroutine[Any, Any, bool], what: str
    ) -> None:
        with bound_contextvars(deployment=deployment_id):
            try:
                if await doing:
                    self.settled.add(deployment_id)
                    self.woken.mark()
            except PipecdError as e:
                log.warning("nothing could be done about a waiting deployment", error=str(e))
            finally:
                del self._dealt_with[what]

    async def _explain(self, deployment_id: str, reason: str) -> bool:
        try:
            deployment = await self.desk.fresh(deployment_id)
            if DeploymentStatus(deployment.status) is DeploymentStatus.PENDING:
                await self.desk.reports(deployment).waiting(reason)
        finally:
            # Its turn may have come meanwhile.
            self.woken.mark()
        return False


async def cancel_idle(desk: Desk, command: Command) -> bool:
    """Cancels a deployment that is not at work; whether that settles the matter.

    A deployment that has begun is left to its turn, which starts with being stopped.
    """
    try:
        status = await _cancel_before_its_beginning(desk, command)
    except (NotFound, Denied, UserMistake):
        status = CommandStatus.FAILED
    if status is not None:
        await desk.commands.report(command, status)
    return status is not None


async def _cancel_before_its_beginning(desk: Desk, command: Command) -> CommandStatus | None:
    deployment = await desk.fresh(command.deployment_id)
    status = DeploymentStatus(deployment.status)
    if status is DeploymentStatus.CANCELLED:
        # By another command, or by this one before piped was killed.
        return CommandStatus.SUCCEEDED
    if status.is_completed:
        return CommandStatus.FAILED
    if status not in _BEFORE_ITS_BEGINNING:
        return None
    reason = f"Deployment was cancelled by {command.commander} before it began"
    reports = desk.reports(deployment)
    # Another deployment of the application may be at work, so nothing is said about that.
    await reports.ended(DeploymentStatus.CANCELLED, reason, by=command.commander)
    return CommandStatus.SUCCEEDED


async def _give_way(desk: Desk, deployment_id: str, later: Deployment) -> bool:
    deployment = await desk.fresh(deployment_id)
    status = DeploymentStatus(deployment.status)
    if status is DeploymentStatus.PENDING:
        commit = later.trigger.commit.hash[:7]
        reason = f"Superseded by deployment {later.id} of the newer commit {commit}"
        await desk.reports(deployment).ended(DeploymentStatus.CANCELLED, reason)
    return DeploymentStatus(deployment.status).is_completed
