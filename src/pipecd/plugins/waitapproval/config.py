# SPDX-License-Identifier: Apache-2.0
"""The configuration of the waitapproval plugin, in both generations."""

from typing import Self

from pydantic import field_validator, model_validator

from pipecd.sdk.config import Duration, PluginConfig, SkipOn, Spec, V0Stage, refuse

V0_TIMEOUT = Duration(6 * 3600)


class ApprovalOptions(Spec):
    """The users who may approve, and how many approvals are required."""

    approvers: tuple[str, ...] = ()
    min_approver_num: int = 1

    @field_validator("min_approver_num")
    @classmethod
    def _positive(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"minApproverNum {value} should be greater than 0")
        return value


class WaitApprovalOptions(ApprovalOptions):
    """WAIT_APPROVAL; with `anyone` every member of the project may approve."""

    anyone: bool = False

    @model_validator(mode="after")
    def _has_approvers(self) -> Self:
        refuse(
            self,
            (
                not self.approvers and not self.anyone,
                "approvers",
                "approvers must be set, or write anyone: true",
            ),
            (
                self.approvers and self.anyone,
                "anyone",
                "only approvers or anyone can be set",
            ),
        )
        return self


class V0WaitApprovalOptions(ApprovalOptions):
    """WAIT_APPROVAL of the first generation; without approvers anyone may approve."""

    timeout: Duration = V0_TIMEOUT
    skip_on: SkipOn = SkipOn()


CONFIG = PluginConfig(
    name="waitapproval",
    stages={"WAIT_APPROVAL": WaitApprovalOptions},
    v0_stages={
        "WAIT_APPROVAL": V0Stage(
            V0WaitApprovalOptions,
            translate=lambda options: {
                **({"approvers": [*options.approvers]} if options.approvers else {"anyone": True}),
                "minApproverNum": options.min_approver_num,
            },
            timeout=V0_TIMEOUT,
        )
    },
)
