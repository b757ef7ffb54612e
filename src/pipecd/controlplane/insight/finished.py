# SPDX-License-Identifier: Apache-2.0
"""A deployment that has ended, as the files of insights remember it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipecd.model.deployment import ROLLBACK_STAGE, STATUS_PREFIX, DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment

Labels = tuple[tuple[str, str], ...]

FAILED = f"{STATUS_PREFIX}{DeploymentStatus.FAILURE.name}"


@dataclass(frozen=True)
class Finished:
    """Times are unix seconds; labels are in the order of their keys."""

    id: str
    application: str
    labels: Labels
    started_at: int
    completed_at: int
    status: DeploymentStatus
    rollback_started_at: int = 0


class Ended(NamedTuple):
    """What the charts need of a deployment."""

    completed_at: int
    application: str
    labels: Mapping[str, str]
    is_failure: bool


def finished(deployment: Deployment) -> Finished | None:
    """What is remembered of a deployment; None while it goes on."""
    status = ended_as(deployment)
    if status is None:
        return None
    return Finished(
        id=deployment.id,
        application=deployment.application_id,
        labels=in_order(deployment.labels),
        started_at=deployment.created_at,
        completed_at=deployment.completed_at,
        status=status,
        rollback_started_at=_rollback_of(deployment),
    )


def ended_as(deployment: Deployment) -> DeploymentStatus | None:
    """How a deployment ended; None while it goes on."""
    try:
        status = DeploymentStatus(deployment.status)
    except ValueError:
        # Some other program wrote it; figures go on without it.
        return None
    return status if status.is_completed and deployment.completed_at > 0 else None


def in_order(labels: Mapping[str, str] | None) -> Labels:
    return tuple(sorted((labels or {}).items()))


def to_entry(one: Finished) -> dict[str, Any]:
    """The form of a chunk file."""
    return {
        "id": one.id,
        "app_id": one.application,
        "labels": dict(one.labels) or None,
        "started_at": one.started_at,
        "completed_at": one.completed_at,
        "complete_status": f"{STATUS_PREFIX}{one.status.name}",
        "rollback_started_at": one.rollback_started_at,
    }


def from_entry(entry: Mapping[str, Any]) -> Finished:
    """Reads the form of a chunk file; ValueError or KeyError when it is none."""
    status = str(entry["complete_status"]).removeprefix(STATUS_PREFIX)
    return Finished(
        id=str(entry["id"]),
        application=str(entry["app_id"]),
        labels=in_order(entry.get("labels")),
        started_at=int(entry.get("started_at", 0)),
        completed_at=int(entry["completed_at"]),
        status=DeploymentStatus[status],
        rollback_started_at=int(entry.get("rollback_started_at", 0)),
    )


def _rollback_of(deployment: Deployment) -> int:
    for stage in deployment.stages:
        if stage.rollback or stage.name == ROLLBACK_STAGE:
            return stage.created_at
    return 0
