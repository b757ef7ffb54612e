# SPDX-License-Identifier: Apache-2.0
"""What became of each of several objects that one form was about."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pipecd.controlplane.console.command_notice import Notice
from pipecd.controlplane.console.formatting import join_words
from pipecd.controlplane.console.pipeline_view import has_pending_approval
from pipecd.controlplane.console.status_badge import Badge, Tone, deployment_badge
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment


@dataclass(frozen=True)
class BulkResult:
    """What became of one application of several that were added: its id, or why it has none."""

    id: str
    name: str
    reason: str = ""


@dataclass(frozen=True)
class BulkSyncResult:
    """What became of one of several syncs: the state of its command, or why there is none.

    `deployment` is the one that it has started, as far as the user may see it.
    """

    id: str
    name: str
    notice: Notice | None = None
    reason: str = ""
    may_retry: bool = False
    deployment: Deployment | None = None

    @property
    def outcome(self) -> Badge | None:
        """The status of the deployment."""
        if self.deployment is None:
            return None
        waiting = has_pending_approval(self.deployment)
        return deployment_badge(DeploymentStatus(self.deployment.status), waiting=waiting)

    @property
    def state(self) -> str:
        """How far the sync is, in the words of the summary."""
        if self.notice is None:
            return "refused"
        if self.notice.is_pending:
            return "in progress"
        if self.deployment:
            return _STATES.get(DeploymentStatus(self.deployment.status), "in progress")
        return "done" if self.notice.badge.tone is Tone.OK else "failed"


# Why a sync was refused, where this is no longer so when its result is read.
_REFUSALS = {
    "disabled": "It was disabled then; it is enabled now and can be synced.",
    "denied": "Your roles did not allow it then; now they do.",
}


def refusal_text(cause: str) -> str:
    """Why a sync was refused that would not be refused now; `cause` is from the address."""
    return _REFUSALS.get(cause, "It was refused then; it can be synced now.")


_STATES = {
    DeploymentStatus.SUCCESS: "done",
    DeploymentStatus.FAILURE: "failed",
    DeploymentStatus.CANCELLED: "cancelled",
}
_ONE = {
    "in progress": "is in progress",
    "done": "is done",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "refused": "was refused",
}


def bulk_sync_summary(results: Iterable[BulkSyncResult]) -> str:
    """How many syncs are in which state, as a sentence."""
    counts = dict.fromkeys(_ONE, 0)
    for result in results:
        counts[result.state] += 1
    states = [state for state, count in counts.items() if count]
    total = sum(counts.values())
    if total == 1:
        return f"The sync {_ONE[states[0]]}."
    if len(states) == 1:
        return f"{total} syncs, all {states[0]}."
    return f"{total} syncs: {join_words([f'{counts[state]} {state}' for state in states])}."


def bulk_sync_topics(results: Iterable[BulkSyncResult]) -> list[str]:
    """The commands and deployments that are in progress."""
    moving = [result for result in results if result.notice and result.state == "in progress"]
    return [
        f"dep:{result.deployment.id}" if result.deployment else f"cmd:{result.notice.command_id}"
        for result in moving
        if result.notice
    ]


def encode_results(results: Iterable[BulkResult]) -> str:
    return json.dumps([asdict(result) for result in results])


def decode_results(text: str) -> list[BulkResult]:
    return [BulkResult(**result) for result in json.loads(text)]
