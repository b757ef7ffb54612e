# SPDX-License-Identifier: Apache-2.0
"""Deployments from pending to their end, against a real control plane."""

import asyncio
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus, StageStatus, SyncStrategy
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache
from servers.control_plane import stage_statuses
from servers.deployer import OpenDeployer

RUNNING, ROLLING_BACK = DeploymentStatus.RUNNING, DeploymentStatus.ROLLING_BACK


def pipeline(*stages: str, more: str = "") -> str:
    """A pipeline of ACT stages, each written as `do`, `do/undo` or with fields after a space."""
    lines = [more, "  pipeline:", "    stages:"]
    for stage in stages:
        word, _, fields = stage.partition(" ")
        do, _, undo = word.partition("/")
        lines.append(f"      - {{name: ACT, with: {{do: {do!r}, undo: {undo!r}}}{fields}}}")
    return "\n".join(line for line in lines if line) + "\n"


async def wait_until_filled(cache: CommandCache | DeploymentCache) -> None:
    """Waits until a cache of a piped is not empty."""
    watch = cache.changes.watch()
    while not cache.all:
        assert await watch.wait(10)


def status(deployment: Any) -> str:
    return DeploymentStatus(deployment.status).name


@pytest.mark.parametrize(
    ("stages", "ends", "reason", "trace"),
    [
        pytest.param(["succeed", "succeed/succeed"], "SUCCESS", "The deployment was completed successfully", ["act 0", "act 1"], id="every stage succeeds"),
        pytest.param(["skip/succeed", "succeed"], "SUCCESS", "The deployment was completed successfully", ["act 0", "act 1"], id="a skipped stage lets the pipeline go on"),
        pytest.param(["exit/succeed", "succeed"], "SUCCESS", "The deployment was completed successfully", ["act 0"], id="a stage that exits ends the deployment successfully"),
        pytest.param(["succeed", "fail", "succeed"], "FAILURE", "Failed while executing stage {1} (it did not work)", ["act 0", "act 1"], id="without rollback stages a failure is the end"),
        pytest.param(["succeed/succeed", "fail/succeed", "succeed/succeed"], "FAILURE", "Failed while executing stage {1} (it did not work)", ["act 0", "act 1", "undo 0", "undo 1", "undo 2"], id="a failure is rolled back"),
        pytest.param(["raise/succeed"], "FAILURE", "Failed while executing stage {0} (plugin act failed: ZeroDivisionError: a bug in the plugin)", ["act 0", "undo 0"], id="a bug in a plugin is a failure with its cause"),
        pytest.param(["fail/fail", "succeed/raise"], "FAILURE", "Failed while executing stage {0} (it did not work)", ["act 0", "undo 0", "undo 1"], id="a failing rollback goes on and does not change the ending"),
    ],
)  # fmt: skip
async def test_the_results_of_stages_decide_the_status_of_a_deployment(
    open_setup: OpenDeployer, stages: list[str], ends: str, reason: str, trace: list[str]
) -> None:
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(pipeline(*stages)))
        done = await setup.finished(id)
        assert status(done) == ends
        assert done.status_reason == reason.format(*(s.id for s in done.stages))
        assert setup.started == trace
        assert not (await setup.app()).deploying


async def test_stages_report_their_status_and_log(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(pipeline("skip", "fail/fail", "succeed")))
        done = await setup.finished(id)
        assert stage_statuses(done) == [
            "ACT SKIPPED",
            "ACT FAILURE",
            "ACT NOT_STARTED_YET",
            "ACT_ROLLBACK FAILURE",
        ]
        assert done.stages[1].status_reason == "it did not work"
        assert list(done.stages[3].requires) == [done.stages[1].id]
        assert await setup.plane.log_lines(id, done.stages[1].id) == [
            "act 1: fail",
            "it did not work",
        ]
        assert (await setup.plane.stage_log(id, done.stages[1].id)).completed


async def test_the_last_success_is_the_running_commit_of_the_next_deployment(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup, setup.piped():
        first = setup.push(pipeline("succeed"))
        await setup.finished(await setup.trigger(first))
        last = (await setup.app()).most_recently_successful_deployment
        assert (last.trigger.commit.hash, last.config_filename) == (first, "app.pipecd.yaml")
        assert last.completed_at > 0
        second = await setup.finished(await setup.trigger(setup.push(pipeline("succeed"))))
        assert second.running_commit_hash == first
        assert second.running_config_filename == "app.pipecd.yaml"


@pytest.mark.parametrize(
    ("how", "rolls_back"),
    [
        pytest.param({}, True, id="cancelled"),
        pytest.param({"rollback": True}, True, id="cancelled with a rollback demanded"),
        pytest.param({"no_rollback": True}, False, id="cancelled without rollback"),
    ],
)
async def test_a_user_cancels_a_running_stage(
    open_setup: OpenDeployer, how: dict[str, bool], rolls_back: bool
) -> None:
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(pipeline("hang/succeed", "succeed")))
        await setup.trace.wait_for("act 0 begins")
        command = await setup.plane.wait_for_command(await setup.cancel(id, **how))
        assert command.status == CommandStatus.SUCCEEDED
        done = await setup.plane.deployment(id)
        assert status(done) == "CANCELLED"
        assert done.status_reason == f"Cancelled by root while executing stage {done.stages[0].id}"
        assert StageStatus(done.stages[0].status) is StageStatus.CANCELLED
        assert setup.started == (["act 0", "undo 0"] if rolls_back else ["act 0"])
        assert "act 0 is stopped" in setup.trace
        assert await setup.plane.log_lines(id, done.stages[0].id) == [
            "act 0: hang",
            "Cancelled by root",
        ]
        assert (await setup.plane.stage_log(id, done.stages[0].id)).completed


