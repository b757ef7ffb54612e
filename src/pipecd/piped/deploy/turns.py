# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is: one deployment at a time per application, the oldest first."""

from collections.abc import Collection, Iterable

from pipecd.model.deployment import DeploymentStatus
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
