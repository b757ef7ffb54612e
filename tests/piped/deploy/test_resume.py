# SPDX-License-Identifier: Apache-2.0
"""A piped may stop at any instruction; the next one resumes and repeats no completed stage."""

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from pipecd.model.clock import utc_now
from pipecd.model.command import CommandStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.piped.deploy.context import logs_directory
from pipecd.piped.pluginhost.masking import LogMasker, SecretMasks
from pipecd.piped.pluginhost.stage_logs import LogSpool
from pipecd.proto.model.logblock_pb2 import LogBlock
from servers.control_plane import stage_statuses
from servers.deployer import OpenDeployer

# Every call that carrying out a deployment makes, in the order of its first occurrence.
CALLS = [
    "GetDeployment",
    "ReportApplicationDeployingStatus",
    "GetApplicationMostRecentDeployment",
    "ReportDeploymentPlanned",
    "ReportDeploymentStatusChanged",
    "ReportStageStatusChanged",
    "ReportStageLogsFromLastCheckpoint",
    "ReportDeploymentCompleted",
]


def pipeline(*stages: str) -> str:
    """A pipeline of ACT stages, each written as `do` or `do/undo`."""
    lines = ["  pipeline:", "    stages:"]
    for stage in stages:
        do, _, undo = stage.partition("/")
        lines.append(f"      - {{name: ACT, with: {{do: {do!r}, undo: {undo!r}}}}}")
    return "\n".join(lines) + "\n"


def status(deployment: Any) -> str:
    return DeploymentStatus(deployment.status).name


SUCCEEDING = (["succeed", "succeed"], "SUCCESS", ["act 0", "act 1"])
FAILING = (["succeed/succeed", "fail/fail"], "FAILURE", ["act 0", "act 1", "undo 0", "undo 1"])


@pytest.mark.parametrize(
    ("call", "stages", "ends", "trace"),
    [
        *(pytest.param(call, *SUCCEEDING, id=f"{call}, on its way to success") for call in CALLS),
        *(pytest.param(call, *FAILING, id=f"{call}, on its way to failure") for call in CALLS),
        pytest.param("ReportApplicationMostRecentDeployment", *SUCCEEDING, id="the last success"),
    ],
)
async def test_a_piped_that_stops_during_any_call_resumes(
    open_setup: OpenDeployer, call: str, stages: list[str], ends: str, trace: list[str]
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline(*stages)))
        setup.plane.gate.close(call)
        async with setup.piped(), asyncio.timeout(10):
            await setup.plane.gate.refused.wait_for(call)
        setup.plane.gate.open()
        async with setup.piped():
            done = await setup.finished(id)
        assert status(done) == ends
        ended = Counter(line.removesuffix(" ends") for line in setup.trace if "ends" in line)
        assert ended == Counter(trace), "no stage that ended has run again"


async def test_a_running_stage_is_resumed_and_completed_ones_are_not_repeated(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline("succeed", "hang", "succeed")))
        async with setup.piped():
            await setup.trace.wait_for("act 1 begins")
        left = await setup.plane.deployment(id)
        assert status(left) == "RUNNING"
        assert stage_statuses(left) == ["ACT SUCCESS", "ACT RUNNING", "ACT NOT_STARTED_YET"]
        assert not (await setup.plane.stage_log(id, left.stages[1].id)).completed
        setup.release_stage("act 1")
        async with setup.piped():
            done = await setup.finished(id)
        assert status(done) == "SUCCESS"
        assert setup.started == ["act 0", "act 1", "act 1", "act 2"]
        lines = await setup.plane.log_lines(id, left.stages[1].id)
        assert lines == [
            "act 1: hang",
            "Piped was restarted and resumes this stage",
            "act 1: hang",
            "released",
        ]


def later(minutes: float) -> Callable[[], datetime]:
    """A clock of a piped that is started so much later."""
    return lambda: utc_now() + timedelta(minutes=minutes)


async def test_the_timeout_of_a_stage_continues_after_a_restart(
    open_setup: OpenDeployer,
) -> None:
    spec = "  pipeline: {stages: [{name: ACT, timeout: 1h, with: {do: hang}}]}\n"
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(spec))
        async with setup.piped():
            await setup.trace.wait_for("act 0 begins")
        (stage,) = (await setup.plane.deployment(id)).stages
        async with setup.piped(now=later(40)):
            await setup.plane.wait_for(
                lambda: setup.plane.log_lines(id, stage.id),
                lambda lines: lines.count("act 0: hang") == 2,
            )
        (resumed,) = (await setup.plane.deployment(id)).stages
        assert (resumed.status, resumed.completed_at) == (stage.status, stage.completed_at)
        async with setup.piped(now=later(61)):
            done = await setup.finished(id)
        assert (status(done), setup.started) == ("FAILURE", ["act 0", "act 0"])
        assert done.status_reason == f"Timed out while executing stage {stage.id}"
        assert (await setup.plane.log_lines(id, stage.id))[-1] == "Timed out after 1h0m0s"


@pytest.mark.parametrize("stages", [("hang",), ("succeed", "hang")])
async def test_the_timeout_of_a_deployment_continues_after_a_restart(
    open_setup: OpenDeployer, stages: tuple[str, ...]
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push("  timeout: 1h\n" + pipeline(*stages)))
        last = f"act {len(stages) - 1}"
        async with setup.piped():
            await setup.trace.wait_for(f"{last} begins")
        async with setup.piped(now=later(61)):
            done = await setup.finished(id)
        assert (status(done), setup.started.count(last)) == ("FAILURE", 1)
        assert done.status_reason == f"Timed out while executing stage {done.stages[-1].id}"


