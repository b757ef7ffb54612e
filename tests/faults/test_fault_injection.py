# SPDX-License-Identifier: Apache-2.0
"""Random faults for some minutes; `fault_injection.py` alone runs for as long as it is told to."""

from pathlib import Path

import pytest

from faults.fault_injection import FAULTS, Recovery, inject, summary
from pipecd.model.errors import Unsupported

MINUTES = 3.0


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("replicas", [1, 2], ids=["SQLite alone", "two replicas"])
async def test_nothing_is_lost_or_stuck_after_random_faults(tmp_path: Path, replicas: int) -> None:
    try:
        injector = await inject(tmp_path, replicas=replicas, minutes=MINUTES, seed=14)
    except Unsupported as e:
        pytest.skip(str(e))
    assert injector.violations == []
    assert len(injector.installed.runs()) > 10


def test_the_summary_has_the_recovery_of_each_fault() -> None:
    recoveries = [
        Recovery(1.0, frozenset({"kill piped", "cut network"})),
        Recovery(9.0, frozenset({"kill piped"})),
        Recovery(2.0, frozenset({"cut network"})),
    ]
    assert summary({"kill piped": 3, "cut network": 2, "pushes": 40}, recoveries) == [
        "     2 cut network, recovery median 2.0s, worst 2.0s",
        "     3 kill piped, recovery median 9.0s, worst 9.0s",
        "    40 pushes",
        f"5 faults of 2 of {len(FAULTS)} kinds in 3 rounds",
        "recovery: median 2.0s, worst 9.0s",
    ]
