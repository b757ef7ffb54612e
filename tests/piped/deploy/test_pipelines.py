# SPDX-License-Identifier: Apache-2.0
"""Whole deployments: real plugins, approvals, chains, and an unavailable control plane."""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.model.backoff import Backoff
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import Conflict
from pipecd.piped.deploy import run
from pipecd.piped.source.sources import Source, Sources
from pipecd.proto.model import chain_pb2
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.command_pb2 import Command
from servers.control_plane import stage_statuses
from servers.deployer import OpenDeployer

PIPELINE = """
  pipeline:
    stages:
      - name: SCRIPT_RUN
        with:
          run: echo "$SR_APPLICATION_NAME at $SR_TRIGGERED_COMMIT_HASH"; cat greeting
          onRollback: echo undone
      - name: WAIT
        with: {duration: 50ms}
      - name: WAIT_APPROVAL
        with: {approvers: [root, ann], minApproverNum: 2}
"""


def status(deployment: Any) -> str:
    return DeploymentStatus(deployment.status).name


async def test_a_pipeline_of_real_stages_with_two_approvers(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        commit = setup.push(PIPELINE, greeting="hello\n")
        id = await setup.trigger(commit)
        waiting = await setup.until(
            id, lambda d: len(d.stages) > 2 and d.stages[2].status == StageStatus.RUNNING
        )
        script, _, approval, _ = waiting.stages
        assert list(approval.authorized_operators) == ["root", "ann"]
        assert approval.metadata == {
            "pipecd/stage-required-approvals": "2",
            "pipecd/stage-timeout": "21600",
        }
        ids: list[str] = []
        for name in ("root", "ann"):
            user = User("shop", name, ("Admin",))
            ids.append(await setup.plane.cases.deployments.approve(id, approval.id, by=user))
            # An approval counts at once, although the stage waits for another one.
            await setup.plane.wait_for_command(ids[-1])
        done = await setup.finished(id)
        assert status(done) == "SUCCESS"
        assert stage_statuses(done)[-1] == "SCRIPT_RUN_ROLLBACK NOT_STARTED_YET"
        assert [(await setup.plane.wait_for_command(c)).status for c in ids] == [
            CommandStatus.SUCCEEDED
        ] * 2
        shown = done.stages[2].metadata["pipecd/stage-display-metadata"]
        assert shown in ("Approved by: root, ann", "Approved by: ann, root")
        assert await setup.plane.log_lines(id, script.id) == [
            f"cart at {commit}",
            "hello",
            "The script succeeded",
        ]
        assert done.stages[1].metadata["startTime"].isdecimal()


async def test_one_person_with_an_api_key_is_one_approver(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        cases = setup.plane.cases
        id = await setup.trigger(setup.push(PIPELINE, greeting="hello\n"))
        waiting = await setup.until(
            id, lambda d: len(d.stages) > 2 and d.stages[2].status == StageStatus.RUNNING
        )
        stage = waiting.stages[2].id
        root, ann = (User("shop", name, ("Admin",)) for name in ("root", "ann"))
        key = await cases.api_keys.generate("ci", APIKey.READ_WRITE, may_approve=True, by=root)
        caller = await cases.api_keys.verify(key)
        await setup.plane.wait_for_command(await cases.deployments.approve(id, stage, by=caller))
        with pytest.raises(Conflict, match="root has approved this stage already"):
            await cases.deployments.approve(id, stage, by=caller)
        await cases.deployments.approve(id, stage, by=root)
        lines = setup.plane.log_lines
        while "root has approved already" not in await lines(id, stage):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        running = await cases.deployments.get(id, by=root)
        assert running.stages[2].status == StageStatus.RUNNING, "two approvals of one person"
        await cases.deployments.approve(id, stage, by=ann)
        done = await setup.finished(id)
        assert status(done) == "SUCCESS"
        shown = done.stages[2].metadata["pipecd/stage-display-metadata"]
        assert shown == "Approved by: root (API key ci), ann"


async def test_a_rejected_approval_fails_the_deployment(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(PIPELINE, greeting="hello\n"))
        waiting = await setup.until(
            id, lambda d: len(d.stages) > 2 and d.stages[2].status == StageStatus.RUNNING
        )
        rejection = Command(
            piped_id=waiting.piped_id,
            application_id=waiting.application_id,
            project_id=waiting.project_id,
            deployment_id=id,
            stage_id=waiting.stages[2].id,
            commander="ann",
            type=Command.SKIP_STAGE,
            skip_stage=Command.SkipStage(deployment_id=id, stage_id=waiting.stages[2].id),
            metadata={"RejectionReason": "not on a Friday"},
        )
        command_id = await setup.plane.cases.commands.add(rejection)
        done = await setup.finished(id)
        assert status(done) == "FAILURE"
        assert done.stages[2].status_reason == "Rejected by ann: not on a Friday"
        assert stage_statuses(done)[-1] == "SCRIPT_RUN_ROLLBACK SUCCESS"
        handled = await setup.plane.wait_for_command(command_id)
        assert handled.status == CommandStatus.SUCCEEDED


async def test_a_script_is_rolled_back_when_a_later_stage_fails(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        spec = PIPELINE.replace("duration: 50ms", "duration: 10h").replace(
            "      - name: WAIT\n", "      - name: WAIT\n        timeout: 50ms\n"
        )
        id = await setup.trigger(setup.push(spec, greeting=""))
        done = await setup.finished(id)
        assert stage_statuses(done) == [
            "SCRIPT_RUN SUCCESS",
            "WAIT FAILURE",
            "WAIT_APPROVAL NOT_STARTED_YET",
            "SCRIPT_RUN_ROLLBACK SUCCESS",
        ]
        assert "undone" in await setup.plane.log_lines(id, done.stages[3].id)


async def test_a_stage_continues_while_the_control_plane_is_unavailable(
    open_setup: OpenDeployer,
) -> None:
    script = "for i in $(seq 40); do echo line $i; sleep 0.02; done"
    spec = f"  pipeline: {{stages: [{{name: SCRIPT_RUN, with: {{run: '{script}'}}}}]}}\n"
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(spec))
        running = await setup.until(
            id, lambda d: bool(d.stages) and d.stages[0].status == StageStatus.RUNNING
        )
        stage_id = running.stages[0].id
        await setup.plane.wait_for(lambda: setup.plane.log_lines(id, stage_id), bool)
        setup.plane.gate.close()
        async with asyncio.timeout(10):
            await setup.plane.gate.refused.wait_for("ReportStageLogs")
        setup.plane.gate.open()
        done = await setup.finished(id)
        assert status(done) == "SUCCESS"
        lines = await setup.plane.log_lines(id, stage_id)
        assert lines == [*(f"line {n}" for n in range(1, 41)), "The script succeeded"]
        assert (await setup.plane.stage_log(id, stage_id)).completed


@pytest.mark.parametrize(
    ("before", "ends"),
    [
        pytest.param(chain_pb2.DEPLOYMENT_BLOCK_SUCCESS, "SUCCESS", id="succeeded"),
        pytest.param(chain_pb2.DEPLOYMENT_BLOCK_FAILURE, "CANCELLED", id="failed"),
    ],
)
async def test_a_deployment_of_a_chain_waits_for_the_block_before_it(
    open_setup: OpenDeployer, monkeypatch: pytest.MonkeyPatch, before: Any, ends: str
) -> None:
    monkeypatch.setattr(run, "RETRY", Backoff(0.05, 0.05))
    async with open_setup() as setup, setup.piped():
        blocks = [chain_pb2.ChainBlock(status=chain_pb2.DEPLOYMENT_BLOCK_RUNNING), chain_pb2.ChainBlock()]  # fmt: skip
        chain = chain_pb2.DeploymentChain(id="chain-1", project_id="shop", blocks=blocks)
        await setup.plane.stores.chains.add(chain)
        commit = setup.push("  pipeline: {stages: [{name: ACT}]}\n")
        id = await setup.trigger(
            commit, deployment_chain_id="chain-1", deployment_chain_block_index=1
        )
        while setup.plane.gate.calls.count("InChainDeploymentPlannable") < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert status(await setup.plane.deployment(id)) == "PENDING"

        def end_block(stored: Any) -> None:
            stored.blocks[0].status = before

        await setup.plane.stores.chains.update("chain-1", end_block)
        done = await setup.finished(id)
        assert status(done) == ends
        if ends == "CANCELLED":
            assert done.status_reason.endswith("ended with FAILURE")


async def test_a_deployment_that_waits_for_its_chain_can_be_cancelled(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup, setup.piped():
        blocks = [chain_pb2.ChainBlock(), chain_pb2.ChainBlock()]
        await setup.plane.stores.chains.add(
            chain_pb2.DeploymentChain(id="chain-1", project_id="shop", blocks=blocks)
        )
        id = await setup.trigger(
            setup.push("  pipeline: {stages: [{name: ACT}]}\n"),
            deployment_chain_id="chain-1",
            deployment_chain_block_index=1,
        )
        while "InChainDeploymentPlannable" not in setup.plane.gate.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await setup.plane.wait_for_command(await setup.cancel(id))
        assert status(await setup.plane.deployment(id)) == "CANCELLED"


async def test_a_wakeup_continues_a_deployment_whose_chain_reached_its_block(
    open_setup: OpenDeployer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RETRY", Backoff(3600, 3600))
    async with open_setup() as setup, setup.piped() as deployer:
        blocks = [chain_pb2.ChainBlock(), chain_pb2.ChainBlock()]
        await setup.plane.stores.chains.add(
            chain_pb2.DeploymentChain(id="chain-1", project_id="shop", blocks=blocks)
        )
        id = await setup.trigger(
            setup.push("  pipeline: {stages: [{name: ACT}]}\n"),
            deployment_chain_id="chain-1",
            deployment_chain_block_index=1,
        )
        while "InChainDeploymentPlannable" not in setup.plane.gate.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

        def end_block(stored: Any) -> None:
            stored.blocks[0].status = chain_pb2.DEPLOYMENT_BLOCK_SUCCESS

        await setup.plane.stores.chains.update("chain-1", end_block)
        # What the wake-up stream does when a block of a chain has ended.
        deployer.context.deployments.schedule.wake()
        assert status(await setup.finished(id)) == "SUCCESS"


async def test_a_secret_in_the_output_of_a_script_is_masked(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped() as deployer:
        spec = (
            "  pipeline: {stages: [{name: SCRIPT_RUN, with: {run: 'echo my hunter22; exit 1'}}]}\n"
        )
        id = await setup.trigger(setup.push(spec))
        deployer.context.callbacks.masks.add(id, ["hunter22"])
        done = await setup.finished(id)
        assert (await setup.plane.log_lines(id, done.stages[0].id))[0] == "my ******"
        assert done.stages[0].status_reason == "The script exited with code 1: my ******"
        assert "hunter22" not in done.status_reason


@pytest.mark.slow
async def test_a_log_line_is_visible_within_a_moment(open_setup: OpenDeployer) -> None:
    """Written at one moment, read from the control plane at another; the usual one counts."""
    script = "for i in $(seq 15); do date +%s.%N; sleep 0.25; done"
    spec = f"  pipeline: {{stages: [{{name: SCRIPT_RUN, with: {{run: '{script}'}}}}]}}\n"
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(spec))
        running = await setup.until(
            id, lambda d: bool(d.stages) and d.stages[0].status == StageStatus.RUNNING
        )
        seen: dict[str, float] = {}
        async with asyncio.timeout(30), setup.plane.cases.bus.subscribe() as signals:
            async for _ in signals:
                for line in await setup.plane.log_lines(id, running.stages[0].id):
                    seen.setdefault(line, time.time())
                if len(seen) >= 15:
                    break
        late = [at - float(line) for line, at in seen.items() if line[0].isdecimal()]
        assert statistics.median(late) < 0.3


async def test_stages_share_a_working_copy_until_one_of_them_writes_to_it(
    open_setup: OpenDeployer, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Path] = []
    create = Sources.at

    async def counting(*args: Any, into: Path, **rest: Any) -> Source:
        created.append(into)
        return await create(*args, into=into, **rest)

    monkeypatch.setattr(Sources, "at", counting)
    scripts = ("cat app.pipecd.yaml", "touch made", "test ! -e made")
    stages = "".join(f'      - {{name: SCRIPT_RUN, with: {{run: "{run}"}}}}\n' for run in scripts)
    async with open_setup() as setup:
        commit = setup.push(f"  pipeline:\n    stages:\n{stages}")
        async with setup.piped():
            id = await setup.trigger(commit)
            done = await setup.finished(id)
    assert status(done) == "SUCCESS", done.status_reason
    planned, *others = created
    assert planned.parts[-2:] == ("plan", "target"), "the first two stages get that of the plan"
    assert [into.parts[-2:] for into in others] == [(done.stages[2].id, "target")]
