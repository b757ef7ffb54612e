# SPDX-License-Identifier: Apache-2.0
"""Ranges, charts and numbers of insights."""

from datetime import UTC, datetime

import pytest
from starlette.datastructures import QueryParams

from pipecd.controlplane.console.insights_view import (
    Trend,
    chart,
    csv_text,
    numbers,
    parse_insights_query,
    range_before,
    selected_period,
    time_range,
)
from pipecd.controlplane.console.list_filters import PageUrl
from pipecd.controlplane.console.status_badge import Tone
from pipecd.controlplane.insight.series import Metric, Ratio, Resolution, TimeRange

NOW = datetime(2026, 3, 31, 15, 0, tzinfo=UTC)
URL = PageUrl("/insights", QueryParams(""), reset=("at",))


def at(text: str) -> int:
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp())


@pytest.mark.parametrize(
    ("query", "start", "resolution"),
    [
        pytest.param("", "2026-03-01", Resolution.DAILY, id="a month by day is the default"),
        pytest.param("range=1w", "2026-03-25", Resolution.DAILY, id="a week"),
        pytest.param(
            "range=1m&res=monthly", "2026-03-01", Resolution.DAILY, id="no month by month"
        ),
        pytest.param("range=3m", "2026-01-01", Resolution.DAILY, id="three months by day"),
        pytest.param("range=3m&res=monthly", "2026-01-01", Resolution.MONTHLY, id="by month"),
        pytest.param("range=1y", "2025-04-01", Resolution.MONTHLY, id="a year is by month only"),
        pytest.param("range=2y&res=daily", "2024-04-01", Resolution.MONTHLY, id="two years, too"),
        pytest.param("range=nonsense", "2026-03-01", Resolution.DAILY, id="an unknown range"),
    ],
)
def test_ranges_are_those_of_the_upstream_console(
    query: str, start: str, resolution: Resolution
) -> None:
    whole = time_range(parse_insights_query(QueryParams(query)), NOW)
    assert whole == TimeRange(at(start), at("2026-03-31T23:59:59"), resolution)


def test_a_month_before_a_shorter_one_begins_on_its_last_day() -> None:
    late = datetime(2026, 3, 30, tzinfo=UTC)
    # One month before 30 March is 28 February, and the range begins on the day after.
    assert time_range(parse_insights_query(QueryParams("")), late).start == at("2026-03-01")


def test_the_day_is_that_of_utc_wherever_the_browser_is() -> None:
    honolulu = datetime.fromisoformat("2026-03-30T23:00:00-10:00")
    query = parse_insights_query(QueryParams("range=1w"))
    assert time_range(query, honolulu).end == at("2026-03-31T23:59:59")


WEEK = TimeRange(at("2026-03-25"), at("2026-03-31T23:59:59"))
RATIOS = {at("2026-03-26"): Ratio(1, 4), at("2026-03-31"): Ratio(0, 1)}


def test_a_bar_stands_for_each_day_and_links_to_what_is_behind_it() -> None:
    shown = chart(Metric.CHANGE_FAILURE_RATE, WEEK, RATIOS, URL)
    assert len(shown.bars) == 7
    assert [bar.label for bar in shown.bars if bar.href] == [
        "26 Mar 2026: 25 % of 4 deployments",
        "31 Mar 2026: 0 % of 1 deployment",
    ]
    assert shown.bars[1].href == f"/insights?at={at('2026-03-26')}#behind"
    assert (shown.bars[1].height, shown.top) == (83.33, "30 %")
    assert shown.bars[6].is_zero
    assert [(mark.text, mark.percent) for mark in shown.axis] == [
        ("25 Mar", 7.14),
        ("27 Mar", 35.71),
        ("29 Mar", 64.29),
        ("31 Mar", 92.86),
    ]


@pytest.mark.parametrize(
    ("days", "dates"),
    [
        pytest.param(1, ["31 Mar"], id="one day"),
        pytest.param(2, ["30 Mar", "31 Mar"], id="two days"),
        pytest.param(31, ["1 Mar", "11 Mar", "21 Mar", "31 Mar"], id="a month"),
    ],
)
def test_dates_are_at_equal_distances_and_end_at_the_last_bar(days: int, dates: list[str]) -> None:
    end = at("2026-03-31T23:59:59")
    shown = chart(Metric.LEAD_TIME, TimeRange(end + 1 - days * 86400, end), {}, URL)
    assert [mark.text for mark in shown.axis] == dates


@pytest.mark.parametrize(
    ("metric", "value", "note"),
    [
        (Metric.DEPLOYMENT_FREQUENCY, "5", "0.7 a day"),
        (Metric.CHANGE_FAILURE_RATE, "20 %", "1 of 5 deployments failed"),
        (Metric.LEAD_TIME, "0s", "average of 5 changes"),
    ],
)
def test_the_total_is_that_of_all_deployments_not_of_the_days(
    metric: Metric, value: str, note: str
) -> None:
    shown = chart(metric, WEEK, RATIOS, URL)
    assert (shown.value, shown.note) == (value, note)


EARLIER = at("2026-03-20")


def test_the_months_before_the_first_deployment_of_a_project_do_not_count() -> None:
    year = TimeRange(at("2025-04-01"), at("2026-03-31T23:59:59"), Resolution.MONTHLY)
    begun = {at("2026-02-01"): Ratio(0, 2), at("2026-03-01"): Ratio(0, 4)}
    assert chart(Metric.DEPLOYMENT_FREQUENCY, year, begun, URL).note == "3.0 a month"
    older = {at("2025-03-01"): Ratio(0, 1)}
    assert chart(Metric.DEPLOYMENT_FREQUENCY, year, begun, URL, before=older).note == "0.5 a month"


