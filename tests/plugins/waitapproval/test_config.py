# SPDX-License-Identifier: Apache-2.0
"""The configuration of the waitapproval plugin, in both generations."""

from typing import Any

import pytest

from pipecd.config.application import SkipOn
from pipecd.config.decode import decode_plain
from pipecd.config.report import ConfigMistake
from pipecd.config.units import Duration
from pipecd.plugins.waitapproval.config import CONFIG, WaitApprovalOptions
from plugins.conftest import ReadV0


def read(options: dict[str, Any]) -> WaitApprovalOptions:
    return decode_plain(options, WaitApprovalOptions, what="WAIT_APPROVAL")


def test_one_approval_is_required_by_default() -> None:
    assert read({"approvers": ["a"]}).min_approver_num == 1
    assert read({"approvers": ["a"], "minApproverNum": 0}).min_approver_num == 1
    assert read({"approvers": ["a", "b"], "minApproverNum": 2}).min_approver_num == 2


def test_anyone_may_approve() -> None:
    options = read({"anyone": True})
    assert (options.approvers, options.anyone) == ((), True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({}, "approvers must be set", id="no approvers"),
        pytest.param({"approvers": []}, "approvers must be set", id="an empty list"),
        pytest.param(
            {"approvers": ["a"], "anyone": True},
            "only approvers or anyone",
            id="approvers and anyone",
        ),
        pytest.param(
            {"approvers": ["a"], "minApproverNum": -1},
            "minApproverNum -1 should be greater than 0",
            id="a negative number",
        ),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigMistake, match=message):
        read(options)


@pytest.mark.parametrize(
    ("options", "expected", "timeout"),
    [
        pytest.param({}, {"anyone": True, "minApproverNum": 1}, Duration(21600), id="by anyone"),
        pytest.param(
            {"approvers": ["a"], "minApproverNum": 2, "timeout": "1h"},
            {"approvers": ["a"], "minApproverNum": 2},
            Duration(3600),
            id="by approvers",
        ),
    ],
)
def test_the_options_of_a_v0_stage(
    read_v0: ReadV0,
    options: dict[str, Any],
    expected: dict[str, Any],
    timeout: Duration,
) -> None:
    app = read_v0("LambdaApp", {"timeout": "12h"}, [{"name": "WAIT_APPROVAL", "with": options}])
    [stage] = app.pipeline.stages
    assert (stage.with_, stage.timeout) == (expected, timeout)
    assert decode_plain(stage.with_, CONFIG.stages["WAIT_APPROVAL"], what="WAIT_APPROVAL")


def test_skip_on_of_a_v0_stage_moves_to_the_stage(read_v0: ReadV0) -> None:
    options = {"skipOn": {"commitMessagePrefixes": ["hotfix"]}}
    stages = [{"name": "WAIT_APPROVAL", "with": options}]
    [stage] = read_v0("TerraformApp", {}, stages).pipeline.stages
    assert stage.skip_on == SkipOn(commit_message_prefixes=("hotfix",))


def test_a_v0_stage_with_a_negative_number_is_refused(
    read_v0: ReadV0,
) -> None:
    stages = [{"name": "WAIT_APPROVAL", "with": {"minApproverNum": -1}}]
    with pytest.raises(ConfigMistake, match="minApproverNum -1 should be greater than 0"):
        read_v0("TerraformApp", {}, stages)
