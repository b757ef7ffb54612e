# SPDX-License-Identifier: Apache-2.0
"""Statuses of a deployment and its stages, and which transitions are legal.

Start here: these are the nouns that every other package uses. The numbers are those of the wire; a
test compares each enum with its descriptor.
"""

import re
from enum import IntEnum
from typing import assert_never

from pipecd.model.ids import is_uuid
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage

WAITING_FOR = "pipecd/waiting-for"
"""The key of the shared metadata that says what a pending deployment waits for."""

IN_CHAIN = "Sync application in chain"
"""The strategy summary of a deployment triggered by a chain, whose id is the commander."""

DISPLAY_KEY = "pipecd/stage-display-metadata"
"""The key of the stage metadata that the console shows."""

APPROVED_USERS_KEY = "pipecd/stage-approved-users"
"""The key of the stage metadata with the users who approved the stage, for notifications."""

REQUIRED_APPROVALS_KEY = "pipecd/stage-required-approvals"
"""The key of the stage metadata with the number of approvals that the stage waits for."""

TIMEOUT_KEY = "pipecd/stage-timeout"
"""The key of the stage metadata with the timeout of a stage that waits for approval, in seconds."""

ROLLBACK_STAGE = "ROLLBACK"
"""The rollback stage of v0."""

STATUS_PREFIX = "DEPLOYMENT_"
"""The prefix of the names of deployment statuses in the API."""


class DeploymentStatus(IntEnum):
    """The status of a deployment."""

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
    """The status of a stage."""

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


PLUGIN_STAGE_STATUSES = frozenset(
    {StageStatus.SUCCESS, StageStatus.FAILURE, StageStatus.SKIPPED, StageStatus.EXITED}
)
"""The statuses that a plugin may return for a stage, as in upstream's SDK."""


class SyncStrategy(IntEnum):
    """How a deployment syncs an application."""

    AUTO = 0
    QUICK_SYNC = 1
    PIPELINE = 2


class ArtifactKind(IntEnum):
    """What an artifact is that a deployment brings a version of."""

    UNKNOWN = 0
    CONTAINER_IMAGE = 1
    S3_OBJECT = 2
    GIT_SOURCE = 3
    TERRAFORM_MODULE = 4


class ManualOperation(IntEnum):
    """What a user may do to a running stage."""

    UNKNOWN = 0
    SKIP = 1
    APPROVE = 2
    NONE = 3


class NextStep(IntEnum):
    """What a deployment does after a completed stage."""

    CONTINUE = 0
    STOP_SUCCEEDED = 1
    STOP_UNSUCCESSFUL = 2


def next_step(stage: StageStatus) -> NextStep:
    """Returns what a deployment does after a stage with this status."""
    match stage:
        case StageStatus.SUCCESS | StageStatus.SKIPPED:
            return NextStep.CONTINUE
        case StageStatus.EXITED:
            return NextStep.STOP_SUCCEEDED
        case StageStatus.FAILURE | StageStatus.CANCELLED:
            return NextStep.STOP_UNSUCCESSFUL
        case StageStatus.NOT_STARTED_YET | StageStatus.RUNNING:
            raise ValueError(f"stage is still {stage.name}")
        case _:
            assert_never(stage)


def can_transition(current: DeploymentStatus, following: DeploymentStatus) -> bool:
    """Whether the transition is legal: only forward, and never from a completed status."""
    return not current.is_completed and current <= following


def running_since(stage: PipelineStage) -> int:
    """Returns when a running stage started, in Unix seconds; 0 for any other stage.

    A status report carries the time of the change, and the API has one field for it.
    """
    return stage.completed_at if StageStatus(stage.status) is StageStatus.RUNNING else 0


def is_rollback(stage: PipelineStage) -> bool:
    """Whether it is a rollback stage, which v0 tells by its name only."""
    return stage.rollback or stage.name == ROLLBACK_STAGE or stage.name.endswith("_ROLLBACK")


def with_stage_names(text: str, deployment: Deployment) -> str:
    """The text with the names of stages where a piped wrote their ids, as upstream does."""
    names = {stage.id: stage.name for stage in deployment.stages if stage.id}
    if not names:
        return text
    ids = "|".join(map(re.escape, names))
    pattern = rf"(?:(?<=stage )|(?<=stage of ))(?:{ids})(?![\w-])"
    return re.sub(pattern, lambda id: names[id[0]], text)


def triggering_chain(deployment: Deployment) -> str:
    """Returns the chain that triggered a deployment, or an empty text.

    It differs from the deployment's own chain when the application starts a chain of its own.
    """
    trigger = deployment.trigger
    return trigger.commander if trigger.strategy_summary == IN_CHAIN else ""


def triggered_by(deployment: Deployment) -> str:
    """Returns who triggered a deployment, for display: a chain, a user or the commit author.

    In upstream, and in earlier versions, the commander of a sync with an API key is the id of the
    key; here it is a text that names the key and who created it.
    """
    trigger, chain = deployment.trigger, deployment.deployment_chain_id
    if chain and trigger.commander == chain:
        return "its deployment chain"
    if triggering_chain(deployment):
        return "a deployment chain"
    if is_uuid(trigger.commander):
        return f"API key {trigger.commander}"
    return trigger.commander or trigger.commit.author
