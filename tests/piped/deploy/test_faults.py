# SPDX-License-Identifier: Apache-2.0
"""Every failure leads to a status and a reason that users understand, and nothing is lost."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from pipecd.config.piped import PluginSpec
from pipecd.model.clock import utc_now
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus, StageStatus
from pipecd.piped.deploy import run
from servers.deployer import OpenStand

ACT = "  pipeline: {stages: [{name: ACT}]}\n"


def status(deployment: Any) -> str:
    return DeploymentStatus(deployment.status).name


def script(run: str) -> str:
    return f"  pipeline: {{stages: [{{name: SCRIPT_RUN, with: {{run: {run!r}}}}}]}}\n"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param("  pipeline: {stages: [\n", r"cart/app\.pipecd\.yaml:\d+:\d+: ", id="a file that is no YAML"),
        pytest.param("  timeout: soon\n", r"spec\.timeout: .*soon", id="a value that means nothing"),
    ],
)  # fmt: skip
async def test_an_invalid_configuration_fails_with_file_and_line(
    open_stand: OpenStand, spec: str, reason: str
) -> None:
    async with open_stand() as stand, stand.piped():
        done = await stand.finished(await stand.trigger(stand.push(spec)))
        assert status(done) == "FAILURE"
        assert done.status_reason.startswith("Unable to plan the deployment (")
        assert re.search(reason, done.status_reason)


async def test_the_reason_names_a_missing_directory(open_stand: OpenStand) -> None:
    async with open_stand() as stand, stand.piped():
        stand.push(ACT)
        stand.origin.git("rm", "-rq", "cart")
        stand.origin.git("commit", "-qm", "no cart")
        done = await stand.finished(await stand.trigger(stand.origin.git("rev-parse", "HEAD")))
        assert status(done) == "FAILURE"
        assert "application config file cart/app.pipecd.yaml was not found" in done.status_reason


async def test_a_deployment_completes_although_its_application_cannot_be_updated(
    open_stand: OpenStand,
) -> None:
    async with open_stand() as stand:
        refused = "ReportApplicationMostRecentDeployment"
        stand.plane.gate.refusals[refused] = grpc.StatusCode.INTERNAL
        with capture_logs(processors=[merge_contextvars]) as logs:
            async with stand.piped() as deployer:
                deployer.context.api._chance = lambda: 0.00001
                done = await stand.finished(await stand.trigger(stand.push(ACT)))
        assert status(done) == "SUCCESS"
        assert stand.plane.gate.count(refused) == 10
        (failed,) = [entry for entry in logs if "report given up" in entry["event"]]
        assert failed["report"] == "most recent successful deployment"
        assert failed["application"] == stand.application.id
        assert failed["application_name"] == "cart"
        assert "INTERNAL" in failed["error"]


async def test_a_deploying_flag_that_cannot_be_cleared_stops_nothing(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        await stand.plane.cases.application_reports.report_deploying(
            stand.application.id, True, by=stand.plane.piped.caller
        )
        refused = "ReportApplicationDeployingStatus"
        stand.plane.gate.refusals[refused] = grpc.StatusCode.NOT_FOUND
        with capture_logs() as logs:
            async with stand.piped():
                await stand.plane.gate.refused.wait_for(refused)
                stand.plane.gate.open()
                done = await stand.finished(await stand.trigger(stand.push(ACT)))
        assert status(done) == "SUCCESS"
        (failed,) = [entry for entry in logs if "deploying flag" in entry["event"]]
        assert (failed["application"], failed["application_name"]) == (stand.application.id, "cart")


@pytest.mark.parametrize("piped", ["goes on", "is started again"])
async def test_a_stage_completes_while_the_control_plane_is_unavailable(
    open_stand: OpenStand, piped: str
) -> None:
    """More lines than fit into one report, and nobody to take them until long after the end."""
    async with open_stand() as stand:
        mark = stand.plane.directory / "over"
        run = f"echo first; while ! test -e {mark}; do sleep 0.01; done; seq 2500; echo last >> {mark}"
        async with stand.piped() as deployer:
            id = await stand.trigger(stand.push(script(run)))
            running = await stand.until(
                id, lambda d: bool(d.stages) and d.stages[0].status == StageStatus.RUNNING
            )
            stage_id = running.stages[0].id
            await stand.plane.wait_for(lambda: stand.plane.log_lines(id, stage_id), bool)
            stand.plane.gate.close()
            mark.touch()
            journal = deployer.context.workspace / "deployments" / id / "journal.json"
            async with asyncio.timeout(30):
                while not journal.exists():  # noqa: ASYNC110 - a file tells nobody
                    await asyncio.sleep(0.02)
            if piped == "goes on":
                stand.plane.gate.open()
                await stand.finished(id)
        stand.plane.gate.open()
        async with stand.piped():
            done = await stand.finished(id)
        assert status(done) == "SUCCESS"
        log = await stand.plane.stage_log(id, stage_id)
        lines = ["first", *(str(n) for n in range(1, 2501)), "The script succeeded"]
        assert [block.log for block in log.blocks] == lines
        assert log.completed
        assert mark.read_text() == "last\n", "the script ran once"


# It dies as often as the file says, over its stage or over the plan, and then does its work.
MORTAL = '''#!{python}
"""A plugin that dies."""
import os, pathlib, time
from pipecd.sdk import PlannedStage, Stage, StageContext, StagePlugin, StageResult, serve

def die():
    lives = pathlib.Path({lives!r})
    left = int(lives.read_text())
    lives.write_text(str(left - 1))
    if left > 0:
        os._exit(3)

class Mortal(StagePlugin):
    stages = (Stage("MORTAL"), Stage("UNPLANNED"), Stage("HANGING"))

    async def plan_stage(self, requested, *, rollback):
        if requested.name == "UNPLANNED":
            die()
        return [PlannedStage(requested.name, requested.index)]

    async def execute(self, stage: StageContext) -> StageResult:
        if stage.name == "MORTAL":
            die()
        if stage.name == "HANGING":
            time.sleep(600)
        return StageResult.succeeded("alive")

if __name__ == "__main__":
    serve(Mortal)
'''


def mortal(stand: Any, deaths: int) -> tuple[PluginSpec, Path]:
    """A plugin that dies so often, and where it counts that."""
    lives = stand.plane.directory / "lives"
    lives.write_text(str(deaths))
    program = stand.plane.directory / "mortal"
    program.write_text(MORTAL.format(python=sys.executable, lives=str(lives)))
    program.chmod(0o755)
    return PluginSpec(name="mortal", url=f"file://{program}"), lives


async def ended(stand: Any, stage: str) -> Any:
    """The deployment of a pipeline with that stage once it is over; plugins take time to start."""
    id = await stand.trigger(stand.push(f"  pipeline: {{stages: [{stage}]}}\n"))
    async with asyncio.timeout(50):
        while True:
            found = await stand.plane.deployment(id)
            if DeploymentStatus(found.status).is_completed:
                return found
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaths", "ends"),
    [
        pytest.param(1, "SUCCESS", id="once"),
        pytest.param(99, "FAILURE", id="every time"),
    ],
)
async def test_a_stage_is_retried_when_its_plugin_dies(
    open_stand: OpenStand, deaths: int, ends: str
) -> None:
    async with open_stand() as stand:
        spec, lives = mortal(stand, deaths)
        async with stand.piped([spec]):
            done = await ended(stand, "{name: MORTAL}")
        assert status(done) == ends
        (stage,) = done.stages
        told = [
            line for line in await stand.plane.log_lines(done.id, stage.id) if "exit code 3" in line
        ]
        assert told[0].startswith("plugin mortal ended with exit code 3")
        assert len(told) == min(deaths, 3)
        assert int(lives.read_text()) == deaths - min(deaths + 1, 3)
        if ends == "FAILURE":
            assert "given up after 3 attempts" in stage.status_reason
            assert "exit code 3" in done.status_reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deaths", "ends"),
    [
        pytest.param(1, "SUCCESS", id="once"),
        pytest.param(99, "FAILURE", id="every time"),
    ],
)
async def test_a_plan_is_retried_when_a_plugin_dies(
    open_stand: OpenStand, deaths: int, ends: str
) -> None:
    async with open_stand() as stand:
        spec, _ = mortal(stand, deaths)
        async with stand.piped([spec]):
            done = await ended(stand, "{name: UNPLANNED}")
        assert status(done) == ends
        if ends == "FAILURE":
            assert "plugin mortal ended with exit code 3" in done.status_reason
            assert "given up after 3 attempts" in done.status_reason


@pytest.mark.slow
async def test_the_stage_of_a_hanging_plugin_times_out(open_stand: OpenStand) -> None:
    async with open_stand() as stand:
        spec, _ = mortal(stand, 0)
        async with stand.piped([spec]):
            done = await ended(stand, "{name: HANGING, timeout: 1s}")
        (stage,) = done.stages
        assert (status(done), stage.status) == ("FAILURE", StageStatus.FAILURE)
        assert done.status_reason == f"Timed out while executing stage {stage.id}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with little room, where one may make such."""
    place = tmp_path / "work"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=False)
    if made.returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.usefixtures("small_disk")
