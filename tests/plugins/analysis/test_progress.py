# SPDX-License-Identifier: Apache-2.0
"""When a check runs again."""

import pytest

from pipecd.plugins.analysis.progress import next_check

RUNS = [
    pytest.param(0, 0.0, 5.0, 1, id="the first run is after one interval"),
    pytest.param(0, 1.2, 5.0, 1, id="a late first run"),
    pytest.param(1, 1.0, 5.0, 2, id="then one by one"),
    pytest.param(1, 0.999, 5.0, 2, id="none is repeated because a sleep ended early"),
    pytest.param(1, 4.7, 5.0, 4, id="one run replaces missed ones"),
    pytest.param(4, 4.0, 5.0, 5, id="the last run is at the end"),
    pytest.param(3, 7.0, 5.0, 5, id="a late last run"),
    pytest.param(5, 5.0, 5.0, None, id="no run after the end"),
    pytest.param(5, 5.0, 5.9, None, id="no run for a part of an interval"),
    pytest.param(0, 0.0, 0.5, None, id="an interval longer than the analysis"),
    pytest.param(2, 2.0, 0.3 / 0.1, 3, id="three tenths are three times a tenth"),
]


@pytest.mark.parametrize(("done", "elapsed", "duration", "expected"), RUNS)
def test_next_check(done: int, elapsed: float, duration: float, expected: int | None) -> None:
    assert next_check(done, elapsed, duration) == expected
