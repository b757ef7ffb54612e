# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""The plugin `waitapproval`: WAIT_APPROVAL succeeds once enough users approved, and fails when one
of them rejects."""

from collections.abc import Sequence

from pipecd.plugins.waitapproval.config import WaitApprovalOptions
from pipecd.sdk import (
    APPROVED_USERS_KEY,
    DISPLAY_KEY,
    REQUIRED_APPROVALS_KEY,
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
    """Counts the approvals of users; one rejection ends the stage."""

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
                metadata={REQUIRED_APPROVALS_KEY: str(options.min_approver_num)},
            ),
        )

    async def execute(self, stage: StageContext) -> StageResult:
        options = stage.options(WaitApprovalOptions)
        required = options.min_approver_num
        # Approvals are saved with the stage, because a restarted piped may not receive the commands
        # again.
        saved = await stage.metadata.get(APPROVED_USERS_KEY)
        approved = saved.split(", ") if saved else []
        approvers = ", ".join(options.approvers) or "anyone"
        stage.log.info(f"Waiting for {required} approval(s) from: {approvers}")
        if approved:
            stage.log.info(f"Approved before the restart by: {', '.join(approved)}")
        commands = stage.commands()
        while len(approved) < required:
            command = await anext(commands)
            user = command.commander
            if command.kind is StageCommandKind.SKIP:
                continue
            # The control plane refuses these commands as well.
            if options.approvers and user not in options.approvers:
                stage.log.info(f"Ignored the {command.kind.value} from {user}, not an approver")
                continue
            if command.kind is StageCommandKind.REJECT:
                return StageResult.failed(f"Rejected by {user}: {command.reason}")
            if user in approved:
                stage.log.info(f"{user} has approved already")
                continue
            approved.append(user)
            stage.log.info(f"Got approval from {user} ({len(approved)} of {required})")
            names = ", ".join(approved)
            await stage.metadata.put(
                {APPROVED_USERS_KEY: names, DISPLAY_KEY: f"Approved by: {names}"}
            )
        return StageResult.succeeded(f"Approved by: {', '.join(approved)}")


PLUGIN = WaitApprovalPlugin
