# SPDX-License-Identifier: Apache-2.0
"""A turn: everything that is done for one deployment while its application is busy with it."""

import asyncio
from dataclasses import dataclass
from typing import Self

import structlog
from structlog.contextvars import bound_contextvars

from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import Denied, NotFound, PipecdError, UserMistake
from pipecd.piped.deploy.desk import Desk
from pipecd.piped.deploy.journal import Journal
from pipecd.piped.deploy.planner import Planner
from pipecd.piped.deploy.reports import words
from pipecd.piped.deploy.scheduler import Scheduler
from pipecd.piped.deploy.stop import Stop
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import piped_pb2

log = structlog.get_logger()

# Before trying again what was refused, or asking again whether a chain has come this far.
HOLD = 10.0


@dataclass(frozen=True)
class Hold:
    """A deployment is laid aside until then, or until there may be news of its chain."""

    until: float
    is_for_chain: bool = False

    @classmethod
    def now(cls, *, is_for_chain: bool = False) -> Self:
        return cls(asyncio.get_running_loop().time() + HOLD, is_for_chain)

    def goes_on(self, now: float, *, has_news: bool) -> bool:
        return now < self.until and not (self.is_for_chain and has_news)


async def carry_out(desk: Desk, listed: Deployment, stop: asyncio.Future[Stop]) -> Hold | None:
    """Works on a deployment to its end, or to where it has to be laid aside."""
    with bound_contextvars(deployment=listed.id, application=listed.application_id):
        try:
            deployment = await desk.fresh(listed.id)
            if not DeploymentStatus(deployment.status).is_completed:
                with desk.metadata.open(deployment):
                    if not await _pass(desk, deployment, stop):
                        return Hold.now(is_for_chain=True)
            is_cancelled = DeploymentStatus(deployment.status) is DeploymentStatus.CANCELLED
            told = CommandStatus.SUCCEEDED if is_cancelled else CommandStatus.FAILED
            await desk.answer_cancels(listed.id, told)
            await desk.forget(listed.id)
        except (PipecdError, OSError) as e:
            log.warning("deployment is held up, trying again later", error=str(e))
            await _explain(desk, listed.id, f"Held up, trying again soon: {words(e)}")
            return Hold.now()
        finally:
            await desk.forget_sources(listed.id)
    return None


async def _explain(desk: Desk, deployment_id: str, reason: str) -> None:
    """Tells people why a deployment does not move, if the control plane listens."""
    try:
        reports = desk.reports(await desk.fresh(deployment_id))
        await reports.waiting(desk.callbacks.masks.hide(deployment_id, reason))
    except PipecdError as e:
        log.warning("nobody was told why the deployment is held up", error=str(e))


async def _pass(desk: Desk, deployment: Deployment, stop: asyncio.Future[Stop]) -> bool:
    """Plans what is pending, then runs what is planned; False when it is not its time yet."""
    reports = desk.reports(deployment)
    if DeploymentStatus(deployment.status) is DeploymentStatus.PENDING:
        chain = await _chain(desk, deployment)
        if chain is not None and chain.cancel:
            await reports.completed(DeploymentStatus.CANCELLED, chain.cancel_reason)
            return True
        if chain is not None and not chain.plannable:
            await reports.waiting("Waiting for the previous block of its deployment chain to end")
            return False
        try:
            await reports.deploying(True)
        except (UserMistake, NotFound, Denied) as e:
            # Somebody deleted the application or gave it to another piped while this one waited.
            reason = f"The application is no longer deployed by this piped ({e})"
            await reports.ended(DeploymentStatus.CANCELLED, reason)
            return True
        with desk.telemetry.traces.plan(deployment):
            has_plan = await Planner(desk, deployment, stop).run()
        if not has_plan:
            return True
    await reports.waiting()
    journal = await Journal.open(desk.journal(deployment.id))
    with desk.telemetry.traces.deploy(deployment):
        await Scheduler(desk, deployment, journal, stop).run()
    return True


async def _chain(
    desk: Desk, deployment: Deployment
) -> piped_pb2.InChainDeploymentPlannableResponse | None:
    """Whether the chain of the deployment has come as far as its block."""
    if not deployment.deployment_chain_id:
        return None
    return await desk.api.in_chain_deployment_plannable(
        piped_pb2.InChainDeploymentPlannableRequest(
            deployment_id=deployment.id,
            deployment_chain_id=deployment.deployment_chain_id,
            deployment_chain_block_index=deployment.deployment_chain_block_index,
        )
    )
