# SPDX-License-Identifier: Apache-2.0
"""When a check is looked at again."""

import pytest

from pipecd.plugins.analysis.progress import next_check

LOOKS = [
    pytest.param(0, 0.0, 5.0, 1, id="the first look comes after one interval"),
    pytest.param(0, 1.2, 5.0, 1, id="also if it is a little late"),
    pytest.param(1, 1.0, 5.0, 2, id="then one by one"),
    pytest.param(1, 0.999, 5.0, 2, id="none is repeated because a sleep ended early"),
    pytest.param(1, 4.7, 5.0, 4, id="missed looks are made up for by one"),
    pytest.param(4, 4.0, 5.0, 5, id="the end belongs to the analysis"),
    pytest.param(3, 7.0, 5.0, 5, id="it is not left out because it is late"),
    pytest.param(5, 5.0, 5.0, None, id="after the end there is nothing"),
    pytest.param(5, 5.0, 5.9, None, id="nor for a part of an interval"),
    pytest.param(0, 0.0, 0.5, None, id="an interval longer than the analysis never ends"),
    pytest.param(2, 2.0, 0.3 / 0.1, 3, id="three tenths are three times a tenth"),
]


@pytest.mark.parametrize(("done", "elapsed", "duration", "expected"), LOOKS)
def test_next_look(done: int, elapsed: float, duration: float, expected: int | None) -> None:
    assert next_check(done, elapsed, duration) == expected
