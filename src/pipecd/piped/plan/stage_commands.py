# SPDX-License-Identifier: Apache-2.0
"""The results of commands for a stage that has ended: approvals, rejections and skips."""

from pipecd.model.command import REJECTION_KEY, CommandKind
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import PipelineStage

_CONTINUED = (StageStatus.SUCCESS, StageStatus.SKIPPED, StageStatus.EXITED)
_ENDED = {
    StageStatus.SUCCESS: "succeeded",
    StageStatus.FAILURE: "failed",
    StageStatus.CANCELLED: "been cancelled",
    StageStatus.SKIPPED: "been skipped",
    StageStatus.EXITED: "ended the deployment",
}


def failure_reason(command: Command, stage: PipelineStage, ended: StageStatus) -> str:
    """Returns why a command for a stage that ended so has failed; empty if it has succeeded.

    Whoever approves a stage wants the deployment to continue, whoever rejects it does not. A stage
    that a person skipped says so; one that succeeded meanwhile was not skipped.
    """
    if REJECTION_KEY in command.metadata:
        is_done = ended not in _CONTINUED
    elif command.type == CommandKind.SKIP_STAGE:
        is_done = ended is StageStatus.SKIPPED
    else:
        is_done = ended in _CONTINUED
    if is_done:
        return ""
    if ended not in _ENDED:
        return f"the deployment had ended before the stage {stage.name} did"
    return f"the stage {stage.name} had already {_ENDED[ended]}"
