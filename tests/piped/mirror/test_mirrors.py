# SPDX-License-Identifier: Apache-2.0
"""Mirrors keep the last copy, refresh when told to, and hide what was handled."""

import asyncio
import base64
from typing import Any

import grpc
import pytest

from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.piped.mirror.applications import ApplicationMirror
from pipecd.piped.mirror.commands import CommandMirror
from pipecd.piped.mirror.deployments import DeploymentMirror, is_last_page
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.wakeups import WakeupStream
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.proto.service.wakeups_pb2 import Wakeup

NEVER = 1000.0


async def test_applications_are_read_and_kept_while_the_server_is_away(
    open_plane: Any, origin: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        mirror = ApplicationMirror(api, every=NEVER)
        async with running(mirror):
            await mirror.read()
            assert [a.id for a in mirror.of_repository("site")] == [id_]
            assert mirror.get(id_) is not None
            plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
            before = plane.gate.count("ListApplications")
            mirror.refresh_soon()
            await eventually(lambda: plane.gate.count("ListApplications") > before)
            assert len(mirror.all) == 1


async def test_a_change_is_told_and_an_equal_copy_is_not(
    open_plane: Any, origin: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        await plane.add_repository("site", origin.remote)
        mirror = ApplicationMirror(api, every=NEVER)
        watch = mirror.changes.watch()
        async with running(mirror):
            assert await watch.wait(5)
            mirror.refresh_soon()
            await eventually(lambda: mirror.reads == 2)
            assert not await watch.wait(0)
            await plane.add_application("cart")
            mirror.refresh_soon()
            assert await watch.wait(5)


async def test_commands_are_hidden_once_handled(
    open_plane: Any, origin: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        command_id = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        mirror = CommandMirror(api, every=NEVER)
        async with running(mirror):
            (command,) = await eventually(lambda: mirror.of_kind(CommandKind.SYNC_APPLICATION))
            assert command.id == command_id
            assert mirror.for_deployment("x") == ()
            plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
            report = asyncio.create_task(
                mirror.report(command, CommandStatus.SUCCEEDED, metadata={"a": "b"})
            )
            await eventually(lambda: plane.gate.count("ReportCommandHandled"))
            assert mirror.all == ()
            lists = plane.gate.count("ListUnhandledCommands")
            mirror.refresh_soon()
            await eventually(lambda: plane.gate.count("ListUnhandledCommands") > lists)
            assert mirror.all == ()
            del plane.gate.refusals["ReportCommandHandled"]
            await report
        handled = await plane.cases.commands.get(command_id, by=plane.admin)
        assert handled.status == CommandStatus.SUCCEEDED
        assert dict(handled.metadata) == {"a": "b"}


async def test_a_refused_report_does_not_bring_the_command_back(
    open_plane: Any, origin: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        await plane.add_repository("site", origin.remote)
        id_ = await plane.add_application("cart")
        await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        mirror = CommandMirror(api, every=NEVER)
        plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.PERMISSION_DENIED
        async with running(mirror):
            (command,) = await eventually(lambda: mirror.all)
            await mirror.report(command, CommandStatus.FAILED)
            assert mirror.all == ()


async def test_deployments_are_divided_by_status(
    open_plane: Any, origin: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        await plane.add_repository("site", origin.remote)
        application = await plane.application(await plane.add_application("cart"))
        for at, status in enumerate(list(DeploymentStatus)[:4], 1):
            await plane.cases.deployment_reports.create(
                Deployment(
                    id=f"00000000-0000-4000-8000-00000000000{at}",
                    application_id=application.id,
                    application_name="cart",
                    piped_id=application.piped_id,
                    project_id=application.project_id,
                    git_path=application.git_path,
                    status=deployment_pb2.DeploymentStatus.ValueType(status),
                    trigger=DeploymentTrigger(
                        commit=Commit(hash="a", message="m", author="x", branch="b", created_at=1),
                        timestamp=1,
                    ),
                    created_at=at,
                ),
                by=plane.caller,
            )
        mirror = DeploymentMirror(api, every=NEVER)
        async with running(mirror):
            await eventually(lambda: len(mirror.all) == 4)
        assert [d.id[-1] for d in mirror.pending] == ["1"]
        assert [d.id[-1] for d in mirror.planned] == ["2"]
        assert [d.id[-1] for d in mirror.running] == ["3", "4"]


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        pytest.param("", True, id="no cursor"),
        pytest.param("e30=", True, id="the empty cursor of upstream's server"),
        pytest.param(base64.b64encode(b'{"Id":"x"}').decode(), False, id="a real cursor"),
        pytest.param("not base64!", False, id="what is no JSON may still be a cursor"),
    ],
)
def test_last_page(cursor: str, expected: bool) -> None:
    assert is_last_page(cursor) is expected


class Looks:
    """Remembers which repositories were to be looked at."""

    def __init__(self) -> None:
        self.at: list[str] = []
        self.is_streaming = False

    def look_soon(self, repository_id: str) -> None:
        self.at.append(repository_id)

    def streaming(self, is_up: bool) -> None:
        self.is_streaming = is_up


async def test_a_wakeup_reaches_the_mirror_it_is_for(
    open_plane: Any, origin: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        await plane.add_repository("site", origin.remote)
        mirror = ApplicationMirror(api, every=NEVER)
        stream = WakeupStream(
            api,
            paces={
                Wakeup.CONNECTED: (mirror.pace,),
                Wakeup.APPLICATIONS: (mirror.pace,),
            },
            repositories=Looks(),
        )
        async with running(mirror, stream):
            await eventually(lambda: stream.is_up)
            await plane.add_application("cart")
            # Without the stream this would take a thousand seconds.
            await eventually(lambda: len(mirror.all) == 1)


async def test_without_the_stream_piped_polls(
    open_plane: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        plane.gate.refusals["WatchWakeups"] = grpc.StatusCode.UNIMPLEMENTED
        mirror = CommandMirror(api, every=0.02)
        stream = WakeupStream(api, paces={Wakeup.COMMANDS: (mirror.pace,)}, repositories=Looks())
        async with running(mirror, stream):
            await eventually(lambda: plane.gate.count("ListUnhandledCommands") > 3)
            assert not stream.is_up
            # An upstream control plane is not asked again and again.
            assert plane.gate.count("WatchWakeups") == 1


async def test_a_stream_that_fails_is_opened_again(
    open_plane: Any, running: Any, eventually: Any
) -> None:
    async with open_plane() as plane, plane.api() as api:
        plane.gate.refusals["WatchWakeups"] = grpc.StatusCode.UNAVAILABLE
        looks = Looks()
        stream = WakeupStream(api, paces={}, repositories=looks, chance=lambda: 0.0)
        async with running(stream):
            await eventually(lambda: plane.gate.count("WatchWakeups") > 2)
            assert not looks.is_streaming
            del plane.gate.refusals["WatchWakeups"]
            await eventually(lambda: stream.is_up)
            assert looks.is_streaming


async def test_the_pace_is_the_pollers_without_and_a_safety_net_with_the_stream() -> None:
    asked: list[tuple[float, float]] = []

    def chance(low: float, high: float) -> float:
        asked.append((low, high))
        return 150.0

    pace = Pace(0.01, chance=chance)
    await pace.wait()
    assert asked == []
    pace.streaming(True)
    await pace.wait()
    assert asked == [(120.0, 300.0)]
