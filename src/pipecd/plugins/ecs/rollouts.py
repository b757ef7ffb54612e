# SPDX-License-Identifier: Apache-2.0
"""Judges the deployments of a service with rolling updates.

A service lists the deployment that it works on as `PRIMARY`, and older ones as long as they have
tasks. A circuit breaker fails a deployment, and may make an older task definition the primary one
again: then the service completes a deployment, and yet it is not the one that was requested.
"""

from dataclasses import dataclass
from enum import Enum

from pipecd.sdk.unstructured import Body, list_at, text_at


class Progress(Enum):
    """How far the deployment of a task definition is."""

    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Rollout:
    """The deployment of one task definition; its tasks have `id` as `startedBy`."""

    progress: Progress
    id: str = ""
    reason: str = ""


def judge_rollout(service: Body, task_definition: str) -> Rollout:
    """Returns how far a service is with a task definition."""
    deployments = list_at(service, "deployments")
    primaries = (each for each in deployments if text_at(each, "status") == "PRIMARY")
    primary: Body | None = next(primaries, None)
    requested = [e for e in deployments if text_at(e, "taskDefinition") == task_definition]
    if not requested:
        # What was read may be older than the update.
        return Rollout(Progress.WAITING)
    if text_at(primary, "taskDefinition") != task_definition:
        reason = text_at(requested[0], "rolloutStateReason")
        is_failed = text_at(requested[0], "rolloutState") == "FAILED"
        progress = Progress.FAILED if is_failed else Progress.REPLACED
        return Rollout(progress, text_at(requested[0], "id"), reason)
    started_by, state = text_at(primary, "id"), text_at(primary, "rolloutState")
    if state == "FAILED":
        return Rollout(Progress.FAILED, started_by, text_at(primary, "rolloutStateReason"))
    # Without the state of the rollout, it goes on as long as older deployments have tasks.
    is_rolled_out = state == "COMPLETED" if state else len(deployments) == 1
    is_complete = (
        is_rolled_out
        and service.get("pendingCount", 0) == 0
        and service.get("runningCount", 0) >= service.get("desiredCount", 0)
    )
    return Rollout(Progress.COMPLETED if is_complete else Progress.WAITING, started_by)
