# SPDX-License-Identifier: Apache-2.0
"""The outcomes of deployments behind lead time for changes and time to restore.

Lead time is the time from a commit to the end of the deployment of that commit. Only a successful
deployment of a change has one: not the deployment of a commit that runs already, and not the first
deployment of an application, because its commit may be as old as the repository.

Time to restore is the time from the first failure of an application to its next success. Cancelled
deployments count as neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipecd.controlplane.insight.deployments import Labels, final_status, sorted_labels
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment

DAY = 86400


@dataclass(frozen=True)
class CompletedOutcome:
    """A success or a failure; `lead_seconds` is None if it has no lead time."""

    id: str
    application: str
    labels: Labels
    completed_at: int
    succeeded: bool
    lead_seconds: int | None = None


class OutcomeGroup(NamedTuple):
    """A day of an application with these labels; `day` is its first second in UTC."""

    day: int
    application: str
    labels: Labels


class OutcomeTotals(NamedTuple):
    """The totals of a group: the times of its successes and failures, and its lead time."""

    succeeded: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    lead_count: int = 0
    lead_seconds: int = 0

    def plus(self, other: "OutcomeTotals") -> "OutcomeTotals":
        return OutcomeTotals(
            tuple(sorted(self.succeeded + other.succeeded)),
            tuple(sorted(self.failed + other.failed)),
            self.lead_count + other.lead_count,
            self.lead_seconds + other.lead_seconds,
        )


@dataclass(frozen=True)
class Restoration:
    """The success of a failing application; `seconds` is the time since its first failure."""

    at: int
    application: str
    labels: Labels
    seconds: int


def outcome_of(deployment: Deployment) -> CompletedOutcome | None:
    """The outcome of a deployment; None if it is not completed or was cancelled."""
    status = final_status(deployment)
    if status not in (DeploymentStatus.SUCCESS, DeploymentStatus.FAILURE):
        return None
    outcome = CompletedOutcome(
        id=deployment.id,
        application=deployment.application_id,
        labels=sorted_labels(deployment.labels),
        completed_at=deployment.completed_at,
        succeeded=status is DeploymentStatus.SUCCESS,
    )
    commit, running = deployment.trigger.commit, deployment.running_commit_hash
    if not outcome.succeeded or commit.created_at <= 0 or running in ("", commit.hash):
        return outcome
    # The clocks of a developer and of a piped may differ a little.
    return replace(outcome, lead_seconds=max(0, deployment.completed_at - commit.created_at))


def group_of(outcome: CompletedOutcome) -> OutcomeGroup:
    day = outcome.completed_at - outcome.completed_at % DAY
    return OutcomeGroup(day, outcome.application, outcome.labels)


def totals_of(outcome: CompletedOutcome) -> OutcomeTotals:
    times = (outcome.completed_at,)
    if not outcome.succeeded:
        return OutcomeTotals(failed=times)
    if outcome.lead_seconds is None:
        return OutcomeTotals(succeeded=times)
    return OutcomeTotals(succeeded=times, lead_count=1, lead_seconds=outcome.lead_seconds)


def find_restorations(
    totals: Mapping[OutcomeGroup, OutcomeTotals], failing: Mapping[str, int]
) -> tuple[tuple[Restoration, ...], dict[str, int]]:
    """Returns the restorations, and the applications that still fail with their first failure.

    `failing` has the applications that failed before, with the time of their first failure.
    """
    events = sorted(
        (at, succeeded, group.application, group.labels)
        for group, of_group in totals.items()
        for succeeded, times in ((False, of_group.failed), (True, of_group.succeeded))
        for at in times
    )
    failed_at = dict(failing)
    restorations: list[Restoration] = []
    for at, succeeded, application, labels in events:
        if not succeeded:
            failed_at.setdefault(application, at)
        elif application in failed_at:
            seconds = at - failed_at.pop(application)
            restorations.append(Restoration(at, application, labels, seconds))
    return tuple(restorations), failed_at
