# SPDX-License-Identifier: Apache-2.0
"""Random faults for some minutes; `fault_injection.py` alone runs for as long as it is told to."""

from pathlib import Path

import pytest

from faults.fault_injection import inject
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
