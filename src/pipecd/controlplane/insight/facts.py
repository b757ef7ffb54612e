# SPDX-License-Identifier: Apache-2.0
"""What lead time and time to restore are made of.

Lead time is the time from a commit to the end of the deployment that brought it. It is known only
for a success that changed what runs: a deployment of the commit that ran already brings nothing
new, and the first deployment of an application says how old its repository is.

Time to restore is the time from the first failure of an application to its next success.
Cancelled deployments neither break nor mend anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from pipecd.controlplane.insight.finished import Labels, ended_as, in_order
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment

DAY = 86400


@dataclass(frozen=True)
class Fact:
    """One success or failure; `lead_seconds` is None where there is no lead time."""

    id: str
    application: str
    labels: Labels
    completed_at: int
    succeeded: bool
    lead_seconds: int | None = None


class Group(NamedTuple):
    """A day of an application while it had these labels; the day is its first second, in UTC."""

    day: int
    application: str
    labels: Labels


class Tally(NamedTuple):
    """Sums over a group; those of two parts of a group can be added in any order."""

    succeeded: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    lead_count: int = 0
    lead_seconds: int = 0

    def plus(self, other: "Tally") -> "Tally":
        return Tally(
            tuple(sorted(self.succeeded + other.succeeded)),
            tuple(sorted(self.failed + other.failed)),
            self.lead_count + other.lead_count,
            self.lead_seconds + other.lead_seconds,
        )


@dataclass(frozen=True)
class Restored:
    """An application works again after so many seconds."""

    at: int
    application: str
    labels: Labels
    seconds: int


def fact_of(deployment: Deployment) -> Fact | None:
    """What a deployment adds; None when it goes on or was cancelled."""
    status = ended_as(deployment)
    if status not in (DeploymentStatus.SUCCESS, DeploymentStatus.FAILURE):
        return None
    fact = Fact(
        id=deployment.id,
        application=deployment.application_id,
        labels=in_order(deployment.labels),
        completed_at=deployment.completed_at,
        succeeded=status is DeploymentStatus.SUCCESS,
    )
    commit, before = deployment.trigger.commit, deployment.running_commit_hash
    if not fact.succeeded or commit.created_at <= 0 or before in ("", commit.hash):
        return fact
    # The clocks of a developer and of a piped may differ by a little.
    return replace(fact, lead_seconds=max(0, deployment.completed_at - commit.created_at))


def group_of(fact: Fact) -> Group:
    return Group(fact.completed_at - fact.completed_at % DAY, fact.application, fact.labels)


def tally_of(fact: Fact) -> Tally:
    at = (fact.completed_at,)
    if not fact.succeeded:
        return Tally(failed=at)
    if fact.lead_seconds is None:
        return Tally(succeeded=at)
    return Tally(succeeded=at, lead_count=1, lead_seconds=fact.lead_seconds)


def restored(
    tallies: Mapping[Group, Tally], failing: Mapping[str, int]
) -> tuple[tuple[Restored, ...], dict[str, int]]:
    """When applications came to work again, and since when the others have been failing.

    `failing` says which applications had been failing before, and since when.
    """
    events = sorted(
        (at, succeeded, group.application, group.labels)
        for group, tally in tallies.items()
        for succeeded, times in ((False, tally.failed), (True, tally.succeeded))
        for at in times
    )
    since = dict(failing)
    mended: list[Restored] = []
    for at, succeeded, application, labels in events:
        if not succeeded:
            since.setdefault(application, at)
        elif application in since:
            mended.append(Restored(at, application, labels, at - since.pop(application)))
    return tuple(mended), since
