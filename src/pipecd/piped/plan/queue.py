# SPDX-License-Identifier: Apache-2.0
"""The queue of each application: one deployment at a time, the oldest first.

A pending deployment that a later commit supersedes is never run.
"""

from collections.abc import Collection, Iterable, Mapping

from pipecd.model.deployment import DeploymentStatus, SyncStrategy, triggering_chain
from pipecd.proto.model.deployment_pb2 import Deployment

# A deployment that has started ends before another one of its application starts.
_PRIORITY = {
    DeploymentStatus.ROLLING_BACK: 0,
    DeploymentStatus.RUNNING: 0,
    DeploymentStatus.PLANNED: 1,
    DeploymentStatus.PENDING: 2,
}


def next_deployments(
    deployments: Iterable[Deployment], *, busy: Collection[str], completed: Collection[str]
) -> tuple[Deployment, ...]:
    """Returns the next deployment of each idle application.

    `busy` are the ids of applications with a deployment in progress, `completed` those of
    deployments that ended although `deployments` still lists them as open.
    """
    first: dict[str, Deployment] = {}
    for deployment in deployments:
        application = deployment.application_id
        if application in busy or deployment.id in completed:
            continue
        if DeploymentStatus(deployment.status).is_completed:
            continue
        other = first.get(application)
        if other is None or queue_order(deployment) < queue_order(other):
            first[application] = deployment
    return tuple(sorted(first.values(), key=queue_order))


def queue_order(deployment: Deployment) -> tuple[int, int, int, str]:
    """Sorts started deployments first, then by the time of the commit, then of the trigger."""
    trigger = deployment.trigger
    return (
        _PRIORITY.get(DeploymentStatus(deployment.status), len(_PRIORITY)),
        trigger.commit.created_at,
        trigger.timestamp,
        deployment.id,
    )


def superseded(
    deployments: Iterable[Deployment], *, completed: Collection[str]
) -> dict[str, Deployment]:
    """Returns the superseded deployments by id, each with the deployment that supersedes it.

    Only pending deployments that no user requested are superseded; the later one also deploys
    their commit.
    """
    pending = [
        deployment
        for deployment in deployments
        if deployment.id not in completed
        and DeploymentStatus(deployment.status) is DeploymentStatus.PENDING
    ]
    latest: dict[str, Deployment] = {}
    for deployment in pending:
        other = latest.get(deployment.application_id)
        # The chain of a deployment may be cancelled, so that it never runs: it supersedes none.
        if not triggering_chain(deployment) and (
            other is None or _triggered_at(deployment) > _triggered_at(other)
        ):
            latest[deployment.application_id] = deployment
    return {
        deployment.id: later
        for deployment in pending
        if (later := latest.get(deployment.application_id)) is not None
        and _triggered_at(later) > _triggered_at(deployment)
        and later.trigger.commit.hash != deployment.trigger.commit.hash
        and not deployment.trigger.commander
        and not deployment.deployment_chain_id
        and SyncStrategy(deployment.trigger.sync_strategy) is SyncStrategy.AUTO
    }


def waiting_reasons(
    deployments: Iterable[Deployment], running: Mapping[str, str]
) -> dict[str, str]:
    """Returns by id why pending deployments wait; `running` is deployment id by application id."""
    return {
        deployment.id: f"Waiting for deployment {running[deployment.application_id]} "
        "of the same application to end"
        for deployment in deployments
        if running.get(deployment.application_id, deployment.id) != deployment.id
        and DeploymentStatus(deployment.status) is DeploymentStatus.PENDING
    }


def _triggered_at(deployment: Deployment) -> tuple[int, int]:
    """Commits may have been written in any order, so that only the trigger's time counts."""
    return deployment.trigger.timestamp, deployment.created_at
