# SPDX-License-Identifier: Apache-2.0
"""A piped is killed at every step of a pipeline with a rollback; the next one ends it properly."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.piped.notify.event import EventType
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.control_plane import OpenControlPlane
from servers.origin import Origin
from servers.receivers import Receivers

ADMIN = User("shop", "root", ("Admin",))
AT_ONCE = 4
WITHIN = 60.0
# Each script tells what it does three times, with the number of its process.
SCRIPT = 'for i in 1 2 3; do echo "{word} $$ $i" | tee -a {trace}; sleep 0.03; done; exit {code}'
# A run makes about thirty calls and writes twelve lines.
CALLS, LINES = 30, 12


def application(trace: str) -> str:
    """A stage that succeeds, one that fails, and what undoes both."""
    stages = ""
    for word, code in (("A", 0), ("B", 1)):
        run = SCRIPT.format(word=word, trace=trace, code=code)
        undo = SCRIPT.format(word=f"undo{word}", trace=trace, code=0)
        stages += f"      - name: SCRIPT_RUN\n        with:\n          run: {run!r}\n"
        stages += f"          onRollback: {undo!r}\n"
    return (
        "apiVersion: pipecd.dev/v1beta1\nkind: Application\nspec:\n  name: app\n"
        f"  pipeline:\n    stages:\n{stages}"
    )


def points(point: Callable[..., Any]) -> list[Any]:
    """Every call, in turns before and after it has taken effect, and every line."""
    calls = [point(f"call {n}", call=n, takes_effect=bool(n % 2)) for n in range(1, CALLS + 1)]
    return [*calls, *(point(f"line {n}", line=n) for n in range(1, LINES + 1))]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_piped_may_be_killed_anywhere(
    open_plane: OpenControlPlane,
    origin: Origin,
    tmp_path: Path,
    killing: Any,
    start_piped: Any,
    ended: Any,
) -> None:
    cases = [case_of(p, killing, tmp_path) for p in points(killing.Point)]
    (tmp_path / "trace").mkdir()
    trace = f"{tmp_path}/trace/$SR_APPLICATION_NAME"
    origin.commit({f"{c.directory.name}/app.pipecd.yaml": application(trace) for c in cases})
    async with open_plane() as plane:
        reaper = killing.Reaper(plane.gate.table)
        plane.gate.table = reaper
        lanes = asyncio.Semaphore(AT_ONCE)

        async def survive(case: Any) -> str:
            async with lanes:
                await register(plane, case, origin.remote)
                reaper.cases[case.piped_id] = case
                async with lives(case, plane, origin.remote, start_piped, ended):
                    verdict = await judged(plane, case)
                    return verdict if verdict != "ok" else await overheard(killing.receivers, case)

        async with asyncio.TaskGroup() as tasks:
            verdicts = [tasks.create_task(survive(case)) for case in cases]
    rows = [(c.point.name, c.killed_at or "not reached", v.result()) for c, v in zip(cases, verdicts, strict=True)]  # fmt: skip
    table = "\n".join(f"{name:9} {where:70} {verdict}" for name, where, verdict in rows)
    sys.stdout.write(f"\n{table}\n")
    assert [row for row in rows if row[2] != "ok"] == []
    assert sum(1 for c in cases if c.killed_at) >= 30


def case_of(point: Any, killing: Any, directory: Path) -> Any:
    name = point.name.replace(" ", "-")
    hook = killing.receivers.url(f"/{name}")
    return killing.Case(point, directory / name, directory / "trace" / name, hook)


async def register(plane: Any, case: Any, remote: str) -> None:
    """Gives the case a piped and an application of its own."""
    case.directory.mkdir()
    registered = await plane.cases.pipeds.register(case.directory.name, "", by=ADMIN)
    case.piped_id, case.key = registered.id, registered.key
    repository = ApplicationGitRepository(id="site", remote=remote, branch="main")
    meta = ReportPipedMetaRequest(repositories=[repository], config="{}")
    await plane.cases.pipeds.report_meta(meta, by=PipedCaller("shop", case.piped_id))
    draft = Application(
        name=case.directory.name,
        piped_id=case.piped_id,
        git_path=ApplicationGitPath(
            repo=repository, path=case.directory.name, config_filename="app.pipecd.yaml"
        ),
        platform_provider="p",
    )
    await plane.cases.applications.add(draft, by=ADMIN)


@asynccontextmanager
async def lives(
    case: Any, plane: Any, remote: str, start_piped: Any, ended: Any
) -> AsyncGenerator[None, None]:
    """A piped, and the next one as soon as it was killed."""

    async def live() -> None:
        while True:
            start_piped(case, plane.address, remote)
            await ended(case.process)
            assert case.killed_at, f"piped ended by itself with {case.process.exitcode}"

    async def watch_lines() -> None:
        while case.point.line and not case.killed_at:
            if len(case.lines()) >= case.point.line:
                case.kill(f"line {case.lines()[case.point.line - 1].split()[0]}")
            await asyncio.sleep(0.005)

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(live()), tasks.create_task(watch_lines())]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            if case.process is not None:
                case.process.kill()


async def judged(plane: Any, case: Any) -> str:
    """What is wrong with how the deployment ended, or that nothing is."""
    try:
        async with asyncio.timeout(WITHIN):
            deployment = await the_end(plane, case)
    except TimeoutError:
        return f"nobody works on it: {case.history[-3:]}"
    logs = {
        stage.id: await plane.cases.logs.stage_log(StageRun(deployment.id, stage.id), by=ADMIN)
        for stage in deployment.stages
    }
    wrong = [
        *wrong_ending(deployment),
        *(w for stage in deployment.stages for w in wrong_stage(case, stage, logs[stage.id])),
    ]
    return "; ".join(wrong) or "ok"


TOLD = [
    "DEPLOYMENT_TRIGGERED", "DEPLOYMENT_PLANNED", "DEPLOYMENT_STARTED",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "STAGE_STARTED", "STAGE_FAILED", "DEPLOYMENT_ROLLING_BACK",
    "STAGE_STARTED", "STAGE_SUCCEEDED", "STAGE_STARTED", "STAGE_SUCCEEDED", "DEPLOYMENT_FAILED",
]  # fmt: skip


async def overheard(receivers: Receivers, case: Any) -> str:
    """What is wrong with what people were told; what a kill cut off may arrive twice."""
    clock = asyncio.get_running_loop().time
    told, until = heard(receivers, case), clock() + WITHIN
    while "DEPLOYMENT_FAILED" not in told and clock() < until:
        await asyncio.sleep(0.02)
        told = heard(receivers, case)
    once = list(dict.fromkeys(told))
    if [name.split()[0] for name in once] != TOLD or len(told) > len(once) + 1:
        return f"people heard {told}"
    return "ok"


def heard(receivers: Receivers, case: Any) -> list[str]:
    """The names of the notices, those of stages with the stage."""
    return [
        f"{EventType(d.json['Type']).name} {d.json['Metadata'].get('stage', {}).get('id', '')}".strip()
        for d in receivers.at(f"/{case.directory.name}")
    ]


async def the_end(plane: Any, case: Any) -> Any:
    """The one deployment of the case once it is over."""
    found = None
    while found is None or not DeploymentStatus(found.status).is_completed:
        await asyncio.sleep(0.02)
        wanted = DeploymentFilter(project="shop", application_name=case.directory.name)
        page = await plane.cases.deployments.list(wanted, by=ADMIN)
        assert len(page.items) <= 1, "one push is one deployment"
        found = next(iter(page.items), None)
    return found


def wrong_ending(deployment: Any) -> list[str]:
    found = [StageStatus(stage.status).name for stage in deployment.stages]
    ending = DeploymentStatus(deployment.status).name
    if (ending, found) == ("FAILURE", ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS"]):
        return []
    return [f"ended as {ending} with stages {found}: {deployment.status_reason}"]


def wrong_stage(case: Any, stage: Any, log: Any) -> list[str]:
    """Whether a finished stage ran again, two runs met, or lines were lost or doubled."""
    word, wrong = case.stage_words[stage.id], []
    if case.begun()[word] > case.begun_when_over.get(stage.id, 0):
        wrong.append(f"{word} ran again after it was over")
    mine = [line for line in case.lines() if line.split()[0] == word]
    runs = list(dict.fromkeys(line.split()[1] for line in mine))
    if mine != sorted(mine, key=lambda line: (runs.index(line.split()[1]), line)):
        wrong.append(f"two runs of {word} met: {mine}")
    logged = [block.log for block in log.blocks if block.log.startswith(f"{word} ")]
    # What a killed run wrote last may not have come out of its pipe.
    whole = [line for line in mine if line in logged or line.split()[1] == runs[-1]]
    kept = {run: [line for line in logged if line.split()[1] == run] for run in runs}
    from_the_start = all(
        f"{word} {run} {len(lines)}" in lines for run, lines in kept.items() if lines
    )
    if logged != whole or not from_the_start or not log.completed:
        wrong.append(f"{word} wrote {mine}, its log is {logged}, completed={log.completed}")
    return wrong
