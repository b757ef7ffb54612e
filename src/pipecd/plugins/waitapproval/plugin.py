# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""WAIT_APPROVAL lets the pipeline go on once enough people agreed."""

from collections.abc import Sequence

from pipecd.plugins.waitapproval.config import WaitApprovalOptions
from pipecd.sdk import (
    APPROVED_USERS_KEY,
    DISPLAY_KEY,
    ManualOperation,
    PlannedStage,
    RequestedStage,
    Stage,
    StageCommand,
    StageCommandKind,
    StageContext,
    StageLog,
    StagePlugin,
    StageResult,
)


class WaitApprovalPlugin(StagePlugin):
    """Counts the people who approve."""

    stages = (Stage("WAIT_APPROVAL", WaitApprovalOptions),)

    async def plan_stage(
        self, requested: RequestedStage, *, rollback: bool
    ) -> Sequence[PlannedStage]:
        options = requested.options(WaitApprovalOptions)
        return (
            PlannedStage(
                requested.name,
                requested.index,
                requested.description,
                operation=ManualOperation.APPROVE,
                operators=options.approvers,
            ),
        )

    async def execute(self, stage: StageContext) -> StageResult:
        options = stage.options(WaitApprovalOptions)
        wanted = options.min_approver_num
        # Those who approved are kept with the stage, as a restart may outlive their commands.
        approved = _names(await stage.metadata.get(APPROVED_USERS_KEY))
        who = ", ".join(options.approvers) or "anyone"
        stage.log.info(f"Waiting for {wanted} approval(s) from: {who}")
        if approved:
            stage.log.info(f"Approved before the restart by: {', '.join(approved)}")
        if len(approved) < wanted:
            async for command in stage.commands():
                if not _counts(command, options, approved, stage.log):
                    continue
                approved = (*approved, command.commander)
                told = f"Got approval from {command.commander} ({len(approved)} of {wanted})"
                stage.log.info(told)
                await stage.metadata.put(_shown(approved))
                if len(approved) >= wanted:
                    break
        return StageResult.succeeded(f"Approved by: {', '.join(approved)}")


def _counts(
    command: StageCommand, options: WaitApprovalOptions, approved: Sequence[str], log: StageLog
) -> bool:
    """Say whether a command is one more approval; if it is not, the log tells why."""
    if command.kind is not StageCommandKind.APPROVE:
        return False
    if command.commander in approved:
        log.info(f"{command.commander} has approved already")
        return False
    # The control plane refuses them too; whoever gets past it is not counted all the same.
    if options.approvers and command.commander not in options.approvers:
        log.info(f"Ignored the approval from {command.commander}, who is not in approvers")
        return False
    return True


def _names(kept: str | None) -> tuple[str, ...]:
    return tuple(kept.split(", ")) if kept else ()


def _shown(approved: Sequence[str]) -> dict[str, str]:
    names = ", ".join(approved)
    return {APPROVED_USERS_KEY: names, DISPLAY_KEY: f"Approved by: {names}"}


PLUGIN = WaitApprovalPlugin
