# SPDX-License-Identifier: Apache-2.0
"""The points of a chart: one for each day or month in UTC, 0 without deployments."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import lru_cache

from pipecd.controlplane.insight.deployments import DeploymentResult
from pipecd.controlplane.insight.dora import DAY
from pipecd.model.clock import from_unix


class Metric(IntEnum):
    """A metric of insights, with the number of its protobuf enum."""

    DEPLOYMENT_FREQUENCY = 0
    CHANGE_FAILURE_RATE = 1
    TIME_TO_RESTORE = 2
    LEAD_TIME = 3
    APPLICATIONS_COUNT = 4


class Resolution(IntEnum):
    """The distance of the points of a chart, with the number of its protobuf enum."""

    DAILY = 0
    MONTHLY = 1


@dataclass(frozen=True)
class TimeRange:
    """A time range in unix seconds, both ends included, divided into days or months."""

    start: int
    end: int
    resolution: Resolution = Resolution.DAILY

    def contains(self, timestamp: int) -> bool:
        return self.start <= timestamp <= self.end

    def all_days(self) -> range:
        """The days that are in the range, or a part of which is, as days since 1970."""
        return range(self.start // DAY, self.end // DAY + 1)

    def whole_days(self) -> range:
        """The days that are completely in the range, as days since 1970."""
        return range(-(-self.start // DAY), (self.end + 1) // DAY)

    def parts_of_days(self) -> tuple["TimeRange", ...]:
        """What is left of the range without its whole days: nothing, its ends, or all of it."""
        whole = self.whole_days()
        if not whole:
            return (self,)
        before = replace(self, end=whole.start * DAY - 1)
        after = replace(self, start=whole.stop * DAY)
        return tuple(part for part in (before, after) if part.start <= part.end)

    def period(self, timestamp: int) -> int:
        """The first second of the day or month."""
        day = timestamp - timestamp % DAY
        return _first_of_month(day) if self.resolution is Resolution.MONTHLY else day

    def periods(self) -> Iterator[int]:
        """The first seconds of all days or months."""
        period = self.period(self.start)
        while period <= self.end:
            yield period
            # No month is longer than 31 days.
            days = 32 if self.resolution is Resolution.MONTHLY else 1
            period = self.period(period + days * DAY)


@lru_cache(maxsize=4096)
def _first_of_month(day: int) -> int:
    """The first second of the month; cached, because many timestamps share few days."""
    return int(from_unix(day).replace(day=1).timestamp())


@dataclass(frozen=True)
class SeriesFilter:
    """Selects the deployments of a series.

    An empty application means all applications, no function of labels means all labels.
    """

    time_range: TimeRange
    application: str = ""
    matches_labels: Callable[[Mapping[str, str]], bool] | None = None

    @property
    def selects_project(self) -> bool:
        """Whether all deployments of the project match."""
        return not self.application and self.matches_labels is None

    def matches(self, application: str, labels: Mapping[str, str]) -> bool:
        if self.application and application != self.application:
            return False
        return self.matches_labels is None or self.matches_labels(labels)


@dataclass(frozen=True)
class Ratio:
    """A part of a whole, or a sum and the number of its summands."""

    part: float = 0
    whole: int = 0

    def __add__(self, other: "Ratio") -> "Ratio":
        return Ratio(self.part + other.part, self.whole + other.whole)

    @property
    def value(self) -> float:
        return self.part / self.whole if self.whole else 0.0


Ratios = Mapping[int, Ratio]
Point = tuple[int, float]


def count_failures(
    results: Iterable[DeploymentResult], series_filter: SeriesFilter
) -> dict[int, Ratio]:
    """By period: the number of failed deployments out of all."""
    counts: dict[int, list[int]] = {}
    time_range = series_filter.time_range
    for at, application, labels, is_failure in results:
        if time_range.contains(at) and series_filter.matches(application, labels):
            count = counts.setdefault(time_range.period(at), [0, 0])
            count[is_failure] += 1
    return {period: Ratio(failed, other + failed) for period, (other, failed) in counts.items()}


def merge_ratios(parts: Iterable[Ratios]) -> dict[int, Ratio]:
    """Adds the ratios of several files, period by period."""
    merged: dict[int, Ratio] = {}
    for part in parts:
        for period, ratio in part.items():
            merged[period] = merged.get(period, Ratio()) + ratio
    return merged


def series_points(time_range: TimeRange, ratios: Ratios, metric: Metric) -> tuple[Point, ...]:
    """The points of a chart: a count for the deployment frequency, else the value of a ratio."""
    is_count = metric is Metric.DEPLOYMENT_FREQUENCY
    points: list[Point] = []
    for period in time_range.periods():
        ratio = ratios.get(period, Ratio())
        points.append((period, float(ratio.whole) if is_count else ratio.value))
    return tuple(points)
