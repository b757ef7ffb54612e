# SPDX-License-Identifier: Apache-2.0
"""Points in time."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pipecd.model.clock import from_unix, to_unix, utc_now


def test_moments_are_aware_and_survive_the_wire_to_the_second() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone(timedelta(hours=9)))
    assert from_unix(to_unix(moment)) == moment.replace(microsecond=0)
    assert from_unix(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert utc_now().tzinfo is UTC


@pytest.mark.parametrize("seconds", [2**63 - 1, -(2**63), 253402300800])
def test_a_time_beyond_all_years_becomes_the_nearest_in_every_zone(seconds: int) -> None:
    for hours in (-14, 14):
        moment = from_unix(seconds).astimezone(timezone(timedelta(hours=hours)))
        assert moment.year in (1, 9999)
