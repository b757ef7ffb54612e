# SPDX-License-Identifier: Apache-2.0
"""Totals by day give the same charts as the chunks and months that they are derived from."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.insight.chunks import Block, ChunkMeta
from pipecd.controlplane.insight.days import (
    MonthDays,
    YearDays,
    chunk_reads,
    chunks_to_add,
    decode_month_days,
    decode_year_days,
    encode_month_days,
    encode_year_days,
    failures_of_whole_days,
    lead_times,
    month_days,
)
from pipecd.controlplane.insight.deployments import DeploymentResult
from pipecd.controlplane.insight.dora import DAY, CompletedOutcome
from pipecd.controlplane.insight.months import add_outcomes
from pipecd.controlplane.insight.series import (
    Ratios,
    Resolution,
    SeriesFilter,
    TimeRange,
    count_failures,
    merge_ratios,
    restore_times,
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


@given(st.lists(st.lists(results, min_size=1, max_size=5), max_size=5), st.integers(0, 5), filters)
def test_totals_and_the_chunks_that_they_lack_are_all_deployments(
    contents: list[list[DeploymentResult]], counted: int, series_filter: SeriesFilter
) -> None:
    metas = [meta_of(index, chunk) for index, chunk in enumerate(contents)]
    by_meta = dict(zip(metas, contents, strict=True))
    block = Block(2026, tuple(metas))
    # In two steps, as the collector adds chunks.
    year_days = YearDays().plus({meta: by_meta[meta] for meta in metas[: counted // 2]})
    missing = chunks_to_add(block, year_days, max(0, counted - counted // 2))
    year_days = year_days.plus({meta: by_meta[meta] for meta in missing})
    assert year_days.is_of(block)
    year_days = decode_year_days(encode_year_days(year_days))

    def read(meta: ChunkMeta, ranges: Sequence[TimeRange]) -> Ratios:
        each = (replace(series_filter, time_range=time_range) for time_range in ranges)
        return merge_ratios(count_failures(by_meta[meta], one) for one in each)

    reads = chunk_reads(block, year_days, series_filter.time_range)
    found = merge_ratios(
        [
            failures_of_whole_days(year_days, series_filter),
            *(read(meta, ranges) for meta, ranges in reads),
        ]
    )
    everything = [one for chunk in contents for one in chunk]
    assert found == count_failures(everything, series_filter)


def test_whole_days_need_no_chunk() -> None:
    chunk = [DeploymentResult(at(2026, 1, 5, hour), "a", {}, False) for hour in (1, 2)]
    meta = meta_of(0, chunk)
    year_days = YearDays().plus({meta: chunk})
    block = Block(2026, (meta,))
    year = TimeRange(at(2026, 1, 1), at(2027, 1, 1) - 1)
    assert chunk_reads(block, year_days, year) == ()
    until_noon = TimeRange(at(2026, 1, 1), at(2026, 1, 5, 12))
    rest = TimeRange(at(2026, 1, 5), at(2026, 1, 5, 12))
    assert chunk_reads(block, year_days, until_noon) == ((meta, (rest,)),)


def test_totals_of_chunks_that_a_block_does_not_have_are_not_its_own() -> None:
    chunk = [DeploymentResult(at(2026, 1, 5), "a", {}, False)]
    meta = meta_of(0, chunk)
    year_days = YearDays().plus({meta: chunk})
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


def months() -> tuple[MonthDays, ...]:
    """The totals of January and February, as they are after reading their files."""
    stored = add_outcomes({}, OUTCOMES)
    return tuple(
        decode_month_days(encode_month_days(month_days(stored[name]))) for name in sorted(stored)
    )


@pytest.mark.parametrize(
    ("time_range", "application", "expected"),
    [
        pytest.param(
            TimeRange(at(2024, 1, 1), at(2024, 1, 2, 23)), "", {at(2024, 1, 1): 45.0}, id="by day"
        ),
        pytest.param(
            TimeRange(at(2024, 1, 1, 5), at(2024, 1, 1, 6)),
            "",
            {at(2024, 1, 1): 45.0},
            id="a part of a day has the lead times of that day",
        ),
        pytest.param(
            TimeRange(at(2024, 1, 1), at(2024, 2, 28), Resolution.MONTHLY),
            "a",
            {at(2024, 1, 1): 60.0, at(2024, 2, 1): 10.0},
            id="by month, of an application",
        ),
    ],
)
def test_lead_time_is_an_average(
    time_range: TimeRange, application: str, expected: dict[int, float]
) -> None:
    ratios = lead_times(months(), SeriesFilter(time_range, application))
    assert {period: ratio.value for period, ratio in ratios.items()} == expected


def test_restorations_are_kept_in_the_order_of_time() -> None:
    january, february = months()
    assert [(one.application, one.seconds) for one in january.restorations] == [("b", 3600)]
    # The failure of January ends in February.
    assert [(one.application, one.seconds) for one in february.restorations] == [("a", 24 * DAY)]
    whole = SeriesFilter(TimeRange(at(2024, 1, 1), at(2024, 2, 28)), matches_labels=is_prod)
    assert restore_times((*january.restorations, *february.restorations), whole) == {}


@pytest.mark.parametrize("decode", [decode_year_days, decode_month_days])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda _: {}, id="an empty document"),
        pytest.param(lambda value: value | {"version": 2}, id="a version of the future"),
        pytest.param(
            lambda value: json.loads(json.dumps(value).replace("20", "x")), id="days with letters"
        ),
        pytest.param(
            lambda value: json.loads(json.dumps(value).replace(',1"', '"')), id="half a day"
        ),
    ],
)
def test_damaged_totals_are_refused(
    decode: Callable[[bytes], object], damage: Callable[[dict[str, object]], dict[str, object]]
) -> None:
    chunk = [DeploymentResult(at(2026, 1, 5), "a", {}, False)]
    content = encode_year_days(YearDays().plus({meta_of(0, chunk): chunk}))
    if decode is decode_month_days:
        stored = add_outcomes({}, OUTCOMES)
        content = encode_month_days(month_days(stored["2024-02"]))
    decode(content)
    with pytest.raises((ValueError, KeyError, TypeError)):
        decode(json.dumps(damage(json.loads(content))).encode())
