# SPDX-License-Identifier: Apache-2.0
"""How a status looks: always a tone, an icon and a word, never a colour alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.proto.model.livestate_pb2 import ResourceState


class Tone(StrEnum):
    """What a colour means here."""

    OK = "ok"
    RUN = "run"
    WAIT = "wait"
    BAD = "bad"
    OFF = "off"


@dataclass(frozen=True)
class Mark:
    """A status as people see it; `icon` is a symbol of the sprite."""

    tone: Tone
    icon: str
    word: str


WAITING = Mark(Tone.WAIT, "clock", "Waiting for approval")
DEPLOYED = Mark(Tone.OK, "check", "Deployed")
NEVER_DEPLOYED = Mark(Tone.OFF, "dots", "Never deployed")

_DEPLOYMENT = {
    DeploymentStatus.PENDING: Mark(Tone.OFF, "dots", "Pending"),
    DeploymentStatus.PLANNED: Mark(Tone.OFF, "dots", "Planned"),
    DeploymentStatus.RUNNING: Mark(Tone.RUN, "run", "Running"),
    DeploymentStatus.ROLLING_BACK: Mark(Tone.BAD, "back", "Rolling back"),
    DeploymentStatus.SUCCESS: Mark(Tone.OK, "check", "Succeeded"),
    DeploymentStatus.FAILURE: Mark(Tone.BAD, "cross", "Failed"),
    DeploymentStatus.CANCELLED: Mark(Tone.OFF, "stop", "Cancelled"),
}
_STAGE = {
    StageStatus.NOT_STARTED_YET: Mark(Tone.OFF, "dot", "Not started"),
    StageStatus.RUNNING: Mark(Tone.RUN, "run", "Running"),
    StageStatus.SUCCESS: Mark(Tone.OK, "check", "Succeeded"),
    StageStatus.FAILURE: Mark(Tone.BAD, "cross", "Failed"),
    StageStatus.CANCELLED: Mark(Tone.OFF, "stop", "Cancelled"),
    StageStatus.SKIPPED: Mark(Tone.OFF, "skip", "Skipped"),
    StageStatus.EXITED: Mark(Tone.OK, "check", "Ended early"),
}
_SYNC = {
    SyncStatus.UNKNOWN: Mark(Tone.OFF, "question", "Not compared"),
    SyncStatus.SYNCED: Mark(Tone.OK, "check", "Synced"),
    SyncStatus.DEPLOYING: Mark(Tone.RUN, "run", "Deploying"),
    SyncStatus.OUT_OF_SYNC: Mark(Tone.WAIT, "differ", "Out of sync"),
    SyncStatus.INVALID_CONFIG: Mark(Tone.BAD, "warn", "Invalid configuration"),
}
_HEALTH: Mapping[int, Mark] = {
    ResourceState.UNKNOWN: Mark(Tone.OFF, "question", "Health unknown"),
    ResourceState.HEALTHY: Mark(Tone.OK, "check", "Healthy"),
    ResourceState.UNHEALTHY: Mark(Tone.BAD, "cross", "Unhealthy"),
}
_KIND = {
    ApplicationKind.KUBERNETES: "Kubernetes",
    ApplicationKind.TERRAFORM: "Terraform",
    ApplicationKind.LAMBDA: "Lambda",
    ApplicationKind.CLOUDRUN: "Cloud Run",
    ApplicationKind.ECS: "ECS",
}


def deployment_mark(status: DeploymentStatus, *, waiting: bool = False) -> Mark:
    """`waiting` says that a person has to approve something before it goes on."""
    return WAITING if waiting and status is DeploymentStatus.RUNNING else _DEPLOYMENT[status]


def stage_mark(status: StageStatus, *, waiting: bool = False) -> Mark:
    """`waiting` says that the running stage waits for a person."""
    return WAITING if waiting and status is StageStatus.RUNNING else _STAGE[status]


def sync_mark(status: SyncStatus) -> Mark:
    """Whether what runs is what Git says."""
    return _SYNC[status]


def kind_word(kind: ApplicationKind) -> str:
    """The platform of an application of the first generation."""
    return _KIND[kind]


def health_mark(status: int) -> Mark:
    """How a resource is; what a later version calls otherwise is not known."""
    return _HEALTH.get(status) or _HEALTH[ResourceState.UNKNOWN]
