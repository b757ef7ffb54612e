# SPDX-License-Identifier: Apache-2.0
"""Files of a piped may be lost or damaged while it runs."""

import shutil
from pathlib import Path

import pytest

from faults.installation import FaultyInstallation, open_installation
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.application_pb2 import ApplicationSyncStatus
from pipecd.proto.service import api_pb2 as pb

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def mirror(installed: FaultyInstallation) -> Path:
    """The directory of the mirror: where Git has its objects."""
    workspace = installed.directory / "piped" / "workspace"
    return next(
        head.parent for head in workspace.rglob("HEAD") if (head.parent / "objects").is_dir()
    )


async def sync_status(installed: FaultyInstallation) -> int:
    async with installed.api() as api:
        request = pb.GetApplicationRequest(application_id=installed.applications["cart"])
        return (await api.GetApplication(request)).application.sync_state.status


def damage_mirror(repository: Path, damage: str) -> None:
    match damage:
        case "removed" | "all mirrors":
            # At once, because piped clones again while the files are being removed.
            directory = repository if damage == "removed" else repository.parent
            removed = directory.with_name("removed")
            directory.rename(removed)
            shutil.rmtree(removed)
        case "objects" | "refs":
            shutil.rmtree(repository / damage)
        case "contents of objects":
            shutil.rmtree(repository / "objects")
            (repository / "objects").mkdir()
        case file:
            (repository / file).write_text("\0 garbage [[[\n")


@pytest.mark.parametrize(
    "damage",
    ["removed", "all mirrors", "config", "HEAD", "objects", "refs", "contents of objects"],
)
async def test_a_damaged_mirror_is_created_again(tmp_path: Path, damage: str) -> None:
    async with open_installation(tmp_path) as installed:
        head = installed.push("cart")
        piped = await installed.start_piped()
        await installed.eventually(lambda: installed.completed(head))
        repository = mirror(installed)
        damage_mirror(repository, damage)
        # The same commit is deployed again, then a new one.
        await installed.sync("cart")
        await installed.eventually(lambda: installed.count_is(head, 2), within=20)
        await installed.eventually(installed.all_completed, within=20)
        damage_mirror(mirror(installed), damage)
        head = installed.push("cart")
        await installed.eventually(lambda: installed.completed(head), within=20)
        for deployment in await installed.deployments():
            assert DeploymentStatus(deployment.status) is DeploymentStatus.SUCCESS
        assert await sync_status(installed) != ApplicationSyncStatus.INVALID_CONFIG
        assert "application configuration is invalid" not in piped.log
        assert piped.is_running


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("[]", id="list"),
        pytest.param("5", id="number"),
        pytest.param('{"stages": [], "keys": 3}', id="wrong-types"),
        pytest.param('{"stages": {"s": 1}, "outcome": []}', id="wrong-types-below"),
        pytest.param("\0", id="binary"),
    ],
)
async def test_a_restarted_piped_goes_on_with_damaged_state_files(
    tmp_path: Path, content: str
) -> None:
    async with open_installation(tmp_path) as installed:
        piped = await installed.start_piped()
        first = installed.push("cart")
        await installed.eventually(lambda: installed.completed(first))
        head = installed.push("cart", seconds=2)
        await installed.eventually(lambda: installed.running(head))
        await piped.kill()
        workspace = installed.directory / "piped" / "workspace"
        (deployment,) = (workspace / "deployments").iterdir()
        (workspace / "trigger").mkdir(exist_ok=True)
        files = [
            deployment / "journal.json",
            workspace / "notifications.jsonl",
            workspace / "trigger" / "seen.json",
        ]
        for file in files:
            file.write_text(f"{content}\n")
        piped = await installed.start_piped()
        done = await installed.eventually(lambda: installed.completed(head))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        head = installed.push("cart")
        done = await installed.eventually(lambda: installed.completed(head))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert piped.is_running
        for file in files:
            assert f'"file": "{file}", "set_aside_as": "{file.name}.damaged-1"' in piped.log
            # The directory of the deployment is removed when it is completed.
            if file.parent != deployment:
                assert (file.parent / f"{file.name}.damaged-1").read_text() == f"{content}\n"
