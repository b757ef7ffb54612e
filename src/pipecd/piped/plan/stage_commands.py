# SPDX-License-Identifier: Apache-2.0
"""The results of commands for a stage that has ended: approvals, rejections and skips."""

from pipecd.model.command import REJECTION_KEY
from pipecd.model.deployment import StageStatus
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.deployment_pb2 import PipelineStage

_CONTINUED = (StageStatus.SUCCESS, StageStatus.SKIPPED, StageStatus.EXITED)


def failure_reason(command: Command, stage: PipelineStage, ended: StageStatus) -> str:
    """Returns why a command for a stage that ended so has failed; empty if it has succeeded.

    Whoever approves or skips a stage wants it to succeed, whoever rejects it does not.
    """
    wants_success = REJECTION_KEY not in command.metadata
    if wants_success == (ended in _CONTINUED):
        return ""
    return f"the stage {stage.name} had already ended: {ended.name}"
