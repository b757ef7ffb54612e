# SPDX-License-Identifier: Apache-2.0
"""Every failure leads to a status and a reason that users understand, and nothing is lost."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from pipecd.config.piped import PluginSpec
from pipecd.model.backoff import Backoff
from pipecd.model.clock import utc_now
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus, StageStatus
from pipecd.piped.deploy import run
from servers.deployer import DeployerSetup, OpenDeployer
from servers.polling import eventually

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
    open_setup: OpenDeployer, spec: str, reason: str
) -> None:
    async with open_setup() as setup, setup.piped():
        done = await setup.finished(await setup.trigger(setup.push(spec)))
        assert status(done) == "FAILURE"
        assert done.status_reason.startswith("Unable to plan the deployment (")
        assert re.search(reason, done.status_reason)


async def test_the_reason_names_a_missing_directory(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup, setup.piped():
        setup.push(ACT)
        setup.origin.git("rm", "-rq", "cart")
        setup.origin.git("commit", "-qm", "no cart")
        done = await setup.finished(await setup.trigger(setup.origin.git("rev-parse", "HEAD")))
        assert status(done) == "FAILURE"
        assert "application config file cart/app.pipecd.yaml was not found" in done.status_reason


async def test_a_deployment_completes_although_its_application_cannot_be_updated(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        refused = "ReportApplicationMostRecentDeployment"
        setup.plane.gate.refusals[refused] = grpc.StatusCode.INTERNAL
        with capture_logs(processors=[merge_contextvars]) as logs:
            async with setup.piped() as deployer:
                deployer.context.api._chance = lambda: 0.00001
                done = await setup.finished(await setup.trigger(setup.push(ACT)))
        assert status(done) == "SUCCESS"
        assert setup.plane.gate.count(refused) == 10
        (failed,) = [entry for entry in logs if "report given up" in entry["event"]]
        assert failed["report"] == "most recent successful deployment"
        assert failed["application"] == setup.application.id
        assert failed["application_name"] == "cart"
        assert "INTERNAL" in failed["error"]


async def test_a_deployment_is_deferred_while_its_deploying_flag_cannot_be_set(
    open_setup: OpenDeployer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RETRY", Backoff(0.05, 0.05))
    async with open_setup() as setup:
        refusals = setup.plane.gate.refusals
        refusals["ReportApplicationDeployingStatus"] = grpc.StatusCode.INTERNAL
        async with setup.piped() as deployer:
            deployer.context.api._chance = lambda: 0.00001
            id = await setup.trigger(setup.push(ACT))
            deferred = await setup.until(
                id, lambda d: "INTERNAL" in d.metadata_v2.shared.keyValues.get(WAITING_FOR, "")
            )
            assert status(deferred) == "PENDING"
            refusals.clear()
            done = await setup.finished(id)
        assert status(done) == "SUCCESS"


class RecordedBackoff(Backoff):
    """Retries at once and records after how many failures."""

    failures: ClassVar[list[int]]

    def after(self, failures: int) -> float:
        self.failures.append(failures)
        return 0.01


async def test_a_deferred_deployment_is_retried_soon_and_then_less_and_less_often(
    open_setup: OpenDeployer, monkeypatch: pytest.MonkeyPatch
) -> None:
    RecordedBackoff.failures = []
    monkeypatch.setattr(run, "RETRY", RecordedBackoff(0, 0))
    async with open_setup() as setup:
        refusals = setup.plane.gate.refusals
        async with setup.piped() as deployer:
            deployer.context.api._chance = lambda: 0.00001
            for _ in range(2):
                refusals["ReportApplicationDeployingStatus"] = grpc.StatusCode.INTERNAL
                id = await setup.trigger(setup.push(ACT))
                count = len(RecordedBackoff.failures)
                await eventually(lambda count=count: len(RecordedBackoff.failures) >= count + 3)
                refusals.clear()
                assert status(await setup.finished(id)) == "SUCCESS"
                assert RecordedBackoff.failures[count : count + 3] == [1, 2, 3]


async def test_a_deploying_flag_that_cannot_be_cleared_stops_nothing(
    open_setup: OpenDeployer,
) -> None:
    async with open_setup() as setup:
        await setup.set_deploying()
        refused = "ReportApplicationDeployingStatus"
        setup.plane.gate.refusals[refused] = grpc.StatusCode.NOT_FOUND
        with capture_logs() as logs:
            async with setup.piped():
                await setup.plane.gate.refused.wait_for(refused)
                setup.plane.gate.open()
                done = await setup.finished(await setup.trigger(setup.push(ACT)))
        assert status(done) == "SUCCESS"
        (failed,) = [entry for entry in logs if "deploying flag" in entry["event"]]
        assert (failed["application"], failed["application_name"]) == (setup.application.id, "cart")


@pytest.mark.parametrize("piped", ["goes on", "is started again"])
async def test_a_stage_completes_while_the_control_plane_is_unavailable(
    open_setup: OpenDeployer, piped: str
) -> None:
    """The stage writes more lines than fit into one report; they arrive after the outage."""
    async with open_setup() as setup:
        mark = setup.plane.directory / "over"
        run = f"echo first; while ! test -e {mark}; do sleep 0.01; done; seq 2500; echo last >> {mark}"
        async with setup.piped() as deployer:
            id = await setup.trigger(setup.push(script(run)))
            running = await setup.until(
                id, lambda d: bool(d.stages) and d.stages[0].status == StageStatus.RUNNING
            )
            stage_id = running.stages[0].id
            await setup.plane.wait_for(lambda: setup.plane.log_lines(id, stage_id), bool)
            setup.plane.gate.close()
            mark.touch()
            journal = deployer.context.workspace / "deployments" / id / "journal.json"
            async with asyncio.timeout(30):
                while not journal.exists():  # noqa: ASYNC110 - a file cannot be awaited
                    await asyncio.sleep(0.02)
            if piped == "goes on":
                setup.plane.gate.open()
                await setup.finished(id)
        setup.plane.gate.open()
        async with setup.piped():
            done = await setup.finished(id)
        assert status(done) == "SUCCESS"
        log = await setup.plane.stage_log(id, stage_id)
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
    remaining_exits = pathlib.Path({remaining_exits!r})
    left = int(remaining_exits.read_text())
    remaining_exits.write_text(str(left - 1))
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


def mortal(setup: DeployerSetup, deaths: int) -> tuple[PluginSpec, Path]:
    """A plugin that dies so often, and where it counts that."""
    remaining_exits = setup.plane.directory / "remaining_exits"
    remaining_exits.write_text(str(deaths))
    program = setup.plane.directory / "mortal"
    program.write_text(MORTAL.format(python=sys.executable, remaining_exits=str(remaining_exits)))
    program.chmod(0o755)
    return PluginSpec(name="mortal", url=f"file://{program}"), remaining_exits


async def ended(setup: DeployerSetup, stage: str) -> Any:
    """The deployment of a pipeline with that stage once it is over; plugins take time to start."""
    id = await setup.trigger(setup.push(f"  pipeline: {{stages: [{stage}]}}\n"))
    async with asyncio.timeout(50):
        while True:
            deployment = await setup.plane.deployment(id)
            if DeploymentStatus(deployment.status).is_completed:
                return deployment
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
    open_setup: OpenDeployer, deaths: int, ends: str
) -> None:
    async with open_setup() as setup:
        spec, remaining_exits = mortal(setup, deaths)
        async with setup.piped([spec]):
            done = await ended(setup, "{name: MORTAL}")
        assert status(done) == ends
        (stage,) = done.stages
        lines = [
            line for line in await setup.plane.log_lines(done.id, stage.id) if "exit code 3" in line
        ]
        assert lines[0].startswith("plugin mortal ended with exit code 3")
        assert len(lines) == min(deaths, 3)
        assert int(remaining_exits.read_text()) == deaths - min(deaths + 1, 3)
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
    open_setup: OpenDeployer, deaths: int, ends: str
) -> None:
    async with open_setup() as setup:
        spec, _ = mortal(setup, deaths)
        async with setup.piped([spec]):
            done = await ended(setup, "{name: UNPLANNED}")
        assert status(done) == ends
        if ends == "FAILURE":
            assert "plugin mortal ended with exit code 3" in done.status_reason
            assert "given up after 3 attempts" in done.status_reason


@pytest.mark.slow
async def test_the_stage_of_a_hanging_plugin_times_out(open_setup: OpenDeployer) -> None:
    async with open_setup() as setup:
        spec, _ = mortal(setup, 0)
        async with setup.piped([spec]):
            done = await ended(setup, "{name: HANGING, timeout: 1s}")
        (stage,) = done.stages
        assert (status(done), stage.status) == ("FAILURE", StageStatus.FAILURE)
        assert done.status_reason == f"Timed out while executing stage {stage.id}"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system; skips the test without the permission to mount one."""
    place = tmp_path / "work"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], check=False)
    if made.returncode:
        pytest.skip("no right to mount a file system")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.usefixtures("small_disk")
