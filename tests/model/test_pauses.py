# SPDX-License-Identifier: Apache-2.0
"""Pauses between the tries of what fails."""

from itertools import islice

import pytest

from pipecd.model.pauses import Pauses


def test_a_pause_doubles_up_to_the_longest() -> None:
    assert list(islice(Pauses(0.5, 60), 9)) == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize("failures", [100, 100_000])
def test_what_fails_for_days_still_has_a_pause(failures: int) -> None:
    assert Pauses(0.5, 60).after(failures) == 60


def test_the_longest_is_never_passed_not_even_by_the_first() -> None:
    assert Pauses(10, 3).after(1) == 3
