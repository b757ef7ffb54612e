# SPDX-License-Identifier: Apache-2.0
"""Whole installations keep their promises under random faults; `make faults` runs for as long as it is told."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from faults import schedule
from faults.applications import FaultyApplication, Platform, Shape, all_applications
from faults.campaign import PIPEDS, require_programs, run_layout
from faults.layouts import Layout
from faults.trial import open_trial
from faults.whole_installation import Options
from servers.programs import NotInstalled, skip_or_fail

SEED = 18
ROUND_SECONDS = 20.0
LONG_SECONDS = 300.0
# A few applications of what starts quickly; all of them are in the long test.
FEW: Sequence[FaultyApplication] = (
    FaultyApplication("s00", Platform.SCRIPT, 0),
    FaultyApplication("s01", Platform.SCRIPT, 1, Shape.ROLLBACK),
    FaultyApplication("s02", Platform.SCRIPT, 0, Shape.APPROVAL),
    FaultyApplication("s04", Platform.SCRIPT, 1, Shape.CHAIN, "s05"),
    FaultyApplication("s05", Platform.SCRIPT, 0, Shape.FOLLOWER),
    FaultyApplication("s06", Platform.SCRIPT, 1, Shape.EVENTS),
    FaultyApplication("p00", Platform.PROCESS, 0),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_round_of_random_faults_violates_nothing(tmp_path: Path) -> None:
    options = Options(Layout.SQLITE, FEW, pipeds=2)
    async with open_trial(tmp_path, options) as trial:
        assert trial.violations == []
        steps = schedule.generate(str(SEED), trial.scene, seconds=ROUND_SECONDS)
        assert sum(step.is_fault for step in steps) >= 8
        violations = await trial.run(steps)
        assert [str(violation) for violation in violations] == []
        assert len(trial.observer.deployments) > len(FEW)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layout", Layout)
async def test_minutes_of_random_faults_violate_nothing(tmp_path: Path, layout: Layout) -> None:
    options = Options(layout, all_applications(tuple(Platform), PIPEDS), PIPEDS)
    try:
        require_programs(tuple(Platform))
        totals = await run_layout(tmp_path, options, seed=SEED, seconds=LONG_SECONDS)
    except NotInstalled as e:
        skip_or_fail(e)
    assert totals.violations == []
    assert totals.faults.total() > 20
