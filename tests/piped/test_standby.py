# SPDX-License-Identifier: Apache-2.0
"""A piped that the launcher starts beside a running one: what it checks, and that it only waits."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pipecd.model.errors import PipecdError, Unauthenticated
from pipecd.piped.app import PipedSettings, run_piped
from pipecd.program.handover import (
    LauncherConnection,
    Phase,
    PipedConnection,
    PipedReport,
    StartOrder,
)
from servers.control_plane import GatedControlPlane, OpenControlPlane
from servers.origin import Origin
from servers.polling import eventually


@dataclass
class WaitingPiped:
    """A piped with the launcher's end of its connection."""

    task: "asyncio.Task[None]"
    connection: PipedConnection
    reports: list[PipedReport] = field(default_factory=list[PipedReport])

    @property
    def phases(self) -> list[Phase]:
        return [report.phase for report in self.reports]

    async def reaches(self, phase: Phase) -> PipedReport:
        """Returns the report of a phase; a piped that ends before raises its error."""
        await eventually(lambda: phase in self.phases or self.task.done(), 20)
        if self.task.done():
            self.task.result()
        return next(report for report in self.reports if report.phase is phase)


@asynccontextmanager
async def started(
    settings: PipedSettings, order: StartOrder | None = None
) -> AsyncGenerator[WaitingPiped]:
    """Starts a piped as the launcher does, and stops it at the end of the block."""
    connection = PipedConnection()
    launcher = LauncherConnection(os.dup(connection.descriptor))
    connection.close_descriptor()
    if order is not None:
        connection.send_order(order)
    piped = run_piped(replace(settings, launcher=launcher))
    waiting = WaitingPiped(asyncio.create_task(piped), connection)

    async def read() -> None:
        async for report in connection.reports():
            waiting.reports.append(report)

    reading = asyncio.create_task(read())
    try:
        yield waiting
    finally:
        for task in (waiting.task, reading):
            task.cancel()
        # A piped that has handed over ends with an error.
        await asyncio.gather(waiting.task, reading, return_exceptions=True)
        connection.close()
        launcher.close()


def settings_of(
    plane: GatedControlPlane, origin: Origin, workspace: Path, more: str = ""
) -> PipedSettings:
    return replace(plane.piped.settings(origin.remote, more), workspace=workspace, grace=5.0)


async def test_it_waits_beside_a_running_piped_and_then_takes_over(
    open_plane: OpenControlPlane, origin: Origin, tmp_path: Path
) -> None:
    origin.commit({"README": ""})
    workspace = tmp_path / "work"
    async with open_plane() as plane:
        settings = settings_of(plane, origin, workspace)
        async with started(settings, StartOrder.START) as older:
            assert (await older.reaches(Phase.RUNNING)).has_lease
            async with started(settings) as newer:
                assert (await newer.reaches(Phase.READY)).has_lease
                await asyncio.sleep(0.05)
                assert newer.phases == [Phase.CHECKING, Phase.CHECKING, Phase.READY]
                assert not older.task.done()
                newer.connection.send_order(StartOrder.TAKE_OVER)
                await newer.reaches(Phase.RUNNING)
                assert older.task.done()
                # Otherwise the next start would wait for a piped that has replaced this one.
                assert not (workspace / "replaced.json").exists()


async def test_it_does_not_even_create_its_workspace_before_it_may_start(
    open_plane: OpenControlPlane, origin: Origin, tmp_path: Path
) -> None:
    workspace = tmp_path / "work"
    async with open_plane() as plane, started(settings_of(plane, origin, workspace)) as piped:
        await piped.reaches(Phase.READY)
        assert not workspace.exists()


async def test_it_reports_which_plugins_and_targets_it_cannot_use(
    open_plane: OpenControlPlane, origin: Origin, tmp_path: Path
) -> None:
    plugins = (
        "plugins: [{name: ecs, deployTargets: [{name: good, config: {region: tokyo-1}}, "
        "{name: bad}]}, {name: greeter, url: 'file:///nowhere/greeter'}, "
        "{name: dance, url: 'builtin://dance'}]\n"
    )
    async with (
        open_plane() as plane,
        started(settings_of(plane, origin, tmp_path / "work", plugins)) as piped,
    ):
        ready = await piped.reaches(Phase.READY)
        assert list(ready.usable) == ["ecs", "ecs/good"]
        assert sorted(ready.unusable) == ["dance", "ecs/bad", "greeter"]
        assert "/nowhere/greeter" in ready.unusable["greeter"]


async def test_it_ends_with_the_reason_if_its_key_is_refused(
    open_plane: OpenControlPlane, origin: Origin, tmp_path: Path
) -> None:
    async with open_plane() as plane:
        plane.piped.key = "wrong"
        async with started(settings_of(plane, origin, tmp_path / "work")) as piped:
            with pytest.raises(Unauthenticated):
                await piped.reaches(Phase.READY)


async def test_it_ends_with_its_launcher(
    open_plane: OpenControlPlane, origin: Origin, tmp_path: Path
) -> None:
    async with open_plane() as plane, started(settings_of(plane, origin, tmp_path / "w")) as piped:
        await piped.reaches(Phase.READY)
        piped.connection.close()
        with pytest.raises(PipecdError, match="the launcher ended"):
            async with asyncio.timeout(10):
                await piped.task
