# SPDX-License-Identifier: Apache-2.0
"""Whole installations keep their promises under random faults; `make faults` runs for as long as it is told."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from faults.applications import FaultyApplication, Platform, Shape, all_applications
from faults.campaign import PIPEDS, require_programs, run_layout
from faults.layouts import Layout
from faults.whole_installation import Options
from servers.programs import NotInstalled, skip_or_fail

SEED = 18
SHORT_SECONDS = 120.0
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
async def test_two_minutes_of_random_faults_violate_nothing(tmp_path: Path) -> None:
    options = Options(Layout.SQLITE, FEW, pipeds=2)
    totals = await run_layout(tmp_path, options, seed=SEED, seconds=SHORT_SECONDS)
    assert totals.violations == []
    assert totals.faults.total() > 8
    assert totals.deployments > 2 * len(FEW)


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
