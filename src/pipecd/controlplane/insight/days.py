# SPDX-License-Identifier: Apache-2.0
"""Totals by day, from which the charts of long ranges are read.

Chunks and months have an entry for nearly every deployment. A chart needs only sums by day, of all
deployments or of those of some applications, so these sums are stored in files of their own, which
upstream does not have. They are derived: without them a chart is read from chunks and months.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from pipecd.controlplane.insight.chunks import Block, ChunkMeta
from pipecd.controlplane.insight.deployments import DeploymentResult, Labels, sorted_labels
from pipecd.controlplane.insight.dora import DAY, Restoration, find_restorations
from pipecd.controlplane.insight.files import go_json
from pipecd.controlplane.insight.months import Month
from pipecd.controlplane.insight.series import Ratio, Ratios, SeriesFilter, TimeRange, merge_ratios

VERSION = 1

_CHARACTERS = "0123456789,"

# A day as the number of days since 1970, a part and a whole.
DayTotal = tuple[int, int, int]


class LabeledApplication(NamedTuple):
    """An application while it had these labels."""

    application: str
    labels: Labels


def year_days_path(project: str, year: int) -> str:
    return f"insights/{project}/ext-days/{year}.json"


def month_days_path(project: str, month: str) -> str:
    return f"insights/{project}/ext-days/{month}.json"


@dataclass(frozen=True)
class DailyTotals:
    """A part of a whole for each day, for all deployments and for those of each application.

    The days are texts, as they are stored: `day,part,whole,day,part,whole…`. Only those that a
    chart needs are decoded.
    """

    everything: str = ""
    by_application: Mapping[LabeledApplication, str] = field(
        default_factory=dict[LabeledApplication, str]
    )

    @classmethod
    def of(cls, entries: Iterable[tuple[LabeledApplication, DayTotal]]) -> "DailyTotals":
        """Adds up the entries of each day and application."""
        everything: dict[int, list[int]] = {}
        by_application: dict[LabeledApplication, dict[int, list[int]]] = {}
        for application, (day, part, whole) in entries:
            for sums in (everything, by_application.setdefault(application, {})):
                of_day = sums.setdefault(day, [0, 0])
                of_day[0] += part
                of_day[1] += whole
        texts = {key: _days_text(sums) for key, sums in sorted(by_application.items())}
        return cls(_days_text(everything), texts)

    def entries(self) -> Iterator[tuple[LabeledApplication, DayTotal]]:
        for application, text in self.by_application.items():
            for total in _days_of(text):
                yield application, total

    def ratios(self, days: range, series_filter: SeriesFilter) -> dict[int, Ratio]:
        """By period: the sums of these days."""
        parts: dict[int, int] = {}
        wholes: dict[int, int] = {}
        for text in self._matching(series_filter):
            for day, part, whole in _days_of(text):
                if day in days:
                    parts[day] = parts.get(day, 0) + part
                    wholes[day] = wholes.get(day, 0) + whole
        time_range = series_filter.time_range
        return merge_ratios(
            {time_range.period(day * DAY): Ratio(parts[day], whole)}
            for day, whole in wholes.items()
        )

    def _matching(self, series_filter: SeriesFilter) -> Iterator[str]:
        if series_filter.selects_project:
            yield self.everything
            return
        for (application, labels), text in self.by_application.items():
            if series_filter.matches(application, dict(labels)):
                yield text

    def to_json(self) -> dict[str, Any]:
        applications = [
            {"app_id": application, "labels": dict(labels), "days": text}
            for (application, labels), text in sorted(self.by_application.items())
        ]
        return {"everything": self.everything, "applications": applications}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "DailyTotals":
        """Reads the value; raises ValueError, KeyError or TypeError if it is invalid."""
        by_application = {
            LabeledApplication(entry["app_id"], sorted_labels(entry["labels"])): _checked(
                entry["days"]
            )
            for entry in value["applications"]
        }
        return cls(_checked(value["everything"]), by_application)


def _days_text(sums: Mapping[int, list[int]]) -> str:
    return ",".join(f"{day},{part},{whole}" for day, (part, whole) in sorted(sums.items()))


def _checked(text: str) -> str:
    """Returns the text of days, which is decoded later, if it consists of numbers."""
    if text.strip(_CHARACTERS) or (text and text.count(",") % 3 != 2):
        raise ValueError("days are not triples of numbers")
    return text


def _days_of(text: str) -> Iterator[DayTotal]:
    numbers = map(int, text.split(",") if text else ())
    return zip(numbers, numbers, numbers, strict=True)


@dataclass(frozen=True)
class YearDays:
    """The failed deployments out of all, of some completed chunks of a block."""

    chunks: frozenset[ChunkMeta] = frozenset()
    totals: DailyTotals = field(default_factory=DailyTotals)

    def is_of(self, block: Block) -> bool:
        """Whether the block still has these chunks; a restored or deleted one may differ."""
        return self.chunks <= frozenset(block.chunks)

    def plus(self, chunks: Mapping[ChunkMeta, Iterable[DeploymentResult]]) -> "YearDays":
        """Adds chunks that are not counted yet."""

        def entries() -> Iterator[tuple[LabeledApplication, DayTotal]]:
            yield from self.totals.entries()
            for results in chunks.values():
                for at, application, labels, is_failure in results:
                    key = LabeledApplication(application, sorted_labels(labels))
                    yield key, (at // DAY, int(is_failure), 1)

        return YearDays(self.chunks | frozenset(chunks), DailyTotals.of(entries()))


def chunks_to_add(block: Block, year_days: YearDays, limit: int) -> tuple[ChunkMeta, ...]:
    """The first completed chunks that are not counted yet."""
    missing = (c for c in block.chunks if c.completed and c not in year_days.chunks)
    return tuple(islice(missing, limit))


def chunk_reads(
    block: Block, year_days: YearDays, time_range: TimeRange
) -> tuple[tuple[ChunkMeta, tuple[TimeRange, ...]], ...]:
    """The chunks to read beside the totals of whole days, each with the time ranges to count.

    Chunks that the totals do not have are counted in the whole range, the others only where the
    range has a part of a day.
    """
    reads: list[tuple[ChunkMeta, tuple[TimeRange, ...]]] = []
    for chunk in block.between(time_range.start, time_range.end):
        if chunk not in year_days.chunks:
            reads.append((chunk, (time_range,)))
            continue
        parts = (p for p in time_range.parts_of_days() if chunk.overlaps(p.start, p.end))
        if ranges := tuple(parts):
            reads.append((chunk, ranges))
    return tuple(reads)


def failures_of_whole_days(year_days: YearDays, series_filter: SeriesFilter) -> Ratios:
    """By period: the number of failed deployments out of all, on days within the range."""
    return year_days.totals.ratios(series_filter.time_range.whole_days(), series_filter)


def encode_year_days(year_days: YearDays) -> bytes:
    chunks = sorted((c.index, c.first, c.last, c.count) for c in year_days.chunks)
    return go_json({"version": VERSION, "chunks": chunks, "totals": year_days.totals.to_json()})


def decode_year_days(content: bytes) -> YearDays:
    """Decodes the file of a year; raises ValueError, KeyError or TypeError if it is invalid."""
    document = _versioned(content)
    chunks = frozenset(
        ChunkMeta(index, first, last, count, completed=True)
        for index, first, last, count in document["chunks"]
    )
    return YearDays(chunks, DailyTotals.from_json(document["totals"]))


@dataclass(frozen=True)
class MonthDays:
    """The lead times of a month by day, and its restorations in the order of time.

    The part of a lead time is its seconds, the whole is the number of changes.
    """

    lead_times: DailyTotals = field(default_factory=DailyTotals)
    restorations: tuple[Restoration, ...] = ()


def month_days(month: Month) -> MonthDays:
    """Derives the totals of a month."""
    lead_times = DailyTotals.of(
        (
            LabeledApplication(group.application, group.labels),
            (group.day // DAY, totals.lead_seconds, totals.lead_count),
        )
        for group, totals in month.totals.items()
        if totals.lead_count
    )
    return MonthDays(lead_times, find_restorations(month.totals, month.failing)[0])


def lead_times(months: Iterable[MonthDays], series_filter: SeriesFilter) -> dict[int, Ratio]:
    """By period: the seconds from commit to success, and the number of changes.

    A day that is partly in the range counts as a whole, because months have no shorter times.
    """
    days = series_filter.time_range.all_days()
    return merge_ratios(month.lead_times.ratios(days, series_filter) for month in months)


def encode_month_days(days: MonthDays) -> bytes:
    by_application: dict[LabeledApplication, list[tuple[int, int]]] = {}
    for one in days.restorations:
        key = LabeledApplication(one.application, one.labels)
        by_application.setdefault(key, []).append((one.at, one.seconds))
    restorations = [
        {"app_id": application, "labels": dict(labels), "restorations": of_application}
        for (application, labels), of_application in sorted(by_application.items())
    ]
    lead = days.lead_times.to_json()
    return go_json({"version": VERSION, "lead_times": lead, "restorations": restorations})


def decode_month_days(content: bytes) -> MonthDays:
    """Decodes the file of a month; raises ValueError, KeyError or TypeError if it is invalid."""
    document = _versioned(content)
    restorations = [
        Restoration(at, entry["app_id"], labels, seconds)
        for entry in document["restorations"]
        for labels in (sorted_labels(entry["labels"]),)
        for at, seconds in entry["restorations"]
    ]
    restorations.sort(key=lambda one: (one.at, one.application))
    return MonthDays(DailyTotals.from_json(document["lead_times"]), tuple(restorations))


def _versioned(content: bytes) -> Mapping[str, Any]:
    document: Mapping[str, Any] = json.loads(content)
    if document["version"] != VERSION:
        raise ValueError(f"unknown version {document['version']}")
    return document