async def test_a_full_disk_defers_a_deployment_until_there_is_space(
    open_stand: OpenStand, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RETRY_AFTER", 0.05)
    async with open_stand() as stand:
        full = small_disk / "full"
        full.write_bytes(b"x" * (1 << 20))
        async with stand.piped():
            id = await stand.trigger(stand.push(ACT, ballast="y" * 5000))
            held = await stand.until(
                id, lambda d: "No space left" in d.metadata_v2.shared.keyValues.get(WAITING_FOR, "")
            )
            assert status(held) == "PENDING"
            full.unlink()
            done = await stand.finished(id)
        assert (status(done), done.metadata_v2.shared.keyValues[WAITING_FOR]) == ("SUCCESS", "")


async def test_a_clock_jump_affects_no_timeout(open_stand: OpenStand) -> None:
    jumps = [timedelta(days=n) for n in (0, 400, -400)]

    def now() -> datetime:
        jumps.append(jumps.pop(0))
        return utc_now() + jumps[-1]

    spec = "  pipeline: {stages: [{name: ACT, with: {do: succeed, undo: succeed}}, {name: ACT, with: {do: fail}}]}\n"
    async with open_stand() as stand, stand.piped(now=now):
        done = await stand.finished(await stand.trigger(stand.push(spec)))
        assert status(done) == "FAILURE"
        assert stand.begun == ["act 0", "act 1", "undo 0"]
