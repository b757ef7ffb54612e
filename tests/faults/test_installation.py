# SPDX-License-Identifier: Apache-2.0
"""Without faults the installations of these tests deploy as any other does."""

from pathlib import Path

import pytest

from faults import whole_installation
from faults.conftest import OpenInstallation
from faults.installation import open_installation
from pipecd.model.deployment import DeploymentStatus
from servers.origin import Origin

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_one_server_on_sqlite_deploys_a_push(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        head = installed.push("cart")
        await installed.start_piped()
        done = await installed.eventually(lambda: installed.completed(head))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert [run.commit for run in installed.runs()] == [head]


async def test_two_replicas_on_postgresql_deploy_a_push(open_replicas: OpenInstallation) -> None:
    async with open_replicas() as installed:
        head = installed.push("cart")
        await installed.start_piped()
        done = await installed.eventually(lambda: installed.completed(head, replica=1))
        assert DeploymentStatus(done.status) is DeploymentStatus.SUCCESS
        assert [run.commit for run in installed.runs()] == [head]


def test_a_lock_that_a_killed_push_left_behind_stops_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_installation, "_LOCK_SECONDS", 0.3)
    origin = Origin.begin(tmp_path)
    (tmp_path / ".git" / "index.lock").touch()
    commit = whole_installation.commit_despite_locks(origin, {"a": "1"}, "a change")
    assert origin.git("rev-parse", "HEAD") == commit
