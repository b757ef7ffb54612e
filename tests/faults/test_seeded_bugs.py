# SPDX-License-Identifier: Apache-2.0
"""Each bug that is put into our programs is found by its rule, and without a bug nothing is found."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.applications import FaultyApplication, Platform, Shape
from faults.campaign import run_schedule
from faults.layouts import Layout
from faults.schedule import Step
from faults.seeded_bugs import BUGS
from faults.whole_installation import Options

APPLICATIONS = (
    FaultyApplication("s00", Platform.SCRIPT, 0),
    FaultyApplication("s01", Platform.SCRIPT, 0, Shape.ROLLBACK),
    FaultyApplication("s02", Platform.SCRIPT, 0, Shape.APPROVAL),
    FaultyApplication("s06", Platform.SCRIPT, 0, Shape.EVENTS),
)


def options(*bugs: str) -> Options:
    return Options(Layout.SQLITE, APPLICATIONS, pipeds=1, seeded_bugs=bugs)


# Bugs of one group do not hide each other, and are seeded into one installation.
GROUPS: dict[str, Sequence[str]] = {
    "promises that are broken without any fault": (
        "a command is acknowledged before it is done",
        "an approval is counted twice",
        "log lines are lost",
        "notifications overtake each other",
        "a deployment ends before its rollback",
        "an event is acknowledged before it is pushed",
        "files stay open",
    ),
    "an answer and a push that are lost": (
        "log lines are doubled",
        "a push is forgotten during a deployment",
    ),
    "a lock": ("a lock is not taken",),
    "late reports": ("a late report is accepted",),
    "the journal": ("the journal is not written",),
    "an error": ("an error of the program",),
}


def steps_of(bugs: Sequence[str], *, apart: float = 0.0) -> list[Step]:
    return [
        Step(step.at + apart * number, step.name, step.is_fault, step.options)
        for number, bug in enumerate(bugs)
        for step in BUGS[bug].steps
    ]


def test_every_bug_is_in_a_group() -> None:
    assert sorted(bug for bugs in GROUPS.values() for bug in bugs) == sorted(BUGS)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bugs", GROUPS.values(), ids=GROUPS)
async def test_bugs_are_found(tmp_path: Path, bugs: Sequence[str]) -> None:
    violations, _ = await run_schedule(tmp_path, options(*bugs), steps_of(bugs))
    found = {violation.rule for violation in violations}
    missed = [bug for bug in bugs if BUGS[bug].rule not in found]
    assert missed == [], violations


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_without_a_bug_the_same_steps_violate_nothing(tmp_path: Path) -> None:
    violations, trial = await run_schedule(tmp_path, options(), steps_of([*BUGS], apart=2))
    assert violations == []
    assert len(trial.observer.deployments) > len(APPLICATIONS)
