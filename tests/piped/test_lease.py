# SPDX-License-Identifier: Apache-2.0
"""The lease of a piped: drains before it is handed over, and ends what has lost it."""

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pipecd.model.errors import LeaseLost
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.lease import Drain, Lease
from pipecd.proto.service.piped_pb2 import ListApplicationsRequest
from servers.control_plane import OpenControlPlane


def lease_of(api: ControlPlaneClient, workspace: Path) -> Lease:
    workspace.mkdir(exist_ok=True)
    return Lease(api=api, piped_id="p1", workspace=workspace, grace=5)


async def test_a_drain_waits_for_running_stages_and_holds_back_others() -> None:
    drain, ran = Drain(), list[str]()
    first_stage = asyncio.Event()

    async def deployment() -> None:
        with drain.deployment():
            await drain.safe_point()
            ran.append("first")
            await first_stage.wait()
            await drain.safe_point()
            ran.append("second")

    task = asyncio.create_task(deployment())
    await asyncio.sleep(0)
    drain.request()
    assert not await drain.wait(0.01)
    first_stage.set()
    assert await drain.wait(1)
    assert ran == ["first"]
    drain.resume()
    await task
    assert ran == ["first", "second"]
    assert await drain.wait(0)


async def test_a_process_that_has_lost_its_lease_ends_and_does_nothing_else(
    open_plane: OpenControlPlane, tmp_path: Path
) -> None:
    async with open_plane() as plane, plane.piped.api() as api, plane.piped.api() as other:
        first = lease_of(api, tmp_path / "first")
        await first.acquire()
        await api.list_applications(ListApplicationsRequest())
        running = asyncio.create_task(first.run())
        second = lease_of(other, tmp_path / "second")
        await second.acquire()
        assert other.lease.epoch > api.lease.epoch
        call = asyncio.create_task(api.call(api.list_applications, ListApplicationsRequest()))
        async with asyncio.timeout(1):
            with pytest.raises(LeaseLost, match="only one piped may run with an id"):
                await running
        assert not call.done()
        call.cancel()
        await other.list_applications(ListApplicationsRequest())
        assert (tmp_path / "first" / "replaced.json").exists()
        assert not (tmp_path / "second" / "replaced.json").exists()


async def test_a_released_lease_is_granted_to_the_next_process(
    open_plane: OpenControlPlane, tmp_path: Path
) -> None:
    async with open_plane() as plane, plane.piped.api() as api, plane.piped.api() as other:
        first = lease_of(api, tmp_path / "first")
        await first.acquire()
        await first.release()
        with capture_logs() as logs:
            await lease_of(other, tmp_path / "second").acquire()
        assert [line for line in logs if line["log_level"] == "warning"] == []
