# SPDX-License-Identifier: Apache-2.0
"""The disk of a workspace is full for a while: piped goes on, says so once, and recovers."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.disk import SmallDisk
from faults.installation import FaultyInstallation, open_installation
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus
from pipecd.model.errors import Unsupported
from pipecd.proto.model.application_pb2 import ApplicationSyncStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def small_workspace(tmp_path: Path) -> Iterator[SmallDisk]:
    """A workspace with room for four megabytes."""
    try:
        disk = SmallDisk.mount(tmp_path / "piped" / "workspace", megabytes=4)
    except Unsupported as e:
        pytest.skip(str(e))
    yield disk
    disk.unmount()


async def succeeded(installed: FaultyInstallation, commit: str, within: float = 60) -> Deployment:
    done = await installed.eventually(lambda: installed.completed(commit), within=within)
    assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
    return done


async def test_a_push_is_deployed_once_there_is_space(
    tmp_path: Path, small_workspace: SmallDisk
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        await succeeded(installed, installed.push("cart"))
        small_workspace.fill()
        head = installed.push("cart", more=f"# {'x' * 50_000}\n")

        async def is_logged() -> bool:
            # Live state may notice the full disk first.
            return "repository cannot be fetched" in piped.log

        await installed.eventually(is_logged)
        assert await installed.deployment_of(head) is None
        small_workspace.empty()
        await succeeded(installed, head)
        assert piped.is_running
        assert piped.log.count("repository cannot be fetched") == 1
        assert "the disk of piped is full" in piped.log
        assert "application configuration is invalid" not in piped.log


async def test_a_deployment_without_room_for_its_files_waits(
    tmp_path: Path, small_workspace: SmallDisk
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        head = installed.push("cart")
        await succeeded(installed, head)
        small_workspace.fill()
        await installed.sync("cart")

        async def is_deferred() -> bool:
            return any(
                "No space left" in deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, "")
                for deployment in await installed.deployments()
            )

        await installed.eventually(is_deferred)
        small_workspace.empty()
        await installed.eventually(installed.all_completed)
        statuses = {DeploymentStatus(each.status) for each in await installed.deployments()}
        assert statuses == {DeploymentStatus.SUCCESS}
        assert piped.is_running


async def test_a_stage_completes_although_its_files_cannot_be_written(
    tmp_path: Path, small_workspace: SmallDisk
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        head = installed.push("cart", seconds=3)
        await installed.eventually(lambda: installed.running(head))

        async def has_begun() -> bool:
            return bool(installed.runs())

        await installed.eventually(has_begun)
        small_workspace.fill()
        await succeeded(installed, head)
        assert len(installed.runs()) == 1
        assert piped.log.count("file of the workspace cannot be written") <= 3
        small_workspace.empty()
        await succeeded(installed, installed.push("cart"))
        assert piped.is_running


async def test_a_mirror_lost_on_a_full_disk_is_created_once_there_is_space(
    tmp_path: Path, small_workspace: SmallDisk
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        await succeeded(installed, installed.push("cart"))
        (mirror,) = {head.parent for head in (small_workspace.directory / "git").glob("*/HEAD")}
        shutil.rmtree(mirror)
        small_workspace.fill()
        head = installed.push("cart")

        async def is_logged() -> bool:
            return "repository cannot be fetched" in piped.log

        await installed.eventually(is_logged)
        small_workspace.empty()
        await succeeded(installed, head)
        async with installed.api() as api:
            request = pb.GetApplicationRequest(application_id=installed.applications["cart"])
            state = (await api.GetApplication(request)).application.sync_state
        assert state.status != ApplicationSyncStatus.INVALID_CONFIG
        assert "application configuration is invalid" not in piped.log
        assert piped.is_running


async def test_a_restart_on_a_full_disk_waits_for_space(
    tmp_path: Path, small_workspace: SmallDisk
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        await succeeded(installed, installed.push("cart"))
        await piped.kill()
        small_workspace.fill()
        head = installed.push("cart", more=f"# {'x' * 50_000}\n")
        piped = await installed.start_piped()

        async def is_logged() -> bool:
            return "the disk of piped is full" in piped.log

        await installed.eventually(is_logged)
        assert piped.is_running, piped.log
        small_workspace.empty()
        await succeeded(installed, head)
