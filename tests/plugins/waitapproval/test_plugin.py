# SPDX-License-Identifier: Apache-2.0
"""WAIT_APPROVAL waits for people and counts each of them once."""

import asyncio
from pathlib import Path

import pytest

from pipecd.plugins.waitapproval.plugin import PLUGIN
from pipecd.sdk import ManualOperation, RequestedStage, StageCommandKind, StageStatus, UserMistake
from pipecd.sdk.testing import StageBench

APPROVE, SKIP = StageCommandKind.APPROVE, StageCommandKind.SKIP


async def test_one_approval_is_enough_and_is_noticed_at_once(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    waiting = asyncio.ensure_future(bench.run("WAIT_APPROVAL", {"approvers": ["ann", "bob"]}))
    await bench.host.until(lambda: bool(bench.host.lines))
    bench.host.tell(APPROVE, "bob")
    async with asyncio.timeout(1):
        result = await waiting
    assert (result.status, result.message) == (StageStatus.SUCCESS, "Approved by: bob")
    assert bench.host.stage_metadata == {
        "pipecd/stage-approved-users": "bob",
        "pipecd/stage-display-metadata": "Approved by: bob",
    }
    assert bench.host.lines[0] == "Waiting for 1 approval(s) from: ann, bob"


async def test_a_person_counts_once_and_a_skip_not_at_all(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    for kind, who in ((APPROVE, "ann"), (APPROVE, "ann"), (SKIP, "eve"), (APPROVE, "bob")):
        bench.host.tell(kind, who)
    options = {"approvers": ["ann", "bob"], "minApproverNum": 2}
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", options)
    assert result.message == "Approved by: ann, bob"
    assert "ann has approved already" in bench.host.lines


async def test_approvals_given_before_a_restart_still_count(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    options = {"approvers": ["ann", "bob"], "minApproverNum": 2}
    bench.host.tell(APPROVE, "ann")
    waiting = asyncio.ensure_future(bench.run("WAIT_APPROVAL", options))
    await bench.host.until(lambda: bool(bench.host.stage_metadata))
    waiting.cancel()
    await asyncio.wait({waiting})
    assert bench.host.stage_metadata["pipecd/stage-display-metadata"] == "Approved by: ann"
    resumed = StageBench(PLUGIN(), tmp_path)  # whose control plane has forgotten old commands
    resumed.host.stage_metadata = bench.host.stage_metadata
    for who in ("ann", "bob"):
        resumed.host.tell(APPROVE, who)
    async with asyncio.timeout(1):
        assert (await resumed.run("WAIT_APPROVAL", options)).message == "Approved by: ann, bob"
    assert resumed.host.lines[1:3] == [
        "Approved before the restart by: ann", "ann has approved already"
    ]  # fmt: skip
    async with asyncio.timeout(1):
        again = await resumed.run("WAIT_APPROVAL", options)
    assert again.message == "Approved by: ann, bob", "nothing is left to wait for"


async def test_somebody_else_does_not_count(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    for who in ("eve", "bob"):
        bench.host.tell(APPROVE, who)
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", {"approvers": ["ann", "bob"]})
    assert result.message == "Approved by: bob"
    assert "Ignored the approval from eve, who is not in approvers" in bench.host.lines


async def test_anyone_means_anyone(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    bench.host.tell(APPROVE, "eve")
    async with asyncio.timeout(1):
        result = await bench.run("WAIT_APPROVAL", {"anyone": True})
    assert result.message == "Approved by: eve"


async def test_the_plan_says_who_may_approve() -> None:
    requested = RequestedStage("WAIT_APPROVAL", 3, "look first", b'{"approvers": ["ann"]}')
    (planned,) = await PLUGIN().plan_stage(requested, rollback=True)
    assert (planned.index, planned.description) == (3, "look first")
    assert (planned.operation, planned.operators) == (ManualOperation.APPROVE, ("ann",))


async def test_a_stage_that_nobody_may_approve_is_not_planned() -> None:
    with pytest.raises(UserMistake, match="approvers must be set"):
        await PLUGIN().plan_stage(RequestedStage("WAIT_APPROVAL", 0, "", b"{}"), rollback=True)
