# SPDX-License-Identifier: Apache-2.0
"""Who may approve, in both generations."""

from collections.abc import Callable
from typing import Any

import pytest

from pipecd.config.application import ApplicationSpec, SkipOn
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.waitapproval.config import CONFIG, WaitApprovalOptions


def read(options: dict[str, Any]) -> WaitApprovalOptions:
    return decode_plain(options, WaitApprovalOptions, what="WAIT_APPROVAL")


def test_one_approver_is_enough_unless_told() -> None:
    assert read({"approvers": ["a"]}).min_approver_num == 1
    assert read({"approvers": ["a"], "minApproverNum": 0}).min_approver_num == 1
    assert read({"approvers": ["a", "b"], "minApproverNum": 2}).min_approver_num == 2


def test_anyone_may_be_let_to_approve() -> None:
    options = read({"anyone": True})
    assert (options.approvers, options.anyone) == ((), True)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param({}, "approvers must be set", id="nobody"),
        pytest.param({"approvers": []}, "approvers must be set", id="an empty list"),
        pytest.param(
            {"approvers": ["a"], "anyone": True}, "only approvers or anyone", id="some and anyone"
        ),
        pytest.param(
            {"approvers": ["a"], "minApproverNum": -1},
            "minApproverNum -1 should be greater than 0",
            id="less than nobody",
        ),
    ],
)
def test_approval_is_refused_by(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigMistake, match=told):
        read(options)


@pytest.mark.parametrize(
    ("options", "expected", "timeout"),
    [
        pytest.param({}, {"anyone": True, "minApproverNum": 1}, Duration(21600), id="by anyone"),
        pytest.param(
            {"approvers": ["a"], "minApproverNum": 2, "timeout": "1h"},
            {"approvers": ["a"], "minApproverNum": 2},
            Duration(3600),
            id="by those who are named",
        ),
    ],
)
def test_a_v0_stage_is_approved(
    read_v0: Callable[..., ApplicationSpec],
    options: dict[str, Any],
    expected: dict[str, Any],
    timeout: Duration,
) -> None:
    app = read_v0("LambdaApp", {"timeout": "12h"}, [{"name": "WAIT_APPROVAL", "with": options}])
    [stage] = app.pipeline.stages
    assert (stage.with_, stage.timeout) == (expected, timeout)
    assert decode_plain(stage.with_, CONFIG.stages["WAIT_APPROVAL"], what="WAIT_APPROVAL")


def test_a_v0_stage_can_be_skipped(read_v0: Callable[..., ApplicationSpec]) -> None:
    options = {"skipOn": {"commitMessagePrefixes": ["hotfix"]}}
    stages = [{"name": "WAIT_APPROVAL", "with": options}]
    [stage] = read_v0("TerraformApp", {}, stages).pipeline.stages
    assert stage.skip_on == SkipOn(commit_message_prefixes=("hotfix",))


def test_a_v0_stage_is_refused_with_less_than_nobody(
    read_v0: Callable[..., ApplicationSpec],
) -> None:
    stages = [{"name": "WAIT_APPROVAL", "with": {"minApproverNum": -1}}]
    with pytest.raises(ConfigMistake, match="minApproverNum -1 should be greater than 0"):
        read_v0("TerraformApp", {}, stages)
