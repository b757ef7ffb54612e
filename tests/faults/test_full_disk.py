# SPDX-License-Identifier: Apache-2.0
"""The disk of a workspace is full for a while: piped goes on, says so once, and recovers."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from faults.installation import FaultyInstallation, open_installation
from pipecd.model.deployment import WAITING_FOR, DeploymentStatus
from pipecd.proto.model.application_pb2 import ApplicationSyncStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.service import api_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def small_workspace(tmp_path: Path) -> Iterator[Path]:
    """A workspace on a file system of its own, with room for four megabytes."""
    workspace = tmp_path / "piped" / "workspace"
    workspace.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(workspace)]
    if os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield workspace
    subprocess.run(["umount", "-l", str(workspace)], check=True)


def fill(workspace: Path) -> None:
    with (workspace / "ballast").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 512)


def empty(workspace: Path) -> None:
    (workspace / "ballast").unlink()


async def succeeded(installed: FaultyInstallation, commit: str, within: float = 60) -> Deployment:
    done = await installed.eventually(lambda: installed.completed(commit), within=within)
    assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS, done.status_reason
    return done


async def test_a_push_is_deployed_once_there_is_space(
    tmp_path: Path, small_workspace: Path
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        await succeeded(installed, installed.push("cart"))
        fill(small_workspace)
        head = installed.push("cart", more=f"# {'x' * 50_000}\n")

        async def is_logged() -> bool:
            return "the disk of piped is full" in piped.log

        await installed.eventually(is_logged)
        assert await installed.deployment_of(head) is None
        empty(small_workspace)
        await succeeded(installed, head)
        assert piped.is_running
        assert piped.log.count("repository cannot be fetched") == 1
        assert "application configuration is invalid" not in piped.log


async def test_a_deployment_without_room_for_its_files_waits(
    tmp_path: Path, small_workspace: Path
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        head = installed.push("cart")
        await succeeded(installed, head)
        fill(small_workspace)
        await installed.sync("cart")

        async def is_deferred() -> bool:
            return any(
                "No space left" in deployment.metadata_v2.shared.keyValues.get(WAITING_FOR, "")
                for deployment in await installed.deployments()
            )

        await installed.eventually(is_deferred)
        empty(small_workspace)
        await installed.eventually(installed.all_completed)
        statuses = {DeploymentStatus(each.status) for each in await installed.deployments()}
        assert statuses == {DeploymentStatus.SUCCESS}
        assert piped.is_running


async def test_a_stage_completes_although_its_files_cannot_be_written(
    tmp_path: Path, small_workspace: Path
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        head = installed.push("cart", seconds=3)
        await installed.eventually(lambda: installed.running(head))

        async def has_begun() -> bool:
            return bool(installed.runs())

        await installed.eventually(has_begun)
        fill(small_workspace)
        await succeeded(installed, head)
        assert len(installed.runs()) == 1
        assert piped.log.count("file of the workspace cannot be written") <= 3
        empty(small_workspace)
        await succeeded(installed, installed.push("cart"))
        assert piped.is_running


async def test_a_mirror_lost_on_a_full_disk_is_created_once_there_is_space(
    tmp_path: Path, small_workspace: Path
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        await succeeded(installed, installed.push("cart"))
        (mirror,) = {head.parent for head in (small_workspace / "git").glob("*/HEAD")}
        shutil.rmtree(mirror)
        fill(small_workspace)
        head = installed.push("cart")

        async def is_logged() -> bool:
            return "repository cannot be fetched" in piped.log

        await installed.eventually(is_logged)
        empty(small_workspace)
        await succeeded(installed, head)
        async with installed.api() as api:
            request = pb.GetApplicationRequest(application_id=installed.applications["cart"])
            state = (await api.GetApplication(request)).application.sync_state
        assert state.status != ApplicationSyncStatus.INVALID_CONFIG
        assert "application configuration is invalid" not in piped.log
        assert piped.is_running


async def test_a_restart_on_a_full_disk_waits_for_space(
    tmp_path: Path, small_workspace: Path
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        await succeeded(installed, installed.push("cart"))
        await piped.kill()
        fill(small_workspace)
        head = installed.push("cart", more=f"# {'x' * 50_000}\n")
        piped = await installed.start_piped()

        async def is_logged() -> bool:
            return "the disk of piped is full" in piped.log

        await installed.eventually(is_logged)
        assert piped.is_running, piped.log
        empty(small_workspace)
        await succeeded(installed, head)
