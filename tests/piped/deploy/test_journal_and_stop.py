# SPDX-License-Identifier: Apache-2.0
"""Stopping tasks, the journal, and reports."""

import asyncio
from pathlib import Path

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from pipecd.model.errors import UserMistake
from pipecd.piped.deploy.journal import Journal, StageEntry
from pipecd.piped.deploy.reports import DeploymentReports
from pipecd.piped.deploy.stop import until_stopped
from pipecd.piped.notify.notifier import Notifier, PipedIdentity
from pipecd.piped.plan.rollback import TIMED_OUT, DeploymentOutcome, Stop, StopReason
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.deployment_pb2 import (
    Deployment,
    PipelineStage,
)
from pipecd.proto.service.piped_pb2 import ReportStageLogsFromLastCheckpointRequest

BY_ANN = Stop(StopReason.CANCELLED, by="ann")


async def test_the_result_of_a_task_that_ends_first_is_returned() -> None:
    async def work() -> str:
        return "done"

    never: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
    assert await until_stopped(asyncio.create_task(work()), never) == "done"


async def test_an_error_of_the_task_is_raised() -> None:
    async def work() -> str:
        raise UserMistake("wrong")

    never: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
    with pytest.raises(UserMistake):
        await until_stopped(asyncio.create_task(work()), never)


@pytest.mark.parametrize(
    ("by_user", "expected"),
    [pytest.param(True, BY_ANN, id="cancelled"), pytest.param(False, TIMED_OUT, id="timed out")],
)
async def test_a_stopped_task_has_ended_before_the_stop_is_returned(
    by_user: bool, expected: Stop
) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended.append("cleaned up")

    stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
    if by_user:
        stop.set_result(BY_ANN)
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert await until_stopped(task, stop, time_limit=0.01) == expected
    assert ended == ["cleaned up"]


async def test_a_task_that_ignores_its_cancellation_is_not_awaited() -> None:
    release_stage = asyncio.Event()

    async def work() -> None:
        while not release_stage.is_set():
            try:
                await release_stage.wait()
            except asyncio.CancelledError:
                continue

    stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    async with asyncio.timeout(1):
        assert await until_stopped(task, stop, time_limit=0.01, grace_period=0.01) == TIMED_OUT
    release_stage.set()
    await asyncio.wait({task})


async def test_an_error_of_a_stopped_task_is_logged() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    stop: asyncio.Future[Stop] = asyncio.get_running_loop().create_future()
    stop.set_result(BY_ANN)
    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert await until_stopped(task, stop) == BY_ANN


async def test_a_journal_survives_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "d" / "journal.json"
    written = await Journal.open(path)
    written.started_at = 7
    log_end = ReportStageLogsFromLastCheckpointRequest(stage_id="s1", completed=True)
    await written.record_stage("s1", StageEntry(StageStatus.SUCCESS, "well done", (log_end,)))
    await written.record_outcome(
        DeploymentOutcome(DeploymentStatus.CANCELLED, "by ann", "s1", rolls_back=False)
    )
    journal = await Journal.open(path)
    assert (journal.stages, journal.outcome) == (written.stages, written.outcome)
    assert journal.started_at == 7
    deployment = Deployment(
        stages=[
            PipelineStage(id="s1", status=int(StageStatus.RUNNING)),  # type: ignore[arg-type]
            PipelineStage(id="s2"),
        ]
    )
    assert journal.unreported(deployment) == [(deployment.stages[0], written.stages["s1"])]
    deployment.stages[0].status = deployment_pb2.STAGE_SUCCESS
    assert journal.unreported(deployment) == []


async def test_the_end_of_the_last_stage_and_that_of_the_deployment_are_written_at_once(
    tmp_path: Path,
) -> None:
    path, entry = tmp_path / "d" / "journal.json", StageEntry(StageStatus.SUCCESS, "")
    succeeded = DeploymentOutcome(DeploymentStatus.SUCCESS, "well done")
    journal = Journal.create(path)
    await journal.record_stage("s1", entry)
    await journal.record_stage("s2", entry, succeeded)
    written = path.stat()
    await journal.record_outcome(succeeded)
    assert path.stat() == written
    again = await Journal.open(path)
    assert (again.stages, again.outcome) == ({"s1": entry, "s2": entry}, succeeded)
    # A rollback stage ends after the outcome is known.
    await again.record_stage("s3", entry)
    assert (await Journal.open(path)).outcome == succeeded
    cancelled = DeploymentOutcome(DeploymentStatus.CANCELLED, "by ann")
    await again.record_outcome(cancelled)
    assert (await Journal.open(path)).outcome == cancelled


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"stages": {"s": {"status": "DANCE"}}, "outcome": 0}']
)
async def test_an_unreadable_journal_is_ignored(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(text)
    journal = await Journal.open(path)
    assert (journal.stages, journal.outcome) == ({}, None)


async def test_a_completed_deployment_is_never_reopened() -> None:
    deployment = Deployment(id="d", status=deployment_pb2.DEPLOYMENT_SUCCESS)
    notifier = Notifier(PipedIdentity("", "", ""))
    reports = DeploymentReports(None, deployment, notifier, on_status=print)  # type: ignore[arg-type]
    await reports.started()
    await reports.rolling_back("no")
    with pytest.raises(ValueError, match="SUCCESS cannot become FAILURE"):
        await reports.deployment_completed(DeploymentStatus.FAILURE, "no")
    assert deployment.status == DeploymentStatus.SUCCESS
