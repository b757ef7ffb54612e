# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G004 - a stage log takes whole lines, it is no logger
"""The plugin `waitapproval`: WAIT_APPROVAL succeeds once enough users approved, and fails when one
of them rejects."""

import json
from collections.abc import Sequence

from pipecd.plugins.waitapproval.approvals import (
    APPROVALS_KEY,
    Approval,
    from_metadata,
    has_approved,
    names,
    to_metadata,
)
from pipecd.plugins.waitapproval.config import WaitApprovalOptions
from pipecd.sdk import (
    APPROVED_USERS_KEY,
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
    """Counts the approvals of users, each once; one rejection ends the stage."""

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
        approvals = from_metadata(
            await stage.metadata.get(APPROVALS_KEY) or "",
            await stage.metadata.get(APPROVED_USERS_KEY) or "",
        )
        approvers = ", ".join(options.approvers) or "anyone"
        what = "1 approval" if required == 1 else f"{required} approvals"
        stage.log.info(f"Waiting for {what} from: {approvers}")
        # Where files of the first generation have it: the wait ends later than its author expects.
        if b'"timeout"' in stage.config and "timeout" in json.loads(stage.config):
            stage.log.info(
                "The timeout in the options of this stage has no effect: write it beside the name "
                "of the stage"
            )
        if approvals:
            stage.log.info(f"Approved before the restart by: {names(approvals)}")
        commands = stage.commands()
        while len(approvals) < required:
            command = await anext(commands)
            approval = Approval.of(command)
            if command.kind is StageCommandKind.SKIP:
                continue
            # The control plane refuses these commands as well.
            if options.approvers and approval.user not in options.approvers:
                stage.log.info(f"Ignored the {command.kind.value} from {approval}, not an approver")
                continue
            if command.kind is StageCommandKind.REJECT:
                return StageResult.failed(f"Rejected by {approval}: {command.reason}")
            if has_approved(approval.user, approvals):
                stage.log.info(f"{approval} has approved already")
                continue
            approvals.append(approval)
            stage.log.info(f"Got approval from {approval} ({len(approvals)} of {required})")
            await stage.metadata.put(to_metadata(approvals))
        return StageResult.succeeded(f"Approved by: {names(approvals)}")


PLUGIN = WaitApprovalPlugin
