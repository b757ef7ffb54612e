# SPDX-License-Identifier: Apache-2.0
"""A deployment with an external plugin, whose last log lines may arrive late."""

import asyncio
import sys

import pytest

from pipecd.config.piped import PluginSpec
from pipecd.model.deployment import DeploymentStatus
from pipecd.piped.pluginhost.remote import RemotePlugin
from servers.deployer import OpenDeployer
from servers.server import free_port

# A plugin that, as those of upstream do, sends its lines some time after they were written.
PROGRAM = '''#!{python}
"""A plugin whose log is slow."""
import asyncio
from pipecd.sdk import Stage, StageContext, StagePlugin, StageLog, StageResult, serve

class Slow(StagePlugin):
    stages = (Stage("SLOW"),)

    async def execute(self, stage: StageContext) -> StageResult:
        stage.log.info("one")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            late = StageLog(stage.host, stage.deployment.id, stage.id)
            self.task = asyncio.ensure_future(self.say(late))
            raise

    async def say(self, late):
        await asyncio.sleep(0.2)
        try:
            async with late.kept():
                late.info("two")
                await asyncio.sleep(0.1)
                raise KeyError
        except KeyError:
            pass

if __name__ == "__main__":
    serve(Slow)
'''


@pytest.mark.slow
async def test_the_late_lines_of_a_stopped_program_are_not_lost(
    open_setup: OpenDeployer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RemotePlugin, "log_lag", 1.0)
    port = free_port()
    async with open_setup() as setup:
        program = setup.plane.directory / "slow"
        program.write_text(PROGRAM.format(python=sys.executable))
        program.chmod(0o755)
        spec = PluginSpec(name="slow", url=f"file://{program}", port=port)
        async with setup.piped([spec]):
            stages = "[{name: SLOW}, {name: ACT}]"
            id = await setup.trigger(setup.push(f"  pipeline: {{stages: {stages}}}\n"))
            running = await setup.until(id, lambda d: bool(d.stages) and d.stages[0].status == 1)
            stage_id = running.stages[0].id
            await setup.plane.wait_for(lambda: setup.plane.log_lines(id, stage_id), bool)
            await setup.plane.wait_for_command(await setup.cancel(id))
            done = await setup.plane.deployment(id)
            assert DeploymentStatus(done.status) is DeploymentStatus.CANCELLED
            async with asyncio.timeout(10):
                await setup.plane.wait_for(
                    lambda: setup.plane.stage_log(id, stage_id), lambda log: log.completed
                )
        assert await setup.plane.log_lines(id, stage_id) == ["one", "two", "Cancelled by root"]
