# SPDX-License-Identifier: Apache-2.0
"""Two pipeds with one id: the newer one takes over, and no stage runs twice at the same moment."""

import signal
from collections import Counter
from pathlib import Path

import grpc
import pytest

from faults.conftest import OpenInstallation
from faults.installation import FaultyInstallation, open_installation
from faults.program import Program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NAMES = ("cart", "shop", "mail")


async def push_all(installed: FaultyInstallation, *, seconds: float = 1) -> None:
    """Pushes a change to every application and waits until the last one is deployed."""
    commits = [installed.push(name, seconds=seconds) for name in NAMES]
    await installed.eventually(lambda: installed.completed(commits[-1]))


async def wait_for_end(installed: FaultyInstallation, piped: Program, within: float = 60) -> None:
    await installed.eventually(
        lambda: installed.value_is(lambda: piped.is_running, False),
        within=within,
        what=f"{piped.name} did not end",
    )


def runs_per_deployment(installed: FaultyInstallation) -> Counter[str]:
    return Counter(run.deployment for run in installed.runs())


async def take_over(
    installed: FaultyInstallation, *, older_at: int | None = None, newer_at: int | None = None
) -> None:
    """Starts a second piped while stages of the first one run."""
    older = await installed.start_piped("older", replica=older_at)
    await push_all(installed)
    commits = [installed.push(name, seconds=3) for name in NAMES]
    await installed.eventually(lambda: installed.running(commits[-1]))
    newer = await installed.start_piped("newer", replica=newer_at)
    for _ in range(3):
        await push_all(installed)
    await installed.eventually(installed.all_completed)
    assert set(runs_per_deployment(installed).values()) == {1}
    await wait_for_end(installed, older)
    assert f"another piped with the id {installed.piped_id} has started on host" in older.log
    assert "only one piped may run with an id" in older.log
    assert newer.is_running
    assert "waiting until it hands over" in newer.log


async def test_a_second_piped_with_the_same_id_takes_over(tmp_path: Path) -> None:
    async with open_installation(tmp_path, applications=NAMES) as installed:
        await take_over(installed)


async def test_a_second_piped_takes_over_from_one_that_is_connected_to_another_replica(
    open_replicas: OpenInstallation,
) -> None:
    async with open_replicas(*NAMES) as installed:
        await take_over(installed, older_at=0, newer_at=1)


async def test_a_piped_that_does_not_react_is_fenced(open_replicas: OpenInstallation) -> None:
    async with open_replicas() as installed:
        older = await installed.start_piped("older", replica=0)
        first = installed.push("cart")
        await installed.eventually(lambda: installed.completed(first))
        older.signal(signal.SIGSTOP)
        newer = await installed.start_piped("newer", replica=1)
        second = installed.push("cart")
        await installed.eventually(lambda: installed.completed(second), within=30)
        older.signal(signal.SIGCONT)
        await wait_for_end(installed, older, within=10)
        assert "another piped" in older.log
        assert newer.is_running
        assert set(runs_per_deployment(installed).values()) == {1}


