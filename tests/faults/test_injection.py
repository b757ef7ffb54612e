# SPDX-License-Identifier: Apache-2.0
"""What counts as an interruption of a piped, and what overlapping faults leave to each other."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from faults.evidence import InjectedFault
from faults.history import History
from faults.injection import Injector
from faults.truth import TruthLine


def injector(directory: Path, **installed: Any) -> Injector:
    nothing: Any = SimpleNamespace(duplicates=[], truth=SimpleNamespace(lines=[]))
    nothing.__dict__.update(installed)
    return Injector(nothing, History.begin(directory / "history.jsonl"))


@pytest.mark.parametrize(("is_launched", "start"), [(False, 1.0), (True, 5.0)])
def test_starts_launches_and_a_duplicate_that_has_the_lease_interrupt_a_piped(
    tmp_path: Path, is_launched: bool, start: float
) -> None:
    program = SimpleNamespace(name="piped-0", starts=[1.0])
    piped: Any = SimpleNamespace(id="p", program=program, is_launched=is_launched)
    launch = TruthLine("launch", "piped-0", "-", "-", "7", 5.0, "-")
    breaking = injector(tmp_path, truth=SimpleNamespace(lines=[launch]))
    breaking.lease_grants.times |= {"p": [1.5, 3.0], "q": [4.0]}
    breaking.faults += [
        InjectedFault("duplicate_piped", 2.0, 9.0, piped="p"),
        InjectedFault("duplicate_piped", 8.5, piped="p"),
        InjectedFault("duplicate_piped", 7.7, 7.9, piped="p"),
        InjectedFault("duplicate_piped", 2.0, 8.0, piped="q"),
        InjectedFault("kill_plugin", 6.0, 6.0, piped="p"),
        InjectedFault("pause_piped", 7.0, 7.5, piped="p"),
    ]
    # The start of a launcher is not one of its piped.
    assert breaking.interruptions(piped) == sorted([start, 3.0, 6.0, 9.0])


async def test_a_fault_that_ends_leaves_the_lost_responses_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("faults.injection._LOSING_SECONDS", 0.3)
    calls: Any = SimpleNamespace(losing={}, effects={"lost": 0})
    breaking = injector(tmp_path, calls=calls)
    async with asyncio.TaskGroup() as tasks:
        earlier = tasks.create_task(breaking.lose_responses(["ReportStageLogs"]))
        await asyncio.sleep(0.2)
        tasks.create_task(breaking.lose_responses(["ReportStageLogs"]))
        await earlier
        assert calls.losing == {"ReportStageLogs": 2}
    assert calls.losing == {}
