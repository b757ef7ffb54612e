# SPDX-License-Identifier: Apache-2.0
"""Deployments that run while they are followed, watched, waited for, or deployed again."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from pipecd.controlplane.auth.subject import PipedCaller
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.usecases.commands import CommandResult
from pipecd.model.command import TRIGGERED_KEY, CommandStatus
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus, StageStatus
from pipecd.pipectl.client import connect
from pipecd.pipectl.follow import StageLogReader
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import (
    Commit,
    Deployment,
    DeploymentTrigger,
    PipelineStage,
)
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.service import api_pb2 as pb
from pipecd.proto.service import deployment_control_pb2 as control
from pipecd.proto.service.api_pb2_grpc import APIServiceServicer
from servers.api_service import serve_api
from servers.control_plane import StartControlPlane

Change = Callable[[Deployment], None]
MEGABYTE = 1024 * 1024


def stage(id: str, name: str, status: StageStatus) -> PipelineStage:
    return PipelineStage(id=id, name=name, status=status.value, created_at=1, updated_at=1)  # pyright: ignore[reportArgumentType]


def deployment(id: str, application: str, piped: str, commit: str) -> Deployment:
    return Deployment(
        id=id,
        application_id=application,
        application_name="web",
        piped_id=piped,
        project_id="demo",
        git_path=ApplicationGitPath(repo=ApplicationGitRepository(id="repo"), path="apps/web"),
        trigger=DeploymentTrigger(
            commit=Commit(hash=commit, message="m", author="ann", branch="main", created_at=1),
            timestamp=1,
        ),
        status=DeploymentStatus.RUNNING.value,  # pyright: ignore[reportArgumentType]
        stages=[
            stage("s1", "SYNC", StageStatus.RUNNING),
            stage("s2", "WAIT", StageStatus.NOT_STARTED_YET),
        ],
        created_at=1,
        updated_at=1,
    )


def block(index: int, text: str) -> LogBlock:
    return LogBlock(index=index, log=text, created_at=1)


def to_status(status: DeploymentStatus, *stages: StageStatus) -> Change:
    def change(stored: Deployment) -> None:
        stored.status = status.value  # pyright: ignore[reportAttributeAccessIssue]
        for each, new in zip(stored.stages, stages, strict=False):
            each.status = new.value  # pyright: ignore[reportAttributeAccessIssue]

    return change


class RunningDeployment:
    """A deployment that the test changes as its piped would."""

    def __init__(self, plane: Any, piped: str) -> None:
        self._plane, self._by = plane, PipedCaller(plane.admin.project, piped)
        self.id = "deployment-1"

    async def start(self) -> None:
        new = deployment(self.id, "application-1", self._by.piped, "0123456789")
        await self._plane.running.stores.deployments.add(new)

    async def log(self, stage_id: str, *blocks: LogBlock) -> None:
        run = StageRun(self.id, stage_id)
        await self._plane.running.cases.logs.append(run, blocks, by=self._by)

    async def change(self, change: Change) -> None:
        await self._plane.running.stores.deployments.update(self.id, change)


class Screen:
    """What a command that still runs has printed so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.out, self.err = capsys, "", ""

    async def until(self, text: str) -> None:
        async with asyncio.timeout(20):
            while text not in self.out:
                shown = self._capsys.readouterr()
                self.out, self.err = self.out + shown.out, self.err + shown.err
                await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_the_log_of_a_running_deployment_is_printed_as_it_grows(
    start_plane: StartControlPlane,
    piped_with_repository: Any,
    typed_at: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with start_plane() as plane:
        running = RunningDeployment(plane, await piped_with_repository(plane))
        await running.start()
        screen = Screen(capsys)
        line = f"deployment logs --follow --deployment-id {running.id}"
        typed = asyncio.create_task(typed_at(plane)(line))
        await running.log("s1", block(1, "one\ntwo"))
        await screen.until("SYNC  two\n")
        await running.log("s1", block(2, "three"))
        await screen.until("SYNC  three\n")
        await running.change(
            to_status(DeploymentStatus.RUNNING, StageStatus.SUCCESS, StageStatus.RUNNING)
        )
        await running.log("s2", block(1, "waiting"))
        await screen.until("WAIT  waiting\n")
        assert not typed.done()
        await running.log("s2", block(2, "the last line"))
        await running.change(to_status(DeploymentStatus.SUCCESS, *2 * [StageStatus.SUCCESS]))
        code, out, _ = await typed
    assert code == 0
    lines = (screen.out + out).splitlines()
    assert lines == [
        "SYNC  one", "SYNC  two", "SYNC  three", "WAIT  waiting", "WAIT  the last line"
    ]  # fmt: skip


async def test_a_log_of_many_megabytes_is_read_in_parts_and_once(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        running = RunningDeployment(plane, await piped_with_repository(plane))
        await running.start()
        for index in range(12):
            await running.log("s1", block(index, f"{index}:" + "x" * (MEGABYTE // 2)))
        settings = {"api_key": plane.api_key, "api_key_file": "", "cert_file": ""}
        async with connect(address=plane.address, insecure=True, **settings) as connection:
            request = control.GetStageLogRequest(
                deployment_id=running.id, stage_id="s1", offset_index=3
            )
            part = await connection.own_rpc("GetStageLog", request, control.GetStageLogResponse)
            assert [b.index for b in part.blocks] == [3]
            assert (part.has_more, part.completed) == (True, False)
            stored = await plane.running.stores.deployments.get(running.id)
            reader = StageLogReader(connection)
            read = [b.index async for _, b in reader.new_blocks(stored)]
            assert read == list(range(12))
            assert [b async for b in reader.new_blocks(stored)] == []
            await running.log("s1", block(12, "new"))
            assert [b.log async for _, b in reader.new_blocks(stored)] == ["new"]
        line = f"deployment logs --deployment-id {running.id}"
        code, out, err = await typed_at(plane)(line)
        assert (code, err) == (0, "")
        assert len(json.loads(out)["stage_logs"]["s1"]["blocks"]) == 13
        code, out, _ = await typed_at(plane)(f"{line} --output table")
        assert (code, len(out.splitlines())) == (0, 13)


async def test_a_followed_log_has_forms_for_programs(
    start_plane: StartControlPlane, piped_with_repository: Any, typed_at: Any
) -> None:
    async with start_plane() as plane:
        running = RunningDeployment(plane, await piped_with_repository(plane))
        await running.start()
        await running.log("s1", block(1, "one"), block(2, "two"))
        await running.change(to_status(DeploymentStatus.SUCCESS, StageStatus.SUCCESS))
        line = f"deployment logs --follow --deployment-id {running.id} --output"
        documents = [
            json.loads(text) for text in (await typed_at(plane)(f"{line} json"))[1].splitlines()
        ]
        assert [(d["stage_id"], d["log"]) for d in documents] == [("s1", "one"), ("s1", "two")]
        assert list(yaml.safe_load_all((await typed_at(plane)(f"{line} yaml"))[1])) == documents
        code, _, err = await typed_at(plane)(f"{line} name")
        assert (code, "lines of a log have no names" in err) == (1, True)


class UpstreamControlPlane(APIServiceServicer):
    """What a control plane of upstream sends of a deployment whose log grows with each call."""

    def __init__(self) -> None:
        self.calls = 0

    async def GetDeployment(self, request: Any, context: Any) -> pb.GetDeploymentResponse:
        stored = deployment("d1", "a", "p", "0123")
        if self.calls > 1:
            to_status(DeploymentStatus.SUCCESS, StageStatus.SUCCESS)(stored)
        return pb.GetDeploymentResponse(deployment=stored)

    async def ListStageLogs(self, request: Any, context: Any) -> pb.ListStageLogsResponse:
        self.calls += 1
        blocks = [block(index, f"line {index}") for index in range(self.calls)]
        return pb.ListStageLogsResponse(stage_logs={"s1": pb.StageLog(blocks=blocks)})


@pytest.mark.slow
async def test_upstreams_whole_logs_are_printed_once(type_line: Any) -> None:
    async with serve_api(UpstreamControlPlane()) as address:  # pyright: ignore[reportAbstractUsage]
        line = f"deployment logs --follow --deployment-id d1 --address {address} --insecure"
        code, out, err = await type_line(f"{line} --api-key k")
    assert (code, out) == (0, "SYNC  line 0\nSYNC  line 1\nSYNC  line 2\n"), err


@pytest.mark.slow
async def test_the_stages_of_a_running_deployment_are_watched(
    start_plane: StartControlPlane,
    piped_with_repository: Any,
    typed_at: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with start_plane() as plane:
        running = RunningDeployment(plane, await piped_with_repository(plane))
        await running.start()
        screen = Screen(capsys)
        line = f"deployment watch --deployment-id {running.id}"
        typed = asyncio.create_task(typed_at(plane)(line))
        await screen.until("deployment of web              RUNNING\n")
        await running.change(
            to_status(DeploymentStatus.RUNNING, StageStatus.SUCCESS, StageStatus.RUNNING)
        )
        await screen.until("WAIT                           RUNNING\n")
        await running.change(to_status(DeploymentStatus.SUCCESS, *2 * [StageStatus.SUCCESS]))
        code, out, _ = await typed
        assert code == 0
        assert [line.split()[-2:] for line in (screen.out + out).splitlines()] == [
            ["SYNC", "RUNNING"],
            ["web", "RUNNING"],
            ["SYNC", "SUCCESS"],
            ["WAIT", "RUNNING"],
            ["WAIT", "SUCCESS"],
            ["web", "SUCCESS"],
        ]
        code, out, err = await typed_at(plane)(f"{line} --output name")
        assert (code, out, "SUCCESS" in err) == (0, f"{running.id}\n", True)
        wait = f"deployment wait-status --deployment-id {running.id} --status DEPLOYMENT_SUCCESS"
        code, out, _ = await typed_at(plane)(f"{wait} --output json")
        assert (code, json.loads(out)["id"]) == (0, running.id)
        code, _, err = await typed_at(plane)(wait.replace("SUCCESS", "FAILURE"))
        sentence = f"deployment {running.id} has completed as DEPLOYMENT_SUCCESS"
        assert (code, sentence in err) == (1, True), err


@pytest.mark.slow
async def test_what_a_deployment_waits_for_is_shown(
    start_plane: StartControlPlane,
    piped_with_repository: Any,
    typed_at: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with start_plane() as plane:
        running = RunningDeployment(plane, await piped_with_repository(plane))
        await running.start()
        reason = "Waiting for deployment d0 of the same application to end"

        def wait(stored: Deployment) -> None:
            to_status(DeploymentStatus.PENDING)(stored)
            stored.metadata_v2.shared.keyValues[WAITING_FOR] = reason

        await running.change(wait)
        shown = f"--deployment-id {running.id}"
        _, out, _ = await typed_at(plane)(f"deployment get {shown} --output table")
        assert out.endswith(f"\n\n{reason}\n")
        screen = Screen(capsys)
        typed = asyncio.create_task(typed_at(plane)(f"deployment watch {shown}"))
        await screen.until(f"deployment of web              PENDING  {reason}\n")
        await running.change(to_status(DeploymentStatus.SUCCESS))
        assert (await typed)[:2] == (0, "deployment of web              SUCCESS\n")


@pytest.mark.parametrize(
    ("commit", "warning"),
    [
        pytest.param("0123456789", "", id="of the same commit"),
        pytest.param(
            "9876543210",
            "The new deployment is of commit 9876543, the head of main; "
            "deployment deployment-1 was of 0123456",
            id="of the head that has moved",
        ),
    ],
)
async def test_a_completed_deployment_is_deployed_again(
    commit: str,
    warning: str,
    *,
    start_plane: StartControlPlane,
    piped_with_repository: Any,
    typed_at: Any,
) -> None:
    async with start_plane() as plane:
        typed, piped = typed_at(plane), await piped_with_repository(plane)
        add = (
            f"application add --app-name web --app-kind ECS --piped-id {piped}"
            " --platform-provider p --repo-id repo --app-dir apps/web --output name"
        )
        application = (await typed(add))[1].strip()
        stores, cases = plane.running.stores, plane.running.cases
        await stores.deployments.add(deployment("deployment-1", application, piped, "0123456789"))
        await stores.deployments.update(
            "deployment-1", to_status(DeploymentStatus.FAILURE, StageStatus.FAILURE)
        )
        typing = asyncio.create_task(typed("deployment retry --deployment-id deployment-1"))
        while not (commands := await stores.commands.list_unhandled(piped)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        [command] = commands
        assert (command.type, command.application_id) == (Command.SYNC_APPLICATION, application)
        await stores.deployments.add(deployment("deployment-2", application, piped, commit))
        result = CommandResult(
            command.id, CommandStatus.SUCCEEDED, 1, metadata={TRIGGERED_KEY: "deployment-2"}
        )
        await cases.commands.report_handled(result, by=PipedCaller("demo", piped))
        code, out, err = await typing
    assert (code, json.loads(out)["id"]) == (0, "deployment-2"), err
    assert warning in err
    assert ("The new deployment" in err) == bool(warning)
