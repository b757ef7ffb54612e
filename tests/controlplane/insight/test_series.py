# SPDX-License-Identifier: Apache-2.0
"""Points of the charts: one for each day or month of UTC, 0 where nothing happened."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipecd.controlplane.insight.deployments import DeploymentResult
from pipecd.controlplane.insight.dora import DAY
from pipecd.controlplane.insight.series import (
    Metric,
    Ratio,
    Resolution,
    SeriesFilter,
    TimeRange,
    count_failures,
    merge_ratios,
    series_points,
)
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model import insight_pb2 as pb

SUCCESS, FAILURE = DeploymentStatus.SUCCESS, DeploymentStatus.FAILURE
CANCELLED = DeploymentStatus.CANCELLED
DAILY, MONTHLY = Resolution.DAILY, Resolution.MONTHLY


def at(year: int, month: int, day: int, hour: int = 0) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp())


@pytest.mark.parametrize(
    ("time_range", "periods"),
    [
        pytest.param(
            TimeRange(at(2024, 2, 28, 5), at(2024, 3, 1, 23)),
            [at(2024, 2, 28), at(2024, 2, 29), at(2024, 3, 1)],
            id="days with a leap day, both ends included",
        ),
        pytest.param(
            TimeRange(at(2023, 12, 31), at(2024, 2, 1), MONTHLY),
            [at(2023, 12, 1), at(2024, 1, 1), at(2024, 2, 1)],
            id="months over a new year",
        ),
        pytest.param(
            TimeRange(at(2024, 1, 5), at(2024, 1, 5)), [at(2024, 1, 5)], id="a single moment"
        ),
    ],
)
def test_periods(time_range: TimeRange, periods: list[int]) -> None:
    assert list(time_range.periods()) == periods


@given(
    st.integers(0, 4 * 10**9),
    st.integers(0, 731 * DAY),
    st.sampled_from(Resolution),
)
def test_every_moment_of_a_range_has_its_period(start: int, length: int, by: Resolution) -> None:
    time_range = TimeRange(start, start + length, by)
    periods = list(time_range.periods())
    assert periods == sorted(set(periods))
    assert time_range.period(start) == periods[0]
    assert time_range.period(start + length) == periods[-1]
    assert time_range.period(start + length // 2) in periods


def one(
    completed_at: int, status: DeploymentStatus, application: str = "a", env: str = "dev"
) -> DeploymentResult:
    return DeploymentResult(completed_at, application, {"env": env}, status is FAILURE)


DEPLOYMENTS = [
    one(at(2024, 1, 1, 1), SUCCESS),
    one(at(2024, 1, 1, 2), FAILURE),
    one(at(2024, 1, 1, 3), CANCELLED),
    one(at(2024, 1, 1, 4), FAILURE, "b", "prod"),
    one(at(2024, 1, 3, 1), SUCCESS),
    one(at(2024, 2, 1, 1), SUCCESS),
]


def values(ratios: dict[int, Ratio], time_range: TimeRange, metric: Metric) -> list[float]:
    return [value for _, value in series_points(time_range, ratios, metric)]


@pytest.mark.parametrize(
    ("series_filter", "frequency", "rate"),
    [
        pytest.param(
            SeriesFilter(TimeRange(at(2024, 1, 1), at(2024, 1, 3, 23))),
            [4.0, 0.0, 1.0],
            [0.5, 0.0, 0.0],
            id="a cancelled one is one of all",
        ),
        pytest.param(
            SeriesFilter(TimeRange(at(2024, 1, 1), at(2024, 2, 28), MONTHLY)),
            [5.0, 1.0],
            [0.4, 0.0],
            id="by month",
        ),
        pytest.param(
            SeriesFilter(TimeRange(at(2024, 1, 1, 2), at(2024, 1, 1, 3))),
            [2.0],
            [0.5],
            id="only deployments that ended within the range",
        ),
        pytest.param(
            SeriesFilter(TimeRange(at(2024, 1, 1), at(2024, 1, 1, 23)), "b"),
            [1.0],
            [1.0],
            id="of an application",
        ),
        pytest.param(
            SeriesFilter(
                TimeRange(at(2024, 1, 1), at(2024, 1, 1, 23)),
                matches_labels=lambda labels: labels["env"] == "prod",
            ),
            [1.0],
            [1.0],
            id="with labels",
        ),
    ],
)
def test_frequency_and_failure_rate(
    series_filter: SeriesFilter, frequency: list[float], rate: list[float]
) -> None:
    halves = (count_failures(half, series_filter) for half in (DEPLOYMENTS[:2], DEPLOYMENTS[2:]))
    ratios = merge_ratios(halves)
    assert values(ratios, series_filter.time_range, Metric.DEPLOYMENT_FREQUENCY) == frequency
    assert values(ratios, series_filter.time_range, Metric.CHANGE_FAILURE_RATE) == rate


@given(st.integers(0, 40 * DAY), st.integers(0, 5 * DAY), st.integers(0, 50 * DAY))
def test_whole_days_and_parts_of_days_are_the_range(start: int, length: int, moment: int) -> None:
    time_range = TimeRange(start, start + length)
    in_whole_day = moment // DAY in time_range.whole_days()
    in_parts = sum(part.contains(moment) for part in time_range.parts_of_days())
    assert in_whole_day + in_parts == time_range.contains(moment)
    if time_range.contains(moment):
        assert moment // DAY in time_range.all_days()


def test_the_numbers_are_those_of_the_wire() -> None:
    assert {kind.value for kind in Metric} == set(pb.InsightMetricsKind.values())
    assert Metric.TIME_TO_RESTORE == pb.MTTR
    assert {r.name: r.value for r in Resolution} == dict(pb.InsightResolution.items())