async def test_a_full_disk_defers_a_deployment_until_there_is_space(
    open_setup: OpenDeployer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RETRY", Backoff(0.05, 0.05))
    async with open_setup() as setup:
        full = small_disk / "full"
        full.write_bytes(b"x" * (1 << 20))
        async with setup.piped():
            id = await setup.trigger(setup.push(ACT, ballast="y" * 5000))
            held = await setup.until(
                id, lambda d: "No space left" in d.metadata_v2.shared.keyValues.get(WAITING_FOR, "")
            )
            assert status(held) == "PENDING"
            full.unlink()
            done = await setup.finished(id)
        assert (status(done), done.metadata_v2.shared.keyValues[WAITING_FOR]) == ("SUCCESS", "")


async def test_a_repository_that_is_away_defers_a_deployment_until_it_is_back(
    open_setup: OpenDeployer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "RETRY", Backoff(0.05, 0.05))
    async with open_setup() as setup:
        id = await setup.trigger(setup.push(ACT))
        path = setup.origin.path
        away = path.rename(path.with_name("away"))
        async with setup.piped():
            held = await setup.until(
                id, lambda d: "not found" in d.metadata_v2.shared.keyValues.get(WAITING_FOR, "")
            )
            assert status(held) == "PENDING"
            away.rename(path)
            done = await setup.finished(id)
        assert (status(done), done.metadata_v2.shared.keyValues[WAITING_FOR]) == ("SUCCESS", "")


async def test_a_clock_jump_affects_no_timeout(open_setup: OpenDeployer) -> None:
    jumps = [timedelta(days=n) for n in (0, 400, -400)]

    def now() -> datetime:
        jumps.append(jumps.pop(0))
        return utc_now() + jumps[-1]

    spec = "  pipeline: {stages: [{name: ACT, with: {do: succeed, undo: succeed}}, {name: ACT, with: {do: fail}}]}\n"
    async with open_setup() as setup, setup.piped(now=now):
        done = await setup.finished(await setup.trigger(setup.push(spec)))
        assert status(done) == "FAILURE"
        assert setup.started == ["act 0", "act 1", "undo 0"]
