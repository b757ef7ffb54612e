# SPDX-License-Identifier: Apache-2.0
"""Totals by day give the same charts as the chunks and months that they are derived from."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.insight.chunks import Block, ChunkMeta
from pipecd.controlplane.insight.days import (
    LEAD_TIMES,
    RESTORE_TIMES,
    DayTotals,
    YearDays,
    chunk_reads,
    chunks_to_add,
    month_ratios,
    month_totals,
)
from pipecd.controlplane.insight.deployments import DeploymentResult
from pipecd.controlplane.insight.dora import DAY, CompletedOutcome
from pipecd.controlplane.insight.months import add_outcomes
from pipecd.controlplane.insight.series import (
    Ratio,
    Ratios,
    Resolution,
    SeriesFilter,
    TimeRange,
    count_failures,
    merge_ratios,
)


def at(year: int, month: int, day: int, hour: int = 0) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp())


BEGIN = at(2026, 1, 30)

results = st.builds(
    DeploymentResult,
    st.integers(BEGIN, BEGIN + 5 * DAY),
    st.sampled_from("ab"),
    st.sampled_from([{}, {"env": "dev"}, {"env": "prod"}]),
    st.booleans(),
)
time_ranges = st.builds(
    lambda start, length, by: TimeRange(start, start + length, by),
    st.integers(BEGIN - DAY, BEGIN + 5 * DAY),
    st.integers(0, 6 * DAY),
    st.sampled_from(Resolution),
)


def is_prod(labels: Mapping[str, str]) -> bool:
    return labels.get("env") == "prod"


filters = st.builds(
    SeriesFilter, time_ranges, st.sampled_from(["", "a"]), st.sampled_from([None, is_prod])
)


def meta_of(index: int, chunk: Sequence[DeploymentResult]) -> ChunkMeta:
    times = [one.completed_at for one in chunk]
    return ChunkMeta(index, min(times), max(times), len(chunk), completed=True)


def plus(year_days: YearDays, chunks: Mapping[ChunkMeta, Sequence[DeploymentResult]]) -> YearDays:
    return YearDays.decode(year_days.with_chunks(chunks))


@given(st.lists(st.lists(results, min_size=1, max_size=5), max_size=5), st.integers(0, 5), filters)
def test_totals_and_the_chunks_that_they_lack_are_all_deployments(
    contents: list[list[DeploymentResult]], counted: int, series_filter: SeriesFilter
) -> None:
    metas = [meta_of(index, chunk) for index, chunk in enumerate(contents)]
    by_meta = dict(zip(metas, contents, strict=True))
    block = Block(2026, tuple(metas))
    # In two steps, as the collector adds chunks.
    year_days = plus(YearDays.empty(), {meta: by_meta[meta] for meta in metas[: counted // 2]})
    missing = chunks_to_add(block, year_days, max(0, counted - counted // 2))
    year_days = plus(year_days, {meta: by_meta[meta] for meta in missing})
    assert year_days.is_of(block)

    def read(meta: ChunkMeta, ranges: Sequence[TimeRange]) -> Ratios:
        each = (replace(series_filter, time_range=time_range) for time_range in ranges)
        return merge_ratios(count_failures(by_meta[meta], one) for one in each)

    reads = chunk_reads(block, year_days, series_filter.time_range)
    found = merge_ratios(
        [
            year_days.failures(series_filter),
            *(read(meta, ranges) for meta, ranges in reads),
        ]
    )
    everything = [one for chunk in contents for one in chunk]
    assert found == count_failures(everything, series_filter)


def test_whole_days_need_no_chunk() -> None:
    chunk = [DeploymentResult(at(2026, 1, 5, hour), "a", {}, False) for hour in (1, 2)]
    meta = meta_of(0, chunk)
    year_days = plus(YearDays.empty(), {meta: chunk})
    block = Block(2026, (meta,))
    year = TimeRange(at(2026, 1, 1), at(2027, 1, 1) - 1)
    assert chunk_reads(block, year_days, year) == ()
    until_noon = TimeRange(at(2026, 1, 1), at(2026, 1, 5, 12))
    rest = TimeRange(at(2026, 1, 5), at(2026, 1, 5, 12))
    assert chunk_reads(block, year_days, until_noon) == ((meta, (rest,)),)


def test_totals_of_chunks_that_a_block_does_not_have_are_not_its_own() -> None:
    chunk = [DeploymentResult(at(2026, 1, 5), "a", {}, False)]
    meta = meta_of(0, chunk)
    year_days = plus(YearDays.empty(), {meta: chunk})
    assert not year_days.is_of(Block(2026, (replace(meta, count=2),)))
    assert not year_days.is_of(Block(2026))


OUTCOMES = [
    CompletedOutcome("1", "a", (), at(2024, 1, 1, 1), True, 60),
    CompletedOutcome("2", "b", (("env", "dev"),), at(2024, 1, 1, 9), True, 30),
    CompletedOutcome("3", "a", (), at(2024, 1, 2, 9), True, None),
    CompletedOutcome("4", "a", (), at(2024, 1, 9, 9), False, None),
    CompletedOutcome("5", "b", (("env", "dev"),), at(2024, 1, 9, 9), False, None),
    CompletedOutcome("6", "b", (("env", "dev"),), at(2024, 1, 9, 10), True, 20),
    CompletedOutcome("7", "a", (), at(2024, 2, 2, 9), True, 10),
]


def ratios(name: str, series_filter: SeriesFilter) -> dict[int, float]:
    """The averages of January and February."""
    stored = add_outcomes({}, OUTCOMES)
    months = (DayTotals.decode(month_totals(stored[month])) for month in sorted(stored))
    found = merge_ratios(month_ratios(month, name, series_filter) for month in months)
    return {period: ratio.value for period, ratio in found.items()}


WINTER = TimeRange(at(2024, 1, 1), at(2024, 2, 28), Resolution.MONTHLY)


@pytest.mark.parametrize(
    ("name", "series_filter", "expected"),
    [
        pytest.param(
            LEAD_TIMES,
            SeriesFilter(TimeRange(at(2024, 1, 1), at(2024, 1, 2, 23))),
            {at(2024, 1, 1): 45.0},
            id="by day",
        ),
        pytest.param(
            LEAD_TIMES,
            SeriesFilter(TimeRange(at(2024, 1, 1, 5), at(2024, 1, 1, 6))),
            {at(2024, 1, 1): 45.0},
            id="a part of a day has the lead times of that day",
        ),
        pytest.param(
            LEAD_TIMES,
            SeriesFilter(WINTER, "a"),
            {at(2024, 1, 1): 60.0, at(2024, 2, 1): 10.0},
            id="by month, of an application",
        ),
        pytest.param(
            LEAD_TIMES,
            SeriesFilter(WINTER, matches_labels=lambda labels: labels.get("env") == "dev"),
            {at(2024, 1, 1): 25.0},
            id="with a label",
        ),
        pytest.param(
            LEAD_TIMES,
            SeriesFilter(WINTER, "a", lambda labels: labels.get("env") == "dev"),
            {},
            id="of an application that does not have the label",
        ),
        pytest.param(
            RESTORE_TIMES,
            SeriesFilter(TimeRange(at(2024, 1, 1), at(2024, 2, 28))),
            {at(2024, 1, 9): 3600.0, at(2024, 2, 2): 24.0 * DAY},
            id="a failure of January ends in February, on the day of the success",
        ),
        pytest.param(RESTORE_TIMES, SeriesFilter(WINTER, "c"), {}, id="of an unknown application"),
    ],
)
def test_times_are_averages(
    name: str, series_filter: SeriesFilter, expected: dict[int, float]
) -> None:
    assert ratios(name, series_filter) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b'"version":1', b'"version":2', id="a version of the future"),
        pytest.param(b'{"version":1', b"{", id="no version"),
        pytest.param(b'"20', b'"x', id="days with letters"),
        pytest.param(b',1"', b'"', id="half a day"),
        pytest.param(b'\n{"app_id"', b'{"app_id"', id="a line less"),
    ],
)
def test_damaged_totals_are_refused(before: bytes, after: bytes) -> None:
    chunk = [DeploymentResult(at(2026, 1, 5), "a", {"env": "dev"}, False)]
    content = YearDays.empty().with_chunks({meta_of(0, chunk): chunk})
    assert before in content

    def read(content: bytes) -> Ratios:
        return YearDays.decode(content).failures(SeriesFilter(TimeRange(0, at(2027, 1, 1))))

    assert read(content) == {at(2026, 1, 5): Ratio(0, 1)}
    with pytest.raises((ValueError, KeyError, TypeError)):
        read(content.replace(before, after))
