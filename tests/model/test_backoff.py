# SPDX-License-Identifier: Apache-2.0
"""Delays between retries."""

from itertools import islice

import pytest

from pipecd.model.backoff import Backoff


def test_the_delay_doubles_up_to_the_longest() -> None:
    assert list(islice(Backoff(0.5, 60), 9)) == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


@pytest.mark.parametrize("failures", [100, 100_000])
def test_the_delay_does_not_overflow_after_days_of_failures(failures: int) -> None:
    assert Backoff(0.5, 60).after(failures) == 60


def test_the_first_delay_is_capped_as_well() -> None:
    assert Backoff(10, 3).after(1) == 3