async def test_a_piped_whose_connection_falls_silent_is_replaced(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        older = await installed.start_piped("older")
        first = installed.push("cart")
        await installed.eventually(lambda: installed.completed(first))
        installed.front.silence()
        newer = await installed.start_piped("newer", replica=0)
        second = installed.push("cart")
        await installed.eventually(lambda: installed.completed(second), within=30)
        installed.front.cut()
        installed.front.heal()
        await wait_for_end(installed, older)
        assert "another piped" in older.log
        assert newer.is_running
        assert set(runs_per_deployment(installed).values()) == {1}


async def test_a_piped_without_wakeups_ends_before_the_other_one_starts(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        installed.calls.unimplemented.add("WatchWakeups")
        older = await installed.start_piped("older")
        first = installed.push("cart")
        await installed.eventually(lambda: installed.completed(first))
        second = installed.push("cart", seconds=20)
        await installed.eventually(
            lambda: installed.value_is(lambda: installed.runs()[-1].commit, second)
        )
        newer = await installed.start_piped("newer")
        await wait_for_end(installed, older, within=30)
        assert "another piped" in older.log
        await installed.eventually(lambda: installed.completed(second))
        assert newer.is_running
        assert installed.overlaps() == []


async def test_a_replaced_piped_that_is_restarted_waits_until_the_other_one_is_gone(
    tmp_path: Path,
) -> None:
    async with open_installation(tmp_path) as installed:
        older = await installed.start_piped("older")
        first = installed.push("cart")
        await installed.eventually(lambda: installed.completed(first))
        newer = await installed.start_piped("newer")
        await wait_for_end(installed, older)
        await older.start()
        await installed.eventually(
            lambda: installed.value_is(lambda: "waiting until it is gone" in older.log, True)
        )
        second = installed.push("cart")
        await installed.eventually(lambda: installed.completed(second))
        assert newer.is_running
        await newer.stop()
        third = installed.push("cart")
        await installed.eventually(lambda: installed.completed(third), within=60)
        assert older.is_running


async def test_a_replaced_piped_takes_over_from_one_that_died_behind_a_silent_connection(
    tmp_path: Path,
) -> None:
    async with open_installation(tmp_path) as installed:
        older = await installed.start_piped("older", replica=0)
        first = installed.push("cart")
        await installed.eventually(lambda: installed.completed(first))
        newer = await installed.start_piped("newer")
        await wait_for_end(installed, older)
        await older.start()
        await installed.eventually(
            lambda: installed.value_is(lambda: "waiting until it is gone" in older.log, True)
        )
        installed.front.silence()
        await newer.kill()
        second = installed.push("cart")
        await installed.eventually(lambda: installed.completed(second), within=25)


async def test_a_piped_continues_if_the_one_that_replaces_it_is_killed_meanwhile(
    tmp_path: Path,
) -> None:
    async with open_installation(tmp_path) as installed:
        older = await installed.start_piped("older")
        first = installed.push("cart", seconds=8)
        await installed.eventually(lambda: installed.running(first))
        newer = await installed.start_piped("newer")
        await installed.eventually(
            lambda: installed.value_is(lambda: "another piped" in older.log, True)
        )
        await newer.kill()
        await installed.eventually(lambda: installed.completed(first))
        second = installed.push("cart")
        await installed.eventually(lambda: installed.completed(second))
        assert older.is_running
        assert set(runs_per_deployment(installed).values()) == {1}


async def test_late_requests_of_a_killed_process_are_refused(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        installed.calls.recording.add("*")
        piped = await installed.start_piped()
        first = installed.push("cart")
        await installed.eventually(lambda: installed.completed(first))
        await piped.kill()
        recorded, installed.calls.recorded = installed.calls.recorded, []
        await piped.start()
        await installed.eventually(
            lambda: installed.value_is(lambda: piped.log.count("piped is running") >= 2, True)
        )
        assert "another piped" not in piped.log
        names = [call.name for call in recorded]
        assert {"ReportDeploymentCompleted", "ReportStageStatusChanged"} <= set(names)
        # The first request for the lease is never granted.
        assert names[:2] == ["AcquirePipedLease", "AcquirePipedLease"]
        assert await installed.calls.send(recorded[0]) == grpc.StatusCode.OK
        refused = {await installed.calls.send(call) for call in recorded[1:]}
        assert refused == {grpc.StatusCode.FAILED_PRECONDITION}
        second = installed.push("cart")
        await installed.eventually(lambda: installed.completed(second))
        assert piped.is_running


async def test_a_piped_that_is_stopped_hands_over_at_once(tmp_path: Path) -> None:
    async with open_installation(tmp_path) as installed:
        first = await installed.start_piped("first")
        commit = installed.push("cart")
        await installed.eventually(lambda: installed.completed(commit))
        await first.stop()
        second = await installed.start_piped("second")
        commit = installed.push("cart")
        await installed.eventually(lambda: installed.completed(commit))
        assert "another piped" not in first.log + second.log
