# SPDX-License-Identifier: Apache-2.0
"""Statuses of a deployment and its stages, and which transitions are legal.

Start here: these are the nouns that every other package uses. The numbers are those of the wire; a
test compares each enum with its descriptor.
"""

from enum import IntEnum
from typing import assert_never

from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

WAITING_FOR = "pipecd/waiting-for"
"""The shared metadata that says why a deployment does not move; no status of the wire can."""

IN_CHAIN = "Sync application in chain"
"""The strategy summary of a deployment that a chain asked for; the commander is its id then."""

DISPLAY_KEY = "pipecd/stage-display-metadata"
"""The metadata of a stage that the console shows beside it."""

APPROVED_USERS_KEY = "pipecd/stage-approved-users"
"""The metadata of a stage from which notifications take the people who approved it."""

ROLLBACK_STAGE = "ROLLBACK"
"""The stage of the first generation that undoes the others."""

STATUS_PREFIX = "DEPLOYMENT_"
"""What the names of deployment statuses begin with on the wire."""


class DeploymentStatus(IntEnum):
    """Where a deployment stands."""

    PENDING = 0
    PLANNED = 1
    RUNNING = 2
    ROLLING_BACK = 3
    SUCCESS = 4
    FAILURE = 5
    CANCELLED = 6

    @property
    def is_completed(self) -> bool:
        return self >= DeploymentStatus.SUCCESS


class StageStatus(IntEnum):
    """Where a stage stands."""

    NOT_STARTED_YET = 0
    RUNNING = 1
    SUCCESS = 2
    FAILURE = 3
    CANCELLED = 4
    SKIPPED = 5
    EXITED = 6

    @property
    def is_completed(self) -> bool:
        return self >= StageStatus.SUCCESS


STAGE_ANSWERS = frozenset(
    {StageStatus.SUCCESS, StageStatus.FAILURE, StageStatus.SKIPPED, StageStatus.EXITED}
)
"""What a plugin may answer about a stage that it ran; upstream's SDK promises the same."""


class SyncStrategy(IntEnum):
    """How a deployment is carried out."""

    AUTO = 0
    QUICK_SYNC = 1
    PIPELINE = 2


class ManualOperation(IntEnum):
    """What a person may do to a running stage."""

    UNKNOWN = 0
    SKIP = 1
    APPROVE = 2
    NONE = 3


class Next(IntEnum):
    """What follows a finished stage."""

    CONTINUE = 0
    STOP_SUCCEEDED = 1
    STOP_UNSUCCESSFUL = 2


def after(stage: StageStatus) -> Next:
    """What a deployment does once a stage has ended."""
    match stage:
        case StageStatus.SUCCESS | StageStatus.SKIPPED:
            return Next.CONTINUE
        case StageStatus.EXITED:
            return Next.STOP_SUCCEEDED
        case StageStatus.FAILURE | StageStatus.CANCELLED:
            return Next.STOP_UNSUCCESSFUL
        case StageStatus.NOT_STARTED_YET | StageStatus.RUNNING:
            raise ValueError(f"stage is still {stage.name}")
        case _:
            assert_never(stage)


def may_become(current: DeploymentStatus, following: DeploymentStatus) -> bool:
    """A deployment only moves forward, and a completed one stays as it is."""
    return not current.is_completed and current <= following


def began_at(stage: PipelineStage) -> int:
    """When a stage that runs began, in unix seconds; 0 for any other.

    A report of a status says when it was reached, and the wire has one field for it.
    """
    return stage.completed_at if StageStatus(stage.status) is StageStatus.RUNNING else 0


def asking_chain(deployment: Deployment) -> str:
    """The chain that asked for a deployment, empty when it was something else.

    It is another than that of the deployment when the application begins a chain of its own.
    """
    trigger = deployment.trigger
    return trigger.commander if trigger.strategy_summary == IN_CHAIN else ""


def triggered_by(deployment: Deployment) -> str:
    """Who asked for a deployment, in words for people, or else who wrote its commit."""
    trigger, chain = deployment.trigger, deployment.deployment_chain_id
    if chain and trigger.commander == chain:
        return "its deployment chain"
    if asking_chain(deployment):
        return "a deployment chain"
    return trigger.commander or trigger.commit.author
