# SPDX-License-Identifier: Apache-2.0
"""Plugins for the tests of the host, in this process and in processes of their own."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.sdk import (
    DeploymentPlugin,
    DeployTarget,
    PlanContext,
    PlannedStage,
    PluginEntry,
    Spec,
    Stage,
    StageContext,
    StageResult,
    Strategy,
    SyncStrategy,
    UserMistake,
    Version,
)
from pipecd.sdk.testing import StageBench
from servers import server

PROGRAM = '''#!{python}
"""A third-party plugin in its own file."""
import asyncio, os, sys
from pipecd.sdk import Spec, Stage, StageContext, StagePlugin, StageResult, serve

class Options(Spec):
    name: str = "World"

class Greet(StagePlugin):
    stages = (Stage("GREET", Options), Stage("LINGER"))

    async def execute(self, stage: StageContext) -> StageResult:
        if stage.name == "LINGER":
            stage.log.info(f"pid {{os.getpid()}}")
            await asyncio.sleep(60)
        async for command in stage.commands():
            stage.log.info(f"{{command.commander}} said {{command.kind.value}}")
            break
        await stage.metadata.put({{"greeted": "yes"}})
        return StageResult.succeeded("Hello " + stage.options(Options).name)

if __name__ == "__main__":
    serve(Greet)
'''


class TargetConfig(Spec):
    """The deploy target of the platform of these tests."""

    region: str = ""


class Platform(DeploymentPlugin):
    """A platform that answers by the name of the application's commit."""

    stages = (Stage("SYNC"), Stage("SYNC_ROLLBACK"))

    def __init__(self) -> None:
        self.stopped = asyncio.Event()
        self.started = asyncio.Event()

    async def versions(self, plan: PlanContext) -> Sequence[Version]:
        if plan.deployment.commit.message == "explode":
            raise ZeroDivisionError("a bug")
        if plan.deployment.commit.message == "refuse":
            raise UserMistake("there is no manifest", hint="add one")
        return [Version(plan.target.commit, "web", "https://example.com")]

    async def quick_sync(self, *, rollback: bool) -> Sequence[PlannedStage]:
        undo = [PlannedStage("SYNC_ROLLBACK", description="undo", is_rollback=True)]
        return [PlannedStage("SYNC", description="everything"), *(undo if rollback else [])]

    async def strategy(self, plan: PlanContext) -> Strategy | None:
        if plan.running is None:
            return None
        return Strategy(SyncStrategy.QUICK_SYNC, f"from {plan.running.commit}")

    async def execute(self, stage: StageContext) -> StageResult:
        targets = [f"{t.name} in {t.settings(TargetConfig).region}" for t in stage.targets]
        stage.log.info("; ".join(targets))
        if stage.name == "SYNC_ROLLBACK":
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.stopped.set()
        return StageResult.succeeded("synced")


@pytest.fixture
def platform() -> Platform:
    return Platform()


@pytest.fixture
def entry() -> PluginEntry:
    return PluginEntry("platform", {}, (DeployTarget("dev", {"env": "dev"}, {"region": "eu"}),))


@pytest.fixture
def deployment(platform: Platform, entry: PluginEntry, tmp_path: Path) -> Deployment:
    """A deployment to the target `dev`."""
    return StageBench(platform, tmp_path, entry=entry).deployment()


@pytest.fixture
def free_port() -> int:
    return server.free_port()


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a plugin program; without a text it is one that greets."""

    def write(text: str = "") -> Path:
        path = tmp_path / "greeter"
        path.write_text(text or PROGRAM.format(python=sys.executable))
        path.chmod(0o755)
        return path

    return write
