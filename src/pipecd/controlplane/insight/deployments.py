# SPDX-License-Identifier: Apache-2.0
"""Completed deployments as the insight files store them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipecd.model.deployment import ROLLBACK_STAGE, STATUS_PREFIX, DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment

Labels = tuple[tuple[str, str], ...]

FAILURE = f"{STATUS_PREFIX}{DeploymentStatus.FAILURE.name}"


@dataclass(frozen=True)
class CompletedDeployment:
    """A completed deployment; times are unix seconds, labels are sorted by key."""

    id: str
    application: str
    labels: Labels
    started_at: int
    completed_at: int
    status: DeploymentStatus
    rollback_started_at: int = 0


class DeploymentResult(NamedTuple):
    """The fields of a completed deployment that the charts need."""

    completed_at: int
    application: str
    labels: Mapping[str, str]
    is_failure: bool


def completed_deployment(deployment: Deployment) -> CompletedDeployment | None:
    """The data to store about a deployment; None if it is not completed."""
    status = final_status(deployment)
    if status is None:
        return None
    rollbacks = (
        stage.created_at
        for stage in deployment.stages
        if stage.rollback or stage.name == ROLLBACK_STAGE
    )
    return CompletedDeployment(
        id=deployment.id,
        application=deployment.application_id,
        labels=sorted_labels(deployment.labels),
        started_at=deployment.created_at,
        completed_at=deployment.completed_at,
        status=status,
        rollback_started_at=next(rollbacks, 0),
    )


def final_status(deployment: Deployment) -> DeploymentStatus | None:
    """The status of a completed deployment; None if it is not completed."""
    try:
        status = DeploymentStatus(deployment.status)
    except ValueError:
        # A newer program wrote it; insights ignore it.
        return None
    return status if status.is_completed and deployment.completed_at > 0 else None


def sorted_labels(labels: Mapping[str, str] | None) -> Labels:
    return tuple(sorted((labels or {}).items()))


def deployment_to_json(deployment: CompletedDeployment) -> dict[str, Any]:
    """The entry of a deployment in a chunk file."""
    return {
        "id": deployment.id,
        "app_id": deployment.application,
        "labels": dict(deployment.labels) or None,
        "started_at": deployment.started_at,
        "completed_at": deployment.completed_at,
        "complete_status": f"{STATUS_PREFIX}{deployment.status.name}",
        "rollback_started_at": deployment.rollback_started_at,
    }


def deployment_from_json(entry: Mapping[str, Any]) -> CompletedDeployment:
    """Reads an entry of a chunk file; raises ValueError or KeyError if it is invalid."""
    status = str(entry["complete_status"]).removeprefix(STATUS_PREFIX)
    return CompletedDeployment(
        id=str(entry["id"]),
        application=str(entry["app_id"]),
        labels=sorted_labels(entry.get("labels")),
        started_at=int(entry.get("started_at", 0)),
        completed_at=int(entry["completed_at"]),
        status=DeploymentStatus[status],
        rollback_started_at=int(entry.get("rollback_started_at", 0)),
    )
