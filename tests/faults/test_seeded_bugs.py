# SPDX-License-Identifier: Apache-2.0
"""Each bug that is put into our programs is found by its rule, and without a bug nothing is found."""

from dataclasses import replace
from pathlib import Path

import pytest

from faults.applications import FaultyApplication, Platform, Shape
from faults.campaign import run_schedule
from faults.layouts import Layout
from faults.seeded_bugs import BUGS, SeededBug
from faults.trial import open_trial
from faults.whole_installation import Options
from servers.load import patient

APPLICATIONS = (
    FaultyApplication("s00", Platform.SCRIPT, 0),
    FaultyApplication("s01", Platform.SCRIPT, 0, Shape.ROLLBACK),
    FaultyApplication("s02", Platform.SCRIPT, 0, Shape.APPROVAL),
    FaultyApplication("s04", Platform.SCRIPT, 0, Shape.CHAIN, "s05"),
    FaultyApplication("s05", Platform.SCRIPT, 0, Shape.FOLLOWER),
    FaultyApplication("s06", Platform.SCRIPT, 0, Shape.EVENTS),
)


# A bug may show already when everything is deployed for the first time, or only by its steps.
FIRST_SECONDS = 90.0


def affected(bug: SeededBug) -> list[FaultyApplication]:
    """The applications that the steps of a bug use, and those that a chain deploys next."""
    names = {step.options.get("application") for step in bug.steps}
    used = [each for each in APPLICATIONS if each.name in names]
    return [*used, *(each for each in APPLICATIONS if each.name in {a.follower for a in used})]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS)
async def test_a_bug_is_found(tmp_path: Path, bug: str) -> None:
    seeded = BUGS[bug]
    options = Options(Layout.SQLITE, affected(seeded), pipeds=1, seeded_bugs=[bug])
    async with open_trial(tmp_path, options, first_seconds=patient(FIRST_SECONDS)) as trial:
        if seeded.rule not in {violation.rule for violation in trial.violations}:
            await trial.run(seeded.steps)
    assert seeded.rule in {violation.rule for violation in trial.violations}, trial.violations


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
async def test_without_a_bug_the_same_steps_violate_nothing(tmp_path: Path) -> None:
    steps = [
        replace(step, at=step.at + 2.0 * number)
        for number, bug in enumerate(BUGS.values())
        for step in bug.steps
    ]
    options = Options(Layout.SQLITE, APPLICATIONS, pipeds=1)
    violations, trial = await run_schedule(tmp_path, options, steps)
    assert violations == []
    assert len(trial.observer.deployments) > len(APPLICATIONS)
