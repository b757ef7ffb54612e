# SPDX-License-Identifier: Apache-2.0
"""Drift is reported and deployed by a whole piped, whose plugin runs in its own process."""

import json
import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pipecd.model.application import SyncStatus
from pipecd.proto.model.deployment_pb2 import DeployTargets
from servers.control_plane import RunPiped, StartControlPlane
from servers.directory_plugin import CART_ON_SHELF, contents, piped_entry
from servers.environment import matching_sync_state
from servers.origin import Origin
from servers.polling import eventually
from servers.server import free_port

TARGETS = {"shelf": DeployTargets(deploy_targets=["here"])}


@pytest.fixture
def more(tmp_path: Path) -> str:
    """The lines about the plugin in the configuration of piped."""
    return f"plugins: {json.dumps([piped_entry(tmp_path, free_port())])}\n"


@pytest.mark.slow
async def test_a_manual_change_is_reported_as_drift_at_once(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    more: str,
    tmp_path: Path,
) -> None:
    origin.commit({"cart/app.pipecd.yaml": CART_ON_SHELF, "cart/files/a": "1"})
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        cart = await piped.add_application("cart", deploy_targets_by_plugin=TARGETS)
        has_status = partial(matching_sync_state, plane, cart)
        file = tmp_path / "shelf" / "cart" / "a"
        await eventually(partial(has_status, SyncStatus.SYNCED), 30)
        assert file.read_text() == "1"
        file.write_text("by hand")
        started = time.perf_counter()
        state = await eventually(partial(has_status, SyncStatus.OUT_OF_SYNC))
        took = time.perf_counter() - started
        assert "- a: by hand\n+ a: 1" in state.reason
        assert took < 2
        file.write_text("1")
        await eventually(partial(has_status, SyncStatus.SYNCED))
        assert len(await plane.completed_deployments()) == 1


@pytest.mark.slow
async def test_drift_triggers_a_deployment_if_on_out_of_sync_is_enabled(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    more: str,
    tmp_path: Path,
) -> None:
    config = CART_ON_SHELF + "  trigger: {onOutOfSync: {disabled: false, minWindow: 1s}}\n"
    origin.commit({"cart/app.pipecd.yaml": config, "cart/files/a": "1"})
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        cart = await piped.add_application("cart", deploy_targets_by_plugin=TARGETS)
        has_status = partial(matching_sync_state, plane, cart)
        file = tmp_path / "shelf" / "cart" / "a"
        await eventually(partial(has_status, SyncStatus.SYNCED), 30)
        (first,) = await plane.completed_deployments()
        await eventually(lambda: time.time() > first.completed_at + 2)
        file.write_text("by hand")
        started = time.perf_counter()
        await eventually(lambda: contents(file.parent) == {"a": "1"})
        took = time.perf_counter() - started
        await eventually(partial(has_status, SyncStatus.SYNCED))
        _, second = await plane.completed_deployments()
        assert second.trigger.commit.hash == first.trigger.commit.hash
        assert took < 4


def processes_of(program: Path) -> list[int]:
    """The ids of the processes that run a program."""
    ids: list[int] = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and str(program).encode() in (entry / "cmdline").read_bytes():
                ids.append(int(entry.name))
    return ids


@pytest.mark.slow
async def test_a_killed_plugin_is_restarted_and_read_again(
    start_plane: StartControlPlane,
    whole_piped: RunPiped,
    origin: Origin,
    more: str,
    tmp_path: Path,
) -> None:
    config = CART_ON_SHELF + "  trigger: {onCommit: {disabled: true}}\n"
    origin.commit({"cart/app.pipecd.yaml": config, "cart/files/a": "1"})
    file = tmp_path / "shelf" / "cart" / "a"
    file.parent.mkdir(parents=True)
    file.write_text("1")
    async with start_plane() as plane, whole_piped(plane, origin.remote, more=more) as piped:
        cart = await piped.add_application("cart", deploy_targets_by_plugin=TARGETS)
        has_status = partial(matching_sync_state, plane, cart)
        await eventually(partial(has_status, SyncStatus.SYNCED), 30)
        killed = processes_of(tmp_path / "shelf-plugin")
        for process in killed:
            os.kill(process, signal.SIGKILL)
        origin.commit({"cart/files/a": "2"})
        state = await eventually(partial(has_status, SyncStatus.OUT_OF_SYNC), 30)
        assert "- a: 1\n+ a: 2" in state.reason
        assert killed
        assert not set(killed) & set(processes_of(tmp_path / "shelf-plugin"))