async def test_a_clock_that_was_set_back_does_not_shorten_a_timeout(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push("  timeout: 1h\n" + pipeline("hang")))
        async with setup.piped(now=later(600)):
            await setup.trace.wait_for("act 0 begins")
        setup.release_stage("act 0")
        async with setup.piped():
            done = await setup.finished(id)
        assert status(done) == "SUCCESS"


async def test_unsent_log_lines_of_a_killed_piped_are_sent_after_the_restart(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline("hang")))
        async with setup.piped():
            await setup.trace.wait_for("act 0 begins")
        stage_id = (await setup.plane.deployment(id)).stages[0].id
        setup.release_stage("act 0")
        # It read two more lines and was killed amid keeping the third.
        logs = logs_directory(setup.plane.directory / "work", id)
        masks = SecretMasks()
        masks.add(id, ["hunter2"])
        spool = LogSpool(logs / stage_id, LogMasker(masks, id))
        for index, text in enumerate(("one", "hunter2"), int(time.time() * 1_000_000)):
            spool.add(LogBlock(index=index, log=text, created_at=1))
        with (logs / stage_id).open("a") as file:
            file.write("CAMSBXRo")
        async with setup.piped():
            await setup.finished(id)
        assert await setup.plane.log_lines(id, stage_id) == [
            "act 0: hang",
            "one",
            "******",
            "Piped was restarted and resumes this stage",
            "act 0: hang",
            "released",
        ]
        assert not logs.exists() or not list(logs.iterdir())


@pytest.mark.parametrize("journal", ["kept", "lost"])
async def test_an_interrupted_rollback_is_finished(open_setup: OpenDeployer, journal: str) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline("succeed/succeed", "fail/hang")))
        async with setup.piped():
            await setup.trace.wait_for("undo 1 begins")
        left = await setup.plane.deployment(id)
        assert status(left) == "ROLLING_BACK"
        if journal == "lost":
            shutil.rmtree(setup.plane.directory / "work")
        setup.release_stage("undo 1")
        async with setup.piped():
            done = await setup.finished(id)
        assert (status(done), done.status_reason) == ("FAILURE", left.status_reason)
        assert "it did not work" in done.status_reason
        assert setup.started == ["act 0", "act 1", "undo 0", "undo 1", "undo 1"]


async def test_a_cancelled_rollback_ends_as_cancelled_after_a_restart(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline("hang/hang")))
        async with setup.piped():
            await setup.trace.wait_for("act 0 begins")
            command_id = await setup.cancel(id)
            await setup.trace.wait_for("undo 0 begins")
        shutil.rmtree(setup.plane.directory / "work")
        setup.release_stage("undo 0")
        async with setup.piped():
            done = await setup.finished(id)
            assert (
                await setup.plane.wait_for_command(command_id)
            ).status == CommandStatus.SUCCEEDED
        assert status(done) == "CANCELLED"
        assert done.status_reason == f"Cancelled by root while executing stage {done.stages[0].id}"


async def test_a_cancel_without_rollback_stays_without_rollback_after_a_restart(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline("hang/succeed")))
        async with setup.piped(), asyncio.timeout(10):
            await setup.trace.wait_for("act 0 begins")
            setup.plane.gate.close("ReportDeploymentCompleted")
            await setup.cancel(id, no_rollback=True)
            await setup.plane.gate.refused.wait_for("ReportDeploymentCompleted")
        setup.plane.gate.open()
        async with setup.piped():
            assert status(await setup.finished(id)) == "CANCELLED"
        assert setup.started == ["act 0"]


@pytest.mark.parametrize(
    ("do", "started"),
    [
        pytest.param("stubborn", ["act 0"], id="one that ended in spite of it is over"),
        pytest.param("offended", ["act 0", "act 0"], id="one that calls being stopped a failure is not"),
    ],
)  # fmt: skip
async def test_a_stage_during_the_shutdown_of_piped(
    open_setup: OpenDeployer, do: str, started: list[str]
) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline(do)))
        async with setup.piped():
            await setup.trace.wait_for("act 0 begins")
        assert status(await setup.plane.deployment(id)) == "RUNNING"
        setup.release_stage("act 0")
        async with setup.piped():
            assert status(await setup.finished(id)) == "SUCCESS"
        assert setup.started == started


async def test_a_cancel_while_piped_was_stopped(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(pipeline("succeed/succeed", "hang")))
        async with setup.piped():
            await setup.trace.wait_for("act 1 begins")
        command_id = await setup.cancel(id)
        async with setup.piped():
            assert (
                await setup.plane.wait_for_command(command_id)
            ).status == CommandStatus.SUCCEEDED
        done = await setup.plane.deployment(id)
        assert status(done) == "CANCELLED"
        assert setup.started[-1] == "undo 0"


async def test_the_files_of_a_completed_deployment_are_removed(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        work = setup.plane.directory / "work" / "deployments"
        leftover = work / "killed" / "sources" / "secret.txt"
        leftover.parent.mkdir(parents=True)
        leftover.write_text("decrypted")
        id = await setup.trigger(setup.push(pipeline("hang")))
        async with setup.piped():
            await setup.trace.wait_for("act 0 begins")
            assert (work / id / "sources").is_dir()
            assert not leftover.exists(), "what a killed piped left behind is removed at start"
        assert not (work / id / "sources").exists()
        setup.release_stage("act 0")
        async with setup.piped() as deployer:
            await setup.finished(id)
            watch = deployer.context.deployments.changes.watch()
            while deployer._running:
                await watch.wait(0.05)
        assert not (work / id).exists()
