# SPDX-License-Identifier: Apache-2.0
"""Caches keep the last copy, refresh on request, and hide handled commands."""

import asyncio
import base64
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from pipecd.model.command import CommandKind, CommandStatus
from pipecd.model.deployment import DeploymentStatus, SyncStrategy
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.commands import CommandCache
from pipecd.piped.cache.deployments import DeploymentCache, is_last_page
from pipecd.piped.cache.refresh import RefreshSchedule
from pipecd.piped.reporting.heartbeat import Heartbeat
from pipecd.proto.model import deployment_pb2
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.proto.service.piped_pb2 import ReportPipedMetaRequest
from servers.control_plane import OpenControlPlane
from servers.origin import Origin
from servers.polling import eventually

NEVER = 1000.0
OFTEN = 0.005
WHAT = {"commands", "deployments", "applications", "statistics"}


async def test_applications_stay_cached_while_the_control_plane_is_unavailable(
    open_plane: OpenControlPlane, origin: Origin, running: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        await plane.piped.add_repository("site", origin.remote)
        id_ = await plane.piped.add_application("cart")
        cache = ApplicationCache(api, interval=NEVER)
        async with running(cache):
            await cache.wait_until_loaded()
            assert [a.id for a in cache.of_repository("site")] == [id_]
            assert cache.get(id_) is not None
            plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
            before = plane.gate.count("ListApplications")
            cache.refresh_soon()
            await eventually(lambda: plane.gate.count("ListApplications") > before)
            assert len(cache.all) == 1


async def test_a_change_notifies_and_an_equal_copy_does_not(
    open_plane: OpenControlPlane, origin: Origin, running: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        await plane.piped.add_repository("site", origin.remote)
        cache = ApplicationCache(api, interval=NEVER)
        watch = cache.changes.watch()
        async with running(cache):
            assert await watch.wait(5)
            cache.refresh_soon()
            await eventually(lambda: cache.poll_count == 2)
            assert not await watch.wait(0)
            await plane.piped.add_application("cart")
            cache.refresh_soon()
            assert await watch.wait(5)


async def created_deployment(plane: Any, origin: Origin) -> Deployment:
    await plane.piped.add_repository("site", origin.remote)
    application = await plane.application(await plane.piped.add_application("cart"))
    return Deployment(
        id="c7f8f4c4-3c1b-4c55-9a3e-6f2f0c1d2e3f",
        application_id=application.id,
        application_name="cart",
        piped_id=application.piped_id,
        project_id=application.project_id,
        git_path=application.git_path,
        trigger=DeploymentTrigger(
            commit=Commit(hash="a" * 40, message="m", author="ann", branch="main", created_at=1),
            timestamp=1,
        ),
        created_at=1,
        updated_at=1,
    )


async def test_a_created_deployment_is_cached_until_a_later_poll_decides(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        created = await created_deployment(plane, origin)
        cache = DeploymentCache(api)
        watch = cache.changes.watch()
        polling = asyncio.create_task(cache.poll())
        await asyncio.sleep(0)
        cache.add(created)
        assert await watch.wait(0)
        assert cache.all == (created,)
        assert cache.not_completed_of(created.application_id) == {created.id}
        assert await polling is False
        assert cache.all == (created,), "the poll had begun before the deployment was added"
        assert await cache.poll()
        assert cache.all == (), "the control plane does not have it"
        assert cache.take_created(created.id) is None


async def test_a_completed_deployment_is_removed_also_from_a_poll_that_began_before(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        created = await created_deployment(plane, origin)
        await plane.cases.deployment_reports.create(created, by=plane.piped.caller)
        cache = DeploymentCache(api)
        woken = cache.changes.watch()
        changed = cache.changed_applications.watch(woken)
        assert await cache.poll()
        assert changed.taken() == {created.application_id}
        polling = asyncio.create_task(cache.poll())
        await asyncio.sleep(0)
        woken.taken()
        cache.remove_completed(created.id)
        assert woken.taken()
        assert changed.taken() == {created.application_id}
        assert await polling is False
        assert cache.all == (), "the poll had begun before the deployment was completed"
        assert cache.not_completed_of(created.application_id) == frozenset()
        assert changed.taken() == set()
        assert await cache.poll()
        assert [d.id for d in cache.all] == [created.id], "a later poll decides"


async def test_a_created_deployment_is_taken_once_and_unless_the_control_plane_changed_it(
    open_plane: OpenControlPlane, origin: Origin
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        created = await created_deployment(plane, origin)
        await plane.cases.deployment_reports.create(created, by=plane.piped.caller)
        cache = DeploymentCache(api)
        cache.add(created)
        assert not await cache.poll(), "the control plane has the same"
        taken = cache.take_created(created.id)
        assert taken == created
        assert taken is not created
        assert cache.take_created(created.id) is None
        created.summary = "not what the control plane has"
        fresh = DeploymentCache(api)
        fresh.add(created)
        assert await fresh.poll()
        assert fresh.take_created(created.id) is None
        assert [d.summary for d in fresh.all] == [""]


async def test_a_handled_command_is_hidden_before_its_report_is_accepted(
    open_plane: OpenControlPlane, origin: Origin, running: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        await plane.piped.add_repository("site", origin.remote)
        id_ = await plane.piped.add_application("cart")
        command_id = await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        cache = CommandCache(api, interval=NEVER)
        async with running(cache):
            (command,) = await eventually(lambda: cache.of_kind(CommandKind.SYNC_APPLICATION))
            assert command.id == command_id
            assert cache.for_deployment("x") == ()
            plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.UNAVAILABLE
            report = asyncio.create_task(
                cache.report(command, CommandStatus.SUCCEEDED, metadata={"a": "b"})
            )
            await eventually(lambda: plane.gate.count("ReportCommandHandled"))
            assert cache.all == ()
            lists = plane.gate.count("ListUnhandledCommands")
            cache.refresh_soon()
            await eventually(lambda: plane.gate.count("ListUnhandledCommands") > lists)
            assert cache.all == ()
            del plane.gate.refusals["ReportCommandHandled"]
            await report
        handled = await plane.cases.commands.get(command_id, by=plane.admin)
        assert handled.status == CommandStatus.SUCCEEDED
        assert dict(handled.metadata) == {"a": "b"}


async def test_a_command_stays_hidden_when_its_report_is_refused(
    open_plane: OpenControlPlane, origin: Origin, running: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        await plane.piped.add_repository("site", origin.remote)
        id_ = await plane.piped.add_application("cart")
        await plane.cases.applications.sync(id_, SyncStrategy.AUTO, by=plane.admin)
        cache = CommandCache(api, interval=NEVER)
        plane.gate.refusals["ReportCommandHandled"] = grpc.StatusCode.PERMISSION_DENIED
        async with running(cache):
            (command,) = await eventually(lambda: cache.all)
            await cache.report(command, CommandStatus.FAILED)
            assert cache.all == ()


async def test_deployments_are_grouped_by_status(
    open_plane: OpenControlPlane, origin: Origin, running: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        await plane.piped.add_repository("site", origin.remote)
        application = await plane.application(await plane.piped.add_application("cart"))
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
                by=plane.piped.caller,
            )
        cache = DeploymentCache(api, interval=NEVER)
        async with running(cache):
            await eventually(lambda: len(cache.all) == 4)
        assert [d.id[-1] for d in cache.pending] == ["1"]
        assert [d.id[-1] for d in cache.planned] == ["2"]
        assert [d.id[-1] for d in cache.running] == ["3", "4"]


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        pytest.param("", True, id="no cursor"),
        pytest.param("e30=", True, id="the empty cursor of upstream's server"),
        pytest.param(base64.b64encode(b'{"Id":"x"}').decode(), False, id="a real cursor"),
        pytest.param("not base64!", False, id="a cursor need not be JSON"),
    ],
)
def test_last_page(cursor: str, expected: bool) -> None:
    assert is_last_page(cursor) is expected


async def test_a_refresh_waits_for_a_copy_requested_after_it(
    open_plane: OpenControlPlane, origin: Origin, running: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        await plane.piped.add_repository("site", origin.remote)
        cache = ApplicationCache(api, interval=NEVER)
        async with running(cache):
            await cache.wait_until_loaded()
            id_ = await plane.piped.add_application("cart")
            await cache.refresh()
            assert [application.id for application in cache.all] == [id_]


def logged(logs: list[Any], event: str) -> set[str]:
    return {entry["resource"] for entry in logs if entry["event"] == event}


async def test_an_outage_is_logged_once_and_so_is_its_end(
    open_plane: OpenControlPlane, origin: Origin, running: Any
) -> None:
    async with open_plane() as plane, plane.piped.api() as api:
        await plane.piped.add_repository("site", origin.remote)
        id_ = await plane.piped.add_application("cart")
        applications = ApplicationCache(api, interval=OFTEN)
        deployments = DeploymentCache(api, interval=OFTEN)
        commands = CommandCache(api, interval=OFTEN)
        heartbeat = Heartbeat(
            api=api,
            meta=ReportPipedMetaRequest(),
            metrics=lambda: b"",
            schedule=RefreshSchedule(OFTEN, resync=(OFTEN, OFTEN)),
        )
        components = (applications, deployments, commands, heartbeat)
        with capture_logs() as logs:
            async with running(*components):
                await applications.wait_until_loaded()
                plane.gate.refusals["*"] = grpc.StatusCode.UNAVAILABLE
                # As many polls as in five minutes.
                before = plane.gate.count("ListUnhandledCommands")
                await eventually(lambda: plane.gate.count("ListUnhandledCommands") > before + 60)
                assert len(applications.all) == 1
                command = await plane.cases.applications.sync(
                    id_, SyncStrategy.AUTO, by=plane.admin
                )
                plane.gate.refusals.clear()
                await eventually(lambda: [c.id for c in commands.all] == [command])
                # The others recover with their next poll.
                await eventually(lambda: logged(logs, "control plane available again") >= WHAT)
        failed = [e["resource"] for e in logs if e["event"].startswith("control plane unavailable")]
        assert len(failed) == len(set(failed))
        assert set(failed) == logged(logs, "control plane available again") == WHAT