@pytest.mark.parametrize(
    ("metric", "now", "before", "text", "tone"),
    [
        pytest.param(
            Metric.LEAD_TIME, Ratio(3600, 1), Ratio(14400, 2),
            "Faster than in the 7 days before: 2h 00m", Tone.OK, id="a shorter lead time is better",
        ),
        pytest.param(
            Metric.TIME_TO_RESTORE, Ratio(7200, 1), Ratio(3600, 1),
            "Slower than in the 7 days before: 1h 00m", Tone.BAD, id="a longer outage is worse",
        ),
        pytest.param(
            Metric.CHANGE_FAILURE_RATE, Ratio(1, 2), Ratio(1, 4),
            "Higher than in the 7 days before: 25 %", Tone.BAD, id="more failures are worse",
        ),
        pytest.param(
            Metric.DEPLOYMENT_FREQUENCY, Ratio(0, 3), Ratio(0, 5),
            "Fewer than in the 7 days before: 5", Tone.OFF, id="fewer deployments may be right",
        ),
        pytest.param(
            Metric.LEAD_TIME, Ratio(3601, 1), Ratio(3600, 1),
            "The same as in the 7 days before", Tone.OFF, id="what is written alike is the same",
        ),
        pytest.param(
            Metric.LEAD_TIME, Ratio(3780, 1), Ratio(3720, 1),
            "About the same as in the 7 days before: 1h 02m", Tone.OFF, id="a small change is no news",
        ),
    ],
)  # fmt: skip
def test_a_chart_says_how_it_compares_with_the_time_before(
    metric: Metric, now: Ratio, before: Ratio, text: str, tone: Tone
) -> None:
    ratios = {at("2026-03-26"): now}
    shown = chart(metric, WEEK, ratios, URL, before={EARLIER: before})
    assert shown.trend == Trend(text, tone)


def test_without_anything_before_nothing_is_compared() -> None:
    assert chart(Metric.LEAD_TIME, WEEK, RATIOS, URL).trend is None


@pytest.mark.parametrize(
    ("whole", "before"),
    [
        pytest.param(WEEK, TimeRange(at("2026-03-18"), at("2026-03-24T23:59:59")), id="days"),
        pytest.param(
            TimeRange(at("2026-01-01"), at("2026-03-31T23:59:59"), Resolution.MONTHLY),
            TimeRange(at("2025-10-01"), at("2025-12-31T23:59:59"), Resolution.MONTHLY),
            id="months",
        ),
    ],
)
def test_the_range_before_is_as_long(whole: TimeRange, before: TimeRange) -> None:
    assert range_before(whole) == before


def test_without_deployments_a_chart_is_empty() -> None:
    shown = chart(Metric.TIME_TO_RESTORE, WEEK, {}, URL)
    assert shown.is_empty
    assert (shown.value, shown.note) == ("none", "in this range")


@pytest.mark.parametrize(
    ("highest", "top", "middle"),
    [(1, "2", "1"), (9, "10", "5"), (11, "12", "6"), (81, "100", "50"), (1050, "1,200", "600")],
)
def test_the_axis_of_counts_has_whole_numbers(highest: int, top: str, middle: str) -> None:
    ratios = {at("2026-03-26"): Ratio(0, highest)}
    shown = chart(Metric.DEPLOYMENT_FREQUENCY, WEEK, ratios, URL)
    assert (shown.top, shown.middle) == (top, middle)


@pytest.mark.parametrize(
    ("seconds", "top", "middle"),
    [
        (50, "1 min", "30 s"),
        (4000, "1.5 h", "45 min"),
        (90000, "2 d", "1 d"),
        (700_000, "10 d", "5 d"),
    ],
)
def test_the_axis_of_times_has_round_ones(seconds: int, top: str, middle: str) -> None:
    shown = chart(Metric.LEAD_TIME, WEEK, {at("2026-03-26"): Ratio(seconds, 1)}, URL)
    assert (shown.top, shown.middle) == (top, middle)


BY_METRIC = {
    Metric.DEPLOYMENT_FREQUENCY: RATIOS,
    Metric.LEAD_TIME: {at("2026-03-26"): Ratio(7200, 2)},
    Metric.CHANGE_FAILURE_RATE: RATIOS,
    Metric.TIME_TO_RESTORE: {},
}


def test_the_table_has_the_same_numbers_as_the_bars() -> None:
    rows = numbers(WEEK, BY_METRIC)
    assert sum(row.deployments for row in rows) == 5
    assert rows[5].period == "26 Mar 2026"
    assert rows[5].values == ("4", "1h 00m", "25 %", "")
    # A day leads to its deployments, if it has any.
    assert {row.at for row in rows} == {0, *RATIOS}


def test_csv_has_plain_numbers() -> None:
    lines = csv_text(WEEK, BY_METRIC).splitlines()
    assert lines[0] == "date,deployments,failed,lead_time_seconds,time_to_restore_seconds"
    assert lines[2] == "2026-03-26,4,1,3600,"


def test_a_period_outside_of_the_range_is_not_selected() -> None:
    chosen = parse_insights_query(QueryParams(f"at={at('2026-03-31')}"))
    assert selected_period(chosen, WEEK) == TimeRange(at("2026-03-31"), at("2026-03-31T23:59:59"))
    other = parse_insights_query(QueryParams("at=12345"))
    assert selected_period(other, WEEK) is None
