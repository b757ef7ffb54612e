# SPDX-License-Identifier: Apache-2.0
"""When jobs are due: cron expressions in UTC, and intervals."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.config.controlplane import check_schedule
from pipecd.controlplane.jobs.schedule import Cron, parse_schedule
from pipecd.model.clock import from_unix


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("line", "moment", "due"),
    [
        pytest.param("0 * * * *", "2026-01-02 03:04", "2026-01-02 04:00", id="every hour"),
        pytest.param("30 * * * *", "2026-01-02 03:30", "2026-01-02 04:30", id="later, not now"),
        pytest.param("0 9 * * *", "2026-12-31 09:00:01", "2027-01-01 09:00", id="over a new year"),
        pytest.param("*/15 * * * *", "2026-01-02 03:46", "2026-01-02 04:00", id="every quarter"),
        pytest.param("5/20 * * * *", "2026-01-02 03:26", "2026-01-02 03:45", id="a step goes on"),
        pytest.param(
            "0 8-10/2 * * *", "2026-01-02 08:00", "2026-01-02 10:00", id="a range in steps"
        ),
        pytest.param("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00", id="a leap day"),
        pytest.param("0 0 * * mon", "2026-01-02 00:00", "2026-01-05 00:00", id="a day of the week"),
        pytest.param(
            "0 0 13 * fri", "2026-01-02 00:00", "2026-01-09 00:00", id="either of two days"
        ),
        pytest.param("0 0 */10 * 5", "2026-01-03 00:00", "2026-01-09 00:00", id="a step restricts"),
        pytest.param("0 0 ? Jun,dec *", "2026-07-01 00:00", "2026-12-01 00:00", id="named months"),
        pytest.param("@hourly", "2026-01-02 03:04", "2026-01-02 04:00", id="@hourly"),
        pytest.param("@weekly", "2026-01-02 03:04", "2026-01-04 00:00", id="@weekly is sunday"),
        pytest.param("@monthly", "2026-01-02 03:04", "2026-02-01 00:00", id="@monthly"),
        pytest.param("@yearly", "2026-01-02 03:04", "2027-01-01 00:00", id="@yearly"),
        pytest.param("@every 1h30m", "2026-01-02 03:04", "2026-01-02 04:34", id="@every"),
    ],
)
def test_the_next_time_of_an_expression(line: str, moment: str, due: str) -> None:
    assert parse_schedule(check_schedule(line)).after(at(moment)) == at(due)


def test_a_day_that_does_not_exist_is_never_due() -> None:
    assert parse_schedule("0 0 30 2 *").after(at("2026-01-01 00:00")).year == 9999


def test_a_leap_day_after_eight_years_is_found() -> None:
    assert parse_schedule("0 0 29 2 *").after(at("2096-03-01 00:00")) == at("2104-02-29 00:00")


def test_expressions_are_in_utc_for_any_time_zone() -> None:
    east = datetime(2026, 1, 2, 1, 30, tzinfo=timezone(timedelta(hours=5, minutes=45)))
    assert parse_schedule("0 20 * * *").after(east) == at("2026-01-01 20:00")


NUMBERS = st.sampled_from(["*", "0", "7", "3-9", "*/4", "1,5,9", "2/3"])
LINES = st.tuples(NUMBERS, NUMBERS, st.sampled_from(["*", "1", "10-20", "?"])).map(" ".join)


@given(LINES, st.integers(1_700_000_000, 2_000_000_000).map(from_unix))
def test_the_next_time_is_the_first_match(line: str, moment: datetime) -> None:
    schedule = parse_schedule(f"{line} * *")
    assert isinstance(schedule, Cron)
    due = schedule.after(moment)
    assert due > moment
    assert (due.second, due.microsecond) == (0, 0)
    assert due.minute in schedule.minute
    assert due.hour in schedule.hour
    assert due.day in schedule.day
    # No earlier time matches.
    assert schedule.after(due - timedelta(minutes=1)) == due
    assert schedule.after(max(moment, due - timedelta(days=1))) == due
