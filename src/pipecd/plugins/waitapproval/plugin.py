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
    StageCommandKind,
    StageContext,
    StagePlugin,
    StageResult,
)


class WaitApprovalPlugin(StagePlugin):
    """Counts the people who approve; who may is checked by the control plane."""

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
        who = ", ".join(options.approvers) or "anyone"
        stage.log.info(f"Waiting for {wanted} approval(s) from: {who}")
        # The commands stay with the control plane until the stage ends, so a restart finds them.
        approved: dict[str, None] = {}
        async for command in stage.commands():
            if command.kind is not StageCommandKind.APPROVE:
                continue
            if command.commander in approved:
                stage.log.info(f"{command.commander} has approved already")
                continue
            approved[command.commander] = None
            stage.log.info(f"Got approval from {command.commander} ({len(approved)} of {wanted})")
            if len(approved) >= wanted:
                break
        names = ", ".join(approved)
        await stage.metadata.put({APPROVED_USERS_KEY: names, DISPLAY_KEY: f"Approved by: {names}"})
        return StageResult.succeeded(f"Approved by: {names}")


PLUGIN = WaitApprovalPlugin
