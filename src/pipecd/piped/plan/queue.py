# SPDX-License-Identifier: Apache-2.0
"""The queue of each application: one deployment at a time, the one that was triggered first.

A pending deployment that a later one supersedes is never run. Deployments are given in the order in
which they were triggered: dates of commits and clocks say nothing about it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

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
    deployments: Sequence[Deployment],
    *,
    busy: Collection[str],
    completed: Collection[str],
    unavailable: Collection[str],
) -> tuple[Deployment, ...]:
    """Returns the next deployment of each idle application.

    `busy` are the ids of applications with a deployment in progress, `completed` those of
    deployments that ended although `deployments` still lists them as open, `unavailable` those
    that must not start now. One of these that has started, in an earlier process of piped, keeps
    its application busy.
    """
    first: dict[str, tuple[int, int]] = {}
    for position, deployment in enumerate(deployments):
        application, status = deployment.application_id, DeploymentStatus(deployment.status)
        if application in busy or deployment.id in completed or status.is_completed:
            continue
        if deployment.id in unavailable and status is DeploymentStatus.PENDING:
            continue
        rank = (_PRIORITY[status], position)
        first[application] = min(first.get(application, rank), rank)
    following = (deployments[position] for _, position in sorted(first.values()))
    return tuple(deployment for deployment in following if deployment.id not in unavailable)


def superseded(
    deployments: Sequence[Deployment], *, completed: Collection[str]
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
    by_id: dict[str, Deployment] = {}
    for deployment in reversed(pending):
        later = latest.get(deployment.application_id)
        if later is None:
            # The chain of a deployment may be cancelled, so that it never runs: it supersedes none.
            if not triggering_chain(deployment):
                latest[deployment.application_id] = deployment
        elif (
            later.trigger.commit.hash != deployment.trigger.commit.hash
            and not deployment.trigger.commander
            and not deployment.deployment_chain_id
            and SyncStrategy(deployment.trigger.sync_strategy) is SyncStrategy.AUTO
        ):
            by_id[deployment.id] = later
    return by_id


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
