# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: one deployment at a time per application, the oldest first.

What waits and was made pointless by a later commit never gets a turn.
"""

from collections.abc import Collection, Iterable, Mapping

from pipecd.model.deployment import DeploymentStatus, SyncStrategy, asking_chain
from pipecd.proto.model.deployment_pb2 import Deployment

# What has begun is ended before anything new is looked at.
_ORDER = {
    DeploymentStatus.ROLLING_BACK: 0,
    DeploymentStatus.RUNNING: 0,
    DeploymentStatus.PLANNED: 1,
    DeploymentStatus.PENDING: 2,
}


def next_turns(
    deployments: Iterable[Deployment], *, busy: Collection[str], settled: Collection[str]
) -> tuple[Deployment, ...]:
    """The deployment each idle application goes on with.

    `busy` are applications at work, `settled` deployments that ended although the list is not
    aware of it yet.
    """
    first: dict[str, Deployment] = {}
    for deployment in deployments:
        application = deployment.application_id
        if application in busy or deployment.id in settled:
            continue
        if DeploymentStatus(deployment.status).is_completed:
            continue
        rival = first.get(application)
        if rival is None or age(deployment) < age(rival):
            first[application] = deployment
    return tuple(sorted(first.values(), key=age))


def age(deployment: Deployment) -> tuple[int, int, int, str]:
    """Sorts what has begun before what has not, then the older commit, then the older trigger."""
    trigger = deployment.trigger
    return (
        _ORDER.get(DeploymentStatus(deployment.status), len(_ORDER)),
        trigger.commit.created_at,
        trigger.timestamp,
        deployment.id,
    )


def superseded(
    deployments: Iterable[Deployment], *, settled: Collection[str]
) -> dict[str, Deployment]:
    """Deployments that a later one makes pointless, by id, each with the latest of those.

    Only what nobody asked for in person gives way, and only while it waits to be planned: the later
    one brings its commit as well.
    """
    waiting = [
        deployment
        for deployment in deployments
        if deployment.id not in settled
        and DeploymentStatus(deployment.status) is DeploymentStatus.PENDING
    ]
    latest: dict[str, Deployment] = {}
    for deployment in waiting:
        rival = latest.get(deployment.application_id)
        # One that waits for its chain may never come, so nobody gives way to it.
        if not asking_chain(deployment) and (
            rival is None or _triggered(deployment) > _triggered(rival)
        ):
            latest[deployment.application_id] = deployment
    return {
        deployment.id: later
        for deployment in waiting
        if (later := latest.get(deployment.application_id)) is not None
        and _gives_way(deployment, later)
    }


def waits_for(deployments: Iterable[Deployment], at_work: Mapping[str, str]) -> dict[str, str]:
    """Why deployments do not move, by id; `at_work` are the busy applications and with what."""
    return {
        deployment.id: f"Waiting for deployment {at_work[deployment.application_id]} "
        "of the same application to end"
        for deployment in deployments
        if at_work.get(deployment.application_id, deployment.id) != deployment.id
        and DeploymentStatus(deployment.status) is DeploymentStatus.PENDING
    }


def _gives_way(deployment: Deployment, later: Deployment) -> bool:
    return (
        _triggered(later) > _triggered(deployment)
        and later.trigger.commit.hash != deployment.trigger.commit.hash
        and not deployment.trigger.commander
        and not deployment.deployment_chain_id
        and SyncStrategy(deployment.trigger.sync_strategy) is SyncStrategy.AUTO
    )


def _triggered(deployment: Deployment) -> tuple[int, int]:
    """When the head of the branch was seen; its commits may have been made in any order."""
    return deployment.trigger.timestamp, deployment.created_at
