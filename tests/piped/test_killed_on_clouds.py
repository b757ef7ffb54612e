# SPDX-License-Identifier: Apache-2.0
"""A piped is killed in the middle of every stage on a cloud, and the next one goes on.

The cloud has carried out a request of the stage and piped gets no answer any more: the hardest
moment, since only the cloud knows what was done.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.deployment import DeploymentStatus, StageStatus
from servers.amazon import Amazon
from servers.clouds import SECONDS, Cloud, Interruption, Kill, add_application, open_cloud
from servers.control_plane import LocalControlPlane, StartControlPlane
from servers.deployment_watch import DeploymentWatch, statuses
from servers.origin import Origin
from servers.piped import killed_piped
from servers.polling import eventually


@pytest.fixture(params=["cloudrun", "ecs", "lambda"])
def cloud(request: pytest.FixtureRequest, tmp_path: Path, amazon: Amazon) -> Cloud:
    return open_cloud(request.param, tmp_path, amazon, request)


@dataclass(frozen=True)
class Run:
    """The control plane, and the pipeds that are killed one after the other."""

    cloud: Cloud
    config: Path
    plane: LocalControlPlane

    async def kill(self, kill: Kill) -> None:
        """Runs a piped until it has sent a request, and kills it before the answer."""
        interruption = Interruption(lambda sent: self.cloud.is_request(kill, sent))
        self.cloud.interrupt(interruption)
        async with killed_piped(self.config, "--log-level=error"):
            await eventually(interruption.arrived.is_set, SECONDS)
            assert await self._running_stage() == kill.stage
        self.cloud.interrupt(Interruption(lambda _: False))
        interruption.killed.set()

    async def _running_stage(self) -> str:
        newest = (await DeploymentWatch(self.plane).deployments())[0]
        running = [each.name for each in newest.stages if each.status == StageStatus.RUNNING]
        return running[0] if running else ""

    async def ended(self, count: int) -> Any:
        async with killed_piped(self.config, "--log-level=error"):
            ended = await DeploymentWatch(self.plane).ended(count, seconds=SECONDS)
        assert self.cloud.state() == self.cloud.expected[count - 1]
        assert self.cloud.count() == self.cloud.created[count - 1]
        return ended


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("generation", ["first", "second"])
async def test_every_stage_continues_after_a_kill(
    start_plane: StartControlPlane,
    origin: Origin,
    cloud: Cloud,
    generation: str,
    tmp_path: Path,
) -> None:
    origin.commit(cloud.files("v1"))
    async with start_plane() as plane:
        config, _ = await add_application(plane, origin, cloud, generation, tmp_path)
        run = Run(cloud, config, plane)

        await run.kill(cloud.quick_sync)
        first = await run.ended(1)
        assert DeploymentStatus(first.status) is DeploymentStatus.SUCCESS, first.status_reason

        origin.commit(cloud.files("v2"))
        for kill in cloud.pipeline:
            await run.kill(kill)
        second = await run.ended(2)
        assert DeploymentStatus(second.status) is DeploymentStatus.SUCCESS, second.status_reason

        cloud.fail()
        origin.commit(cloud.files("v3"))
        await run.kill(cloud.rollback)
        third = await run.ended(3)
        assert DeploymentStatus(third.status) is DeploymentStatus.FAILURE
        assert statuses(third)[cloud.rollback.stage] is StageStatus.SUCCESS
