# SPDX-License-Identifier: Apache-2.0
"""A piped is killed at every step of a pipeline with a rollback; the next process completes it."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from pipecd.controlplane.datastore.stage_logs import StageLogPart
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.piped.notify.event import EventType
from pipecd.proto.model.deployment_pb2 import Deployment, PipelineStage
from servers.control_plane import GatedControlPlane, OpenControlPlane
from servers.killed_piped import (
    KilledPiped,
    KillingHandler,
    KillPoint,
    PipedProcesses,
    wait_for_exit,
)
from servers.origin import Origin
from servers.polling import eventually
from servers.receivers import Receivers

CONCURRENT_PIPEDS = 4
TIMEOUT = 60.0
# Each script writes three lines with its name and the id of its process.
SCRIPT = 'for i in 1 2 3; do echo "{name} $$ $i" | tee -a {trace}; sleep 0.03; done; exit {code}'
# A deployment makes about thirty calls and writes twelve lines.
CALLS, LINES = 30, 12

# Every call, alternately before and after it has taken effect, and every line.
POINTS = [
    *(KillPoint(f"call {n}", call=n, takes_effect=bool(n % 2)) for n in range(1, CALLS + 1)),
    *(KillPoint(f"line {n}", line=n) for n in range(1, LINES + 1)),
]

NOTIFICATIONS = [
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "STAGE_STARTED", "STAGE_FAILED", "DEPLOYMENT_ROLLING_BACK",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_FAILED",
]  # fmt: skip


def application(trace: str) -> str:
    """A stage that succeeds, one that fails, and the rollback of both."""
    stages = ""
    for name, code in (("A", 0), ("B", 1)):
        run = SCRIPT.format(name=name, trace=trace, code=code)
        undo = SCRIPT.format(name=f"undo{name}", trace=trace, code=0)
        stages += f"      - name: SCRIPT_RUN\n        with:\n          run: {run!r}\n"
        stages += f"          onRollback: {undo!r}\n"
    return (
        "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: app\n"
        f"  pipeline:\n    stages:\n{stages}"
    )


@pytest.fixture(scope="session")
def processes() -> PipedProcesses:
    return PipedProcesses()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_deployment_survives_a_kill_of_piped_at_any_point(
    open_plane: OpenControlPlane,
    origin: Origin,
    tmp_path: Path,
    receivers: Receivers,
    processes: PipedProcesses,
) -> None:
    names = [point.name.replace(" ", "-") for point in POINTS]
    (tmp_path / "trace").mkdir()
    trace = f"{tmp_path}/trace/$SR_APPLICATION_NAME"
    origin.commit({f"{name}/app.pipecd.yaml": application(trace) for name in names})
    async with open_plane() as plane:
        handler = KillingHandler(plane.gate.table)
        plane.gate.table = handler
        slots = asyncio.Semaphore(CONCURRENT_PIPEDS)

        async def deploy(point: KillPoint, name: str) -> tuple[str, str, str]:
            """Returns where the piped was killed and what is wrong afterwards."""
            async with slots:
                piped = await plane.register_piped(name)
                await piped.add_repository("site", origin.remote)
                await piped.add_application(name)
                (tmp_path / name).mkdir()
                killed = KilledPiped(
                    point,
                    piped,
                    tmp_path / name,
                    tmp_path / "trace" / name,
                    receivers.url(f"/{name}"),
                )
                handler.pipeds[piped.id] = killed
                async with restarted(killed, origin.remote, processes):
                    errors = await deployment_errors(plane, killed)
                    errors += await notification_errors(receivers, killed)
                return point.name, killed.killed_at, "; ".join(errors)

        async with asyncio.TaskGroup() as tasks:
            deployments = [
                tasks.create_task(deploy(point, name))
                for point, name in zip(POINTS, names, strict=True)
            ]
    rows = [task.result() for task in deployments]
    for point, where, errors in rows:
        sys.stdout.write(f"\n{point:9} {where or 'not reached':70} {errors or 'ok'}")
    assert [row for row in rows if row[2]] == []
    assert sum(1 for _, where, _ in rows if where) >= 30


@asynccontextmanager
async def restarted(
    killed: KilledPiped, remote: str, processes: PipedProcesses
) -> AsyncGenerator[None, None]:
    """Runs a piped, and the next one as soon as it was killed."""

    async def run() -> None:
        while True:
            process = processes.start(killed, remote)
            await wait_for_exit(process)
            assert killed.killed_at, f"piped ended by itself with {process.exitcode}"

    async def kill_at_line() -> None:
        while killed.point.line and not killed.killed_at:
            lines = killed.lines()
            if len(lines) >= killed.point.line:
                killed.kill(f"line {lines[killed.point.line - 1].split()[0]}")
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run()), tasks.create_task(kill_at_line())]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            if killed.process is not None:
                killed.process.kill()


async def deployment_errors(plane: GatedControlPlane, killed: KilledPiped) -> list[str]:
    """Returns what is wrong with the completed deployment."""
    name = killed.directory.name

    async def own() -> list[Deployment]:
        deployments = [d for d in await plane.deployments() if d.application_name == name]
        assert len(deployments) <= 1, "one push is one deployment"
        return deployments

    def is_completed(deployments: list[Deployment]) -> bool:
        return any(DeploymentStatus(d.status).is_completed for d in deployments)

    try:
        (deployment,) = await plane.wait_for(own, is_completed, within=TIMEOUT)
    except TimeoutError:
        return [f"the deployment is stuck: {killed.reported[-3:]}"]
    errors: list[str] = []
    statuses = [StageStatus(stage.status).name for stage in deployment.stages]
    status = DeploymentStatus(deployment.status).name
    if (status, statuses) != ("FAILURE", ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS"]):
        errors.append(f"ended as {status} with stages {statuses}: {deployment.status_reason}")
    for stage in deployment.stages:
        log = await plane.stage_log(deployment.id, stage.id)
        errors += stage_errors(killed, stage, log)
    return errors


def stage_errors(killed: KilledPiped, stage: PipelineStage, log: StageLogPart) -> list[str]:
    """Checks that a completed stage never ran again, no two runs overlap, and no line is lost."""
    script, errors = killed.scripts[stage.id], list[str]()
    if killed.runs()[script] > killed.runs_when_completed.get(stage.id, 0):
        errors.append(f"{script} ran again after it was completed")
    written = [line for line in killed.lines() if line.split()[0] == script]
    runs = list(dict.fromkeys(line.split()[1] for line in written))
    if written != sorted(written, key=lambda line: (runs.index(line.split()[1]), line)):
        errors.append(f"two runs of {script} overlap: {written}")
    logged = [block.log for block in log.blocks if block.log.startswith(f"{script} ")]
    # The last lines of a killed run may not have left its pipe.
    expected = [line for line in written if line in logged or line.split()[1] == runs[-1]]
    by_run = {run: [line for line in logged if line.split()[1] == run] for run in runs}
    has_no_gaps = all(
        f"{script} {run} {len(lines)}" in lines for run, lines in by_run.items() if lines
    )
    if logged != expected or not has_no_gaps or not log.completed:
        errors.append(f"{script} wrote {written}, its log is {logged}, completed={log.completed}")
    return errors


async def notification_errors(receivers: Receivers, killed: KilledPiped) -> list[str]:
    """Returns what is wrong with the notifications; the one that a kill cut off may be repeated."""

    def received() -> list[str]:
        """The names of the notifications, those of stages with the id of the stage."""
        events = [delivery.json for delivery in receivers.at(f"/{killed.directory.name}")]
        ids = [event["Metadata"].get("stage", {}).get("id", "") for event in events]
        types = [EventType(event["Type"]).name for event in events]
        return [f"{type_} {id_}".strip() for type_, id_ in zip(types, ids, strict=True)]

    with suppress(TimeoutError):
        await eventually(lambda: "DEPLOYMENT_FAILED" in received(), TIMEOUT)
    notifications = received()
    distinct = list(dict.fromkeys(notifications))
    types = [notification.split()[0] for notification in distinct]
    if types != NOTIFICATIONS or len(notifications) > len(distinct) + 1:
        return [f"notifications received: {notifications}"]
    return []
