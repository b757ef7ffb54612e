# SPDX-License-Identifier: Apache-2.0
"""Drift through a whole piped, whose platform is a plugin in a process of its own."""

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.model.application import SyncStatus
from pipecd.proto.model.application_pb2 import ApplicationSyncState
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.control_plane import RunPiped, ServedControlPlane, StartControlPlane
from servers.directory_plugin import CART_ON_SHELF, contents, piped_entry
from servers.origin import Origin
from servers.polling import eventually
from servers.server import free_port

TARGETS = {"shelf": DeployTargets(deploy_targets=["here"])}


@pytest.fixture
def more(tmp_path: Path) -> str:
    """The lines about the plugin in the configuration of piped."""
    return f"plugins: {json.dumps([piped_entry(tmp_path, free_port())])}\n"


@dataclass
class Scene:
    """One application, and what a test asks about it."""

    plane: ServedControlPlane
    file: Path

    async def state(self) -> ApplicationSyncState:
        return (await self.plane.application_named("cart")).sync_state

    def is_in(self, status: SyncStatus) -> Any:
        """A question for `eventually`."""

        async def ask() -> ApplicationSyncState | None:
            state = await self.state()
            return state if state.status == status else None

        return ask


@pytest.mark.slow
async def test_drift_made_by_hand_is_told_and_explained_within_a_moment(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    more: str,
    tmp_path: Path,
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART_ON_SHELF, "cart/files/a": "1"})
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        await piped.add_application("cart", deploy_targets_by_plugin=TARGETS)
        scene = Scene(plane, tmp_path / "shelf" / "cart" / "a")
        await eventually(scene.is_in(SyncStatus.SYNCED), 30)
        assert scene.file.read_text() == "1"
        scene.file.write_text("by hand")
        begun = time.perf_counter()
        state = await eventually(scene.is_in(SyncStatus.OUT_OF_SYNC))
        took = time.perf_counter() - begun
        assert "- a: by hand\n+ a: 1" in state.reason
        assert took < 2
        scene.file.write_text("1")
        await eventually(scene.is_in(SyncStatus.SYNCED))
        assert len(await plane.completed_deployments()) == 1


@pytest.mark.slow
async def test_drift_is_deployed_away_where_an_application_wants_it(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    more: str,
    tmp_path: Path,
) -> None:
    wants = CART_ON_SHELF + "  trigger: {onOutOfSync: {disabled: false, minWindow: 1s}}\n"
    origin.commit({"cart/app.pipecd.yaml": wants, "cart/files/a": "1"})
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        await piped.add_application("cart", deploy_targets_by_plugin=TARGETS)
        scene = Scene(plane, tmp_path / "shelf" / "cart" / "a")
        await eventually(scene.is_in(SyncStatus.SYNCED), 30)
        (first,) = await plane.completed_deployments()
        await eventually(lambda: time.time() > first.completed_at + 2)
        scene.file.write_text("by hand")
        begun = time.perf_counter()
        await eventually(lambda: contents(scene.file.parent) == {"a": "1"})
        took = time.perf_counter() - begun
        await eventually(scene.is_in(SyncStatus.SYNCED))
        _, second = await plane.completed_deployments()
        assert second.trigger.commit.hash == first.trigger.commit.hash
        assert took < 4


def processes_of(program: Path) -> list[int]:
    """The ids of the processes that run a program."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and str(program).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.slow
async def test_a_plugin_that_was_killed_is_asked_again(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    more: str,
    tmp_path: Path,
) -> None:
    quiet = CART_ON_SHELF + "  trigger: {onCommit: {disabled: true}}\n"
    origin.commit({"cart/app.pipecd.yaml": quiet, "cart/files/a": "1"})
    file = tmp_path / "shelf" / "cart" / "a"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        await piped.add_application("cart", deploy_targets_by_plugin=TARGETS)
        scene = Scene(plane, file)
        await eventually(scene.is_in(SyncStatus.SYNCED), 30)
        killed = processes_of(tmp_path / "shelf-plugin")
        for process in killed:
            os.kill(process, signal.SIGKILL)
        origin.commit({"cart/files/a": "2"})
        state = await eventually(scene.is_in(SyncStatus.OUT_OF_SYNC), 30)
        assert "- a: 1\n+ a: 2" in state.reason
        assert killed
        assert not set(killed) & set(processes_of(tmp_path / "shelf-plugin"))
