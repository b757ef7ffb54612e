# SPDX-License-Identifier: Apache-2.0
"""Points of a chart: one for each day or month of UTC, 0 where nothing happened."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from functools import lru_cache

from pipecd.controlplane.insight.facts import DAY, Restored
from pipecd.controlplane.insight.finished import Ended
from pipecd.controlplane.insight.months import Month


class Metric(IntEnum):
    """What is measured; the numbers are those of the wire."""

    DEPLOYMENT_FREQUENCY = 0
    CHANGE_FAILURE_RATE = 1
    TIME_TO_RESTORE = 2
    LEAD_TIME = 3
    APPLICATIONS_COUNT = 4


class Resolution(IntEnum):
    """How far the points are apart; the numbers are those of the wire."""

    DAILY = 0
    MONTHLY = 1


@dataclass(frozen=True)
class Span:
    """From when to when, in unix seconds and both ends included."""

    start: int
    end: int
    resolution: Resolution = Resolution.DAILY

    def covers(self, moment: int) -> bool:
        return self.start <= moment <= self.end

    def covers_day(self, day: int) -> bool:
        """Whether a day, named by its first second, is in it at least in part."""
        return day <= self.end and day + DAY > self.start

    def period(self, moment: int) -> int:
        """The first second of the day or month."""
        day = moment - moment % DAY
        return _month(day) if self.resolution is Resolution.MONTHLY else day

    def periods(self) -> Iterator[int]:
        """The first seconds of all days or months."""
        period = self.period(self.start)
        while period <= self.end:
            yield period
            # No month is longer than 31 days.
            ahead = 32 if self.resolution is Resolution.MONTHLY else 1
            period = self.period(period + ahead * DAY)


@dataclass(frozen=True)
class Wanted:
    """Whose figures are asked for; an empty application means all of them."""

    span: Span
    application: str = ""
    may_count: Callable[[Mapping[str, str]], bool] = lambda _: True

    def includes(self, application: str, labels: Mapping[str, str]) -> bool:
        return (not self.application or application == self.application) and self.may_count(labels)


@dataclass(frozen=True)
class Share:
    """A part of a whole, or a sum over a number of things."""

    part: float = 0
    whole: int = 0

    def __add__(self, other: "Share") -> "Share":
        return Share(self.part + other.part, self.whole + other.whole)

    @property
    def ratio(self) -> float:
        return self.part / self.whole if self.whole else 0.0


Shares = Mapping[int, Share]
Point = tuple[int, float]


def failures(deployments: Iterable[Ended], wanted: Wanted) -> dict[int, Share]:
    """By period: how many deployments failed out of how many, whatever their end."""
    counts: dict[int, list[int]] = {}
    for at, application, labels, is_failure in deployments:
        if wanted.span.covers(at) and wanted.includes(application, labels):
            count = counts.setdefault(wanted.span.period(at), [0, 0])
            count[is_failure] += 1
    return {period: Share(failed, fine + failed) for period, (fine, failed) in counts.items()}


def lead_times(months: Iterable[Month], wanted: Wanted) -> dict[int, Share]:
    """By period: the seconds from commits to successes, and how many there were."""
    found: dict[int, Share] = {}
    for month in months:
        for group, tally in month.tallies.items():
            counted = tally.lead_count and wanted.span.covers_day(group.day)
            if counted and wanted.includes(group.application, dict(group.labels)):
                period = wanted.span.period(group.day)
                share = Share(tally.lead_seconds, tally.lead_count)
                found[period] = found.get(period, Share()) + share
    return found


def restore_times(restores: Iterable[Restored], wanted: Wanted) -> dict[int, Share]:
    """By period of the success: the seconds since the first failure, and how many there were."""
    found: dict[int, Share] = {}
    for one in restores:
        if wanted.span.covers(one.at) and wanted.includes(one.application, dict(one.labels)):
            period = wanted.span.period(one.at)
            found[period] = found.get(period, Share()) + Share(one.seconds, 1)
    return found


def together(parts: Iterable[Shares]) -> dict[int, Share]:
    """The sum of figures over several files."""
    found: dict[int, Share] = {}
    for part in parts:
        for period, share in part.items():
            found[period] = found.get(period, Share()) + share
    return found


def points(span: Span, shares: Shares, metric: Metric) -> tuple[Point, ...]:
    """The line of a chart."""
    of = _count if metric is Metric.DEPLOYMENT_FREQUENCY else _ratio
    return tuple((period, of(shares.get(period, Share()))) for period in span.periods())


def _count(share: Share) -> float:
    return float(share.whole)


def _ratio(share: Share) -> float:
    return share.ratio


@lru_cache(maxsize=4096)
def _month(day: int) -> int:
    """The first second of the month of a day; there are few days and many questions."""
    return int(datetime.fromtimestamp(day, UTC).replace(day=1).timestamp())
