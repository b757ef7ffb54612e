# SPDX-License-Identifier: Apache-2.0
"""Stage logs: pipeds append, users of the project read."""

import pytest

from pipecd.controlplane.auth.subject import PipedCaller, User
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.access import ForeignProject
from pipecd.model.deployment import StageStatus
from pipecd.model.errors import Conflict, Denied, NotFound, UserMistake
from pipecd.proto.model import deployment_pb2 as pb
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service.piped_pb2 import ReportStageStatusChangedRequest


def blocks(*indexes: int) -> list[LogBlock]:
    return [LogBlock(index=i, log=f"line {i}", created_at=1) for i in indexes]


async def test_appended_blocks_can_be_read_at_once(
    cases: UseCases, bus: MemoryBus, deployment: Deployment, piped: PipedCaller, viewer: User
) -> None:
    run = StageRun(deployment.id, "s1")
    async with bus.subscribe() as signals:
        await cases.logs.append(run, blocks(1, 2), by=piped)
        assert await anext(signals) == Signal(Topic.STAGE_LOG, f"{deployment.id}/s1", "shop")
    await cases.logs.checkpoint(run, blocks(2, 3), completed=True, by=piped)
    log = await cases.logs.stage_log(run, by=viewer)
    assert ([b.index for b in log.blocks], log.completed) == ([1, 2, 3], True)
    assert [b.index for b in (await cases.logs.stage_log(run, 3, by=viewer)).blocks] == [3]
    with pytest.raises(Conflict, match="could not append the logs"):
        await cases.logs.append(run, blocks(4), by=piped)


async def report_status(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, status: StageStatus
) -> None:
    request = ReportStageStatusChangedRequest(
        deployment_id=deployment.id, stage_id="s1", status=pb.StageStatus.ValueType(status)
    )
    await cases.deployment_reports.report_stage_status(request, by=piped)


@pytest.mark.parametrize("is_closed_at_once", [True, False])
async def test_a_stage_that_runs_again_after_the_end_of_its_log_continues_it(
    cases: UseCases,
    deployment: Deployment,
    piped: PipedCaller,
    viewer: User,
    *,
    is_closed_at_once: bool,
) -> None:
    run = StageRun(deployment.id, "s1")
    await report_status(cases, deployment, piped, StageStatus.RUNNING)
    await cases.logs.checkpoint(run, blocks(1, 2), completed=True, by=piped)
    with pytest.raises(Conflict, match="could not append the logs"):
        await cases.logs.append(run, blocks(2), by=piped)
    assert (await cases.logs.stage_log(run, by=viewer)).completed, "nothing new came"
    if not is_closed_at_once:
        await cases.logs.append(run, blocks(3), by=piped)
        log = await cases.logs.stage_log(run, by=viewer)
        assert ([b.index for b in log.blocks], log.completed) == ([1, 2, 3], False)
    await cases.logs.checkpoint(run, blocks(3, 4), completed=True, by=piped)
    log = await cases.logs.stage_log(run, by=viewer)
    assert ([b.index for b in log.blocks], log.completed) == ([1, 2, 3, 4], True)
    await report_status(cases, deployment, piped, StageStatus.SUCCESS)
    with pytest.raises(Conflict, match="could not append the logs"):
        await cases.logs.append(run, blocks(5), by=piped)


async def test_a_log_of_another_piped_or_project_is_denied(
    cases: UseCases,
    deployment: Deployment,
    piped: PipedCaller,
    other_piped: PipedCaller,
    stranger: User,
) -> None:
    run = StageRun(deployment.id, "s1")
    for _ in range(2):
        with pytest.raises(Denied, match="requested deployment doesn't belong to the piped"):
            await cases.logs.append(run, blocks(1), by=other_piped)
        await cases.logs.append(run, blocks(1), by=piped)
    with pytest.raises(ForeignProject):
        await cases.logs.stage_log(run, by=stranger)


async def test_a_stage_without_blocks_has_no_log(
    cases: UseCases, deployment: Deployment, viewer: User
) -> None:
    with pytest.raises(NotFound, match=r"^Entity was not found to get stage logs$"):
        await cases.logs.stage_log(StageRun(deployment.id, "s1"), by=viewer)


@pytest.mark.parametrize(
    ("stage", "retried"),
    [
        pytest.param("../../x", 0, id="leave its directory"),
        pytest.param("a/b", 0, id="contain a slash"),
        pytest.param("..", 0, id="be two dots"),
        pytest.param("a\0b", 0, id="contain a zero byte"),
        pytest.param("s1", -1, id="have a negative retried count"),
    ],
)
async def test_a_stage_run_must_not(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, stage: str, retried: int
) -> None:
    with pytest.raises(UserMistake):
        await cases.logs.append(StageRun(deployment.id, stage, retried), blocks(1), by=piped)


async def test_the_logs_of_a_deployment_have_an_entry_per_stage(
    cases: UseCases, deployment: Deployment, piped: PipedCaller, viewer: User
) -> None:
    await cases.logs.append(StageRun(deployment.id, "s2"), blocks(1), by=piped)
    logs = await cases.logs.of_deployment(deployment.id, by=viewer)
    assert {stage: len(log.blocks) for stage, log in logs.items()} == {"s1": 0, "s2": 1, "s3": 0}
