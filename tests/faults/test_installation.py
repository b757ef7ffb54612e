# SPDX-License-Identifier: Apache-2.0
"""Without faults the installations of these tests deploy as any other does."""

from pathlib import Path

import pytest

from faults.conftest import OpenInstallation
from faults.installation import open_installation
from pipecd.model.deployment import DeploymentStatus

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