async def test_a_forced_rollback_without_rollback_stages_is_mentioned(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup, setup.piped():
        spec = pipeline("hang/succeed", more="  planner: {autoRollback: false}")
        id = await setup.trigger(setup.push(spec))
        await setup.trace.wait_for("act 0 begins")
        await setup.plane.wait_for_command(await setup.cancel(id, rollback=True))
        done = await setup.plane.deployment(id)
        assert stage_statuses(done) == ["ACT CANCELLED"]
        assert "there is no rollback, as planner.autoRollback is off" in done.status_reason


async def test_no_stage_starts_after_a_cancel(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped() as deployer:
        id = await setup.trigger(setup.push(pipeline("hang/succeed", "succeed")))
        await setup.trace.wait_for("act 0 begins")
        # The stage ends by itself while its report waits for the control plane.
        setup.plane.gate.close("ReportStageStatusChanged")
        setup.release_stage("act 0")
        await setup.cancel(id)
        await wait_until_filled(deployer.context.commands)
        setup.plane.gate.open()
        done = await setup.finished(id)
        assert status(done) == "CANCELLED"
        assert stage_statuses(done)[:2] == ["ACT SUCCESS", "ACT NOT_STARTED_YET"]
        assert done.status_reason == (
            f"Cancelled by root while executing the previous stage of {done.stages[1].id}"
        )
        assert setup.started == ["act 0", "undo 0"]


async def test_a_pending_deployment_is_cancelled_at_once(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup, setup.piped():
        commit = setup.push(pipeline("hang"))
        first = await setup.trigger(commit, when=1_700_000_000)
        await setup.trace.wait_for("act 0 begins")
        second = await setup.trigger(commit, when=1_700_000_001)
        command = await setup.plane.wait_for_command(await setup.cancel(second))
        assert command.status == CommandStatus.SUCCEEDED
        assert status(await setup.plane.deployment(second)) == "CANCELLED"
        assert status(await setup.plane.deployment(first)) == "RUNNING"
        assert (await setup.app()).deploying
        setup.release_stage("act 0")
        assert status(await setup.finished(first)) == "SUCCESS"


async def test_a_deployment_is_cancelled_while_it_is_planned(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped() as deployer:
        setup.plane.gate.close("GetApplicationMostRecentDeployment")
        id = await setup.trigger(setup.push(pipeline("succeed")))
        await wait_until_filled(deployer.context.deployments)
        command_id = await setup.cancel(id)
        await wait_until_filled(deployer.context.commands)
        await asyncio.sleep(0.05)
        setup.plane.gate.open()
        assert (await setup.plane.wait_for_command(command_id)).status == CommandStatus.SUCCEEDED
        done = await setup.plane.deployment(id)
        assert (status(done), setup.trace) == ("CANCELLED", [])
        assert done.status_reason == "Deployment was cancelled by root while planning"


async def test_a_cancel_during_the_rollback_changes_nothing(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(pipeline("fail/hang")))
        await setup.trace.wait_for("undo 0 begins")
        command_id = await setup.cancel(id)
        await asyncio.sleep(0.05)
        setup.release_stage("undo 0")
        done = await setup.finished(id)
        assert (status(done), stage_statuses(done)[1]) == ("FAILURE", "ACT_ROLLBACK SUCCESS")
        assert (await setup.plane.wait_for_command(command_id)).status == CommandStatus.FAILED


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(pipeline("hang/succeed , timeout: 500ms"), id="the limit of the stage"),
        pytest.param(pipeline("hang/succeed", more="  timeout: 500ms"), id="the limit of the deployment"),
    ],
)  # fmt: skip
async def test_a_stage_that_exceeds_its_timeout_fails(open_setup: OpenDeployer, spec: str) -> None:
    async with open_setup() as setup, setup.piped():
        id = await setup.trigger(setup.push(spec))
        done = await setup.finished(id)
        assert status(done) == "FAILURE"
        assert done.status_reason == f"Timed out while executing stage {done.stages[0].id}"
        assert stage_statuses(done) == ["ACT FAILURE", "ACT_ROLLBACK SUCCESS"]
        assert setup.trace[:3] == ["act 0 begins", "act 0 is stopped", "undo 0 begins"]
        assert (await setup.plane.log_lines(id, done.stages[0].id))[-1] == "Timed out after 500ms"


async def test_one_deployment_at_a_time_as_they_were_triggered(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        commit = setup.push(pipeline("hang"))
        # Whatever the clock said.
        older = await setup.trigger(commit, when=1_700_000_009)
        younger = await setup.trigger(commit, when=1_700_000_001)
        async with setup.piped():
            await setup.until(older, lambda d: d.status == RUNNING)
            await asyncio.sleep(0.05)
            assert status(await setup.plane.deployment(younger)) == "PENDING"
            setup.release_stage("act 0")
            assert status(await setup.finished(older)) == "SUCCESS"
            assert status(await setup.finished(younger)) == "SUCCESS"
        assert setup.started == ["act 0", "act 0"]


async def test_a_stage_is_skipped_by_skip_on(open_setup: OpenDeployer) -> None:
    skip = " , skipOn: {commitMessagePrefixes: ['docs:'], paths: ['cart/*.md']}"
    async with open_setup() as setup, setup.piped():
        spec = pipeline(f"succeed{skip}", "succeed")
        first = await setup.finished(await setup.trigger(setup.push(spec)))
        assert stage_statuses(first) == ["ACT SUCCESS", "ACT SUCCESS"]
        commit = setup.push(spec, "tidy up", **{"a.md": "words"})
        by_path = await setup.finished(await setup.trigger(commit, "tidy up"))
        assert stage_statuses(by_path) == ["ACT SKIPPED", "ACT SUCCESS"]
        assert by_path.stages[0].status_reason == (
            "Skipped because all changed files match skipOn.paths"
        )
        commit = setup.push(spec, "docs: more", code="x")
        by_message = await setup.finished(await setup.trigger(commit, "docs: more"))
        assert stage_statuses(by_message) == ["ACT SKIPPED", "ACT SUCCESS"]
        lines = await setup.plane.log_lines(by_message.id, by_message.stages[0].id)
        assert lines == ['Skipped because the commit message starts with "docs:"']


async def test_a_plugin_gets_the_stages_that_were_skipped_before(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        spec = pipeline("succeed", "skip", "list-skipped", "skip")
        done = await setup.finished(await setup.trigger(setup.push(spec)))
        lines = await setup.plane.log_lines(done.id, done.stages[2].id)
        assert lines == ["act 2: list-skipped", "skipped: [1]"]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param("  pipeline: {stages: [{name: DANCE}]}\n", "no plugin found for the stage DANCE; the plugins of this piped offer: ACT, ", id="a stage that no plugin offers"),
        pytest.param("  pipeline: {stages: [{name: WAIT_APPROVAL}]}\n", "approvers must be set", id="an option that is missing"),
        pytest.param("  description: nothing\n", "no plugin specified", id="nothing to deploy with"),
        pytest.param("  plugins: {act: {}}\n", "no plugin of the application has a quick sync", id="nothing to quick sync with"),
    ],
)  # fmt: skip
async def test_a_failed_plan_has_a_reason(open_setup: OpenDeployer, spec: str, reason: str) -> None:
    async with open_setup() as setup, setup.piped():
        done = await setup.finished(await setup.trigger(setup.push(spec)))
        assert status(done) == "FAILURE"
        assert done.status_reason.startswith("Unable to plan the deployment (")
        assert reason in done.status_reason


async def test_the_reason_names_a_missing_commit(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        setup.push(pipeline("succeed"))
        done = await setup.finished(await setup.trigger("0123456789" * 4))
        assert "commit 0123456789012345678901234567890123456789 is not in" in done.status_reason


async def test_a_user_may_request_the_pipeline(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        commit = setup.push(pipeline("succeed"))
        id = await setup.trigger(commit, strategy=SyncStrategy.PIPELINE)
        done = await setup.finished(id)
        assert (done.summary, done.trigger.sync_strategy) == ("as requested", SyncStrategy.PIPELINE)


async def test_a_stale_deploying_flag_is_cleared(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        await setup.set_deploying()
        async with setup.piped():
            await setup.plane.wait_for(setup.app, lambda application: not application.deploying)
        assert setup.plane.gate.count("ReportApplicationDeployingStatus") == 1


async def test_a_deployment_whose_application_was_deleted_is_cancelled(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline("succeed")))
        admin = User(setup.application.project_id, "root", ("Admin",))
        await setup.plane.cases.applications.delete(setup.application.id, by=admin)
        async with setup.piped():
            done = await setup.finished(id)
        assert status(done) == "CANCELLED"
        assert "application cart is deleted" in done.status_reason
        assert setup.started == []
