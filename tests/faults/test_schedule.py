# SPDX-License-Identifier: Apache-2.0
"""Schedules follow from their seed, name only what exists, can be shortened, and are shown as timelines."""

from collections.abc import Sequence
from contextlib import nullcontext
from inspect import signature
from pathlib import Path

import pytest

from faults import schedule, timeline
from faults.applications import (
    CONFIG,
    FaultyApplication,
    Platform,
    Revision,
    Targets,
    all_applications,
)
from faults.history import History
from faults.injection import Injector
from faults.layouts import Layout
from faults.schedule import FAULTS, RESTARTING, WORKLOAD, Scene
from faults.shrinking import shrink
from faults.truth import TruthLine
from faults.workload import Workload
from pipecd.config.catalog import load_catalog
from pipecd.config.read import read_application
from pipecd.model.errors import UserMistake

PIPEDS = 3


def scene(layout: Layout = Layout.POSTGRESQL, platforms: Sequence[Platform] = tuple(Platform)) -> Scene:  # fmt: skip
    return Scene(layout, all_applications(platforms, PIPEDS), PIPEDS, replicas=2)


def test_there_are_at_least_20_applications_and_every_piped_has_some_of_each_platform() -> None:
    applications = all_applications(tuple(Platform), PIPEDS)
    assert len(applications) >= 20
    assert {(a.platform, a.piped) for a in applications} == {
        (platform, piped) for platform in Platform for piped in range(PIPEDS)
    }


@pytest.mark.parametrize("platform", Platform)
def test_a_broken_file_does_not_parse_and_all_others_do(platform: Platform, tmp_path: Path) -> None:
    targets = Targets(tmp_path / "truth", tmp_path)
    application = FaultyApplication("web", platform, 0)
    for is_broken in (False, True):
        text = targets.files(application, Revision(nonce=1, is_broken=is_broken))[f"web/{CONFIG}"]
        with pytest.raises(UserMistake) if is_broken else nullcontext():
            read_application(text, file=CONFIG, catalog=load_catalog())


def test_a_schedule_follows_from_its_seed() -> None:
    once, again, other = (schedule.generate(seed, scene(), seconds=60) for seed in ("1", "1", "2"))
    assert once == again != other
    assert {step.is_fault for step in once} == {True, False}


@pytest.mark.parametrize("layout", Layout)
def test_every_step_can_be_carried_out(layout: Layout) -> None:
    """Its name is that of a method, and its options are the method's arguments."""
    steps = schedule.generate("1", scene(layout), seconds=3000)
    for step in steps:
        owner = Injector if step.is_fault else Workload
        signature(getattr(owner, step.name)).bind(None, **step.options)
    possible = len(FAULTS) + len(WORKLOAD)
    # Those of servers, a file that others lock, and a full disk for files, which a bucket replaces.
    impossible = {Layout.SQLITE: 10, Layout.MYSQL: 1, Layout.POSTGRESQL: 2}[layout]
    assert len({step.name for step in steps}) == possible - impossible


def test_a_soak_starts_no_program_again_and_leaves_out_nothing_else() -> None:
    steps = schedule.generate("1", scene(), seconds=3000, without=RESTARTING)
    everything = {*FAULTS, *WORKLOAD} - {"fill_data", "lock_data"}
    assert {step.name for step in steps} == everything - RESTARTING
    assert everything > RESTARTING


def test_steps_without_anything_to_choose_from_are_left_out() -> None:
    steps = schedule.generate("1", scene(Layout.SQLITE, [Platform.PROCESS]), seconds=2000)
    assert not {"approve", "register_event", "skip", "api_server_away", "kill_server"} & {
        step.name for step in steps
    }


def test_a_schedule_survives_its_file(tmp_path: Path) -> None:
    steps = schedule.generate("1", scene(), seconds=30)
    schedule.save(steps, tmp_path / "schedule.json")
    assert schedule.load(tmp_path / "schedule.json") == steps


@pytest.mark.parametrize("needed", [{3}, {0, 19}, {4, 5, 6}, set(range(20))])
async def test_a_schedule_is_shortened_to_the_steps_that_are_needed(needed: set[int]) -> None:
    async def violates(steps: Sequence[int]) -> bool:
        return needed <= set(steps)

    assert set(await shrink(range(20), violates, runs=500)) == needed


async def test_shortening_ends_after_the_runs_that_are_allowed() -> None:
    runs: list[Sequence[int]] = []

    async def violates(steps: Sequence[int]) -> bool:
        runs.append(steps)
        return 3 in steps and 17 in steps

    kept = await shrink(range(20), violates, runs=5)
    assert len(runs) == 5
    assert {3, 17} <= set(kept)


def test_a_timeline_has_everything_by_time_and_nothing_unescaped(tmp_path: Path) -> None:
    history = History.begin(tmp_path / "history.jsonl")
    first = history.add("piped-0", "kill_piped pause=1", "fault")
    history.add("web", "<script> is RUNNING", "status")
    line = TruthLine("begin", "web", "d" * 36, "c", "7", first.at - 1, "0")
    records = timeline.merged(history.records, [line])
    text, page = timeline.write(tmp_path, "timeline", records, "Round <1>")
    assert [row.split()[1:3] for row in text.read_text().splitlines()] == [
        ["■", "web"],
        ["✗", "piped-0"],
        ["○", "web"],
    ]
    html = page.read_text()
    assert "&lt;script&gt; is RUNNING" in html
    assert "<script>" not in html
    assert "Round &lt;1&gt;" in html
    assert 'class="fault"' in html
