# SPDX-License-Identifier: Apache-2.0
"""The stage WAIT_APPROVAL: which approvals count, and how it resumes."""

import asyncio
from pathlib import Path

import pytest

from pipecd.plugins.waitapproval.plugin import PLUGIN
from pipecd.sdk import ManualOperation, RequestedStage, StageCommandKind, StageStatus, UserMistake
from pipecd.sdk.testing import StageBench

APPROVE, SKIP = StageCommandKind.APPROVE, StageCommandKind.SKIP
REJECT = StageCommandKind.REJECT


async def test_an_approval_ends_the_wait_immediately(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    waiting = asyncio.ensure_future(bench.run("WAIT_APPROVAL", {"approvers": ["ann", "bob"]}))
    await bench.host.until(lambda: bool(bench.host.lines))
    bench.host.tell(APPROVE, "bob")
    async with asyncio.timeout(1):
        result = await waiting
    assert (result.status, result.message) == (StageStatus.SUCCESS, "Approved by: bob")
    assert bench.host.stage_metadata == {
        "pipecd/stage-approved-users": "bob",
        "pipecd/stage-approvals": '[{"user": "bob", "api_key": ""}]',
        "pipecd/stage-display-metadata": "Approved by: bob",
    }
    assert bench.host.lines[0] == "Waiting for 1 approval from: ann, bob"


async def test_the_log_says_where_a_timeout_that_has_no_effect_belongs(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    bench.host.tell(APPROVE, "ann")
    async with asyncio.timeout(1):
        await bench.run("WAIT_APPROVAL", {"approvers": ["ann"], "timeout": "20s"})
    assert "write it beside the name of the stage" in bench.host.lines[1]


async def test_a_user_counts_once_and_other_commands_do_not_count(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    for kind, user in ((APPROVE, "ann"), (APPROVE, "ann"), (SKIP, "eve"), (APPROVE, "bob")):
        bench.host.tell(kind, user)
    options = {"approvers": ["ann", "bob"], "minApproverNum": 2}
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", options)
    assert result.message == "Approved by: ann, bob"
    assert "ann has approved already" in bench.host.lines


async def test_approvals_before_a_restart_count(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    options = {"approvers": ["ann", "bob"], "minApproverNum": 2}
    bench.host.tell(APPROVE, "ann")
    waiting = asyncio.ensure_future(bench.run("WAIT_APPROVAL", options))
    await bench.host.until(lambda: bool(bench.host.stage_metadata))
    waiting.cancel()
    await asyncio.wait({waiting})
    assert bench.host.stage_metadata["pipecd/stage-display-metadata"] == "Approved by: ann"
    # The control plane no longer lists the old commands.
    resumed = StageBench(PLUGIN(), tmp_path)
    resumed.host.stage_metadata = bench.host.stage_metadata
    for user in ("ann", "bob"):
        resumed.host.tell(APPROVE, user)
    async with asyncio.timeout(1):
        assert (await resumed.run("WAIT_APPROVAL", options)).message == "Approved by: ann, bob"
    assert resumed.host.lines[1:3] == [
        "Approved before the restart by: ann", "ann has approved already"
    ]  # fmt: skip
    async with asyncio.timeout(1):
        again = await resumed.run("WAIT_APPROVAL", options)
    assert again.message == "Approved by: ann, bob", "no further approval is required"


async def test_a_user_with_an_api_key_counts_once(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    bench.host.tell(APPROVE, "ann", api_key="ci")
    bench.host.tell(APPROVE, "ann")
    bench.host.tell(APPROVE, "bob")
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", {"anyone": True, "minApproverNum": 2})
    assert result.message == "Approved by: ann (API key ci), bob"
    assert bench.host.stage_metadata["pipecd/stage-approved-users"] == "ann, bob"
    assert "ann has approved already" in bench.host.lines


async def test_a_name_with_a_comma_is_one_user_after_a_restart(tmp_path: Path) -> None:
    options = {"anyone": True, "minApproverNum": 2}
    bench = StageBench(PLUGIN(), tmp_path)
    bench.host.tell(APPROVE, "Doe, Jane", api_key="a, b")
    waiting = asyncio.ensure_future(bench.run("WAIT_APPROVAL", options))
    await bench.host.until(lambda: bool(bench.host.stage_metadata))
    waiting.cancel()
    await asyncio.wait({waiting})
    resumed = StageBench(PLUGIN(), tmp_path)
    resumed.host.stage_metadata = bench.host.stage_metadata
    resumed.host.tell(APPROVE, "Doe, Jane")
    resumed.host.tell(APPROVE, "bob")
    async with asyncio.timeout(1):
        result = await resumed.run("WAIT_APPROVAL", options)
    assert result.message == "Approved by: Doe, Jane (API key a, b), bob"


async def test_approvals_that_upstream_saved_count(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    bench.host.stage_metadata = {"pipecd/stage-approved-users": "ann, bob"}
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", {"anyone": True, "minApproverNum": 2})
    assert result.message == "Approved by: ann, bob"


async def test_an_approval_from_a_user_not_in_approvers_is_ignored(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    for user in ("eve", "bob"):
        bench.host.tell(APPROVE, user)
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", {"approvers": ["ann", "bob"]})
    assert result.message == "Approved by: bob"
    assert "Ignored the approve from eve, not an approver" in bench.host.lines


async def test_with_anyone_every_approval_counts(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    bench.host.tell(APPROVE, "eve")
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", {"anyone": True})
    assert result.message == "Approved by: eve"


async def test_the_planned_stage_has_the_approvers() -> None:
    requested = RequestedStage("WAIT_APPROVAL", 3, "approve the release", b'{"approvers": ["ann"]}')
    (planned,) = await PLUGIN().plan_stage(requested, rollback=True)
    assert (planned.index, planned.description) == (3, "approve the release")
    assert (planned.operation, planned.operators) == (ManualOperation.APPROVE, ("ann",))
    assert planned.metadata == {"pipecd/stage-required-approvals": "1"}


async def test_one_rejection_fails_the_stage(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    bench.host.tell(APPROVE, "ann")
    bench.host.tell(REJECT, "eve", "I am not an approver")
    bench.host.tell(REJECT, "bob", "not on a Friday")
    async with asyncio.timeout(1):
        options = {"approvers": ["ann", "bob"], "minApproverNum": 2}
        result = await bench.run("WAIT_APPROVAL", options)
    assert result.status is StageStatus.FAILURE
    assert result.message == "Rejected by bob: not on a Friday"


async def test_a_stage_without_approvers_is_not_planned() -> None:
    with pytest.raises(UserMistake, match="approvers must be set"):
        await PLUGIN().plan_stage(RequestedStage("WAIT_APPROVAL", 0, "", b"{}"), rollback=True)
