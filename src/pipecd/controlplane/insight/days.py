# SPDX-License-Identifier: Apache-2.0
"""Totals by day, from which the charts of long ranges are read.

Chunks and months have an entry for nearly every deployment. A chart needs only sums by day, so
these are stored in files of their own, which upstream does not have. They are derived: without them
a chart is read from chunks and months.

A file has a line for the project, then one for each set of labels, each followed by one for each
application with these labels. A year of a large project has a hundred thousand such lines; a chart
decodes only those that it needs.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from pipecd.controlplane.insight.chunks import Block, ChunkMeta
from pipecd.controlplane.insight.deployments import DeploymentResult, Labels, sorted_labels
from pipecd.controlplane.insight.dora import DAY, find_restorations
from pipecd.controlplane.insight.files import go_json
from pipecd.controlplane.insight.months import Month
from pipecd.controlplane.insight.series import Ratio, Ratios, SeriesFilter, TimeRange, merge_ratios

VERSION = 1

# What is added up: failures out of all deployments, the seconds of so many changes or failures.
FAILURES, LEAD_TIMES, RESTORE_TIMES = "failures", "lead_times", "restore_times"

_LABELS_LINE = b'{"labels":'


class DayTotal(NamedTuple):
    """An addend of the totals of an application while it had these labels.

    `day` is the number of days since 1970.
    """

    labels: Labels
    application: str
    name: str
    day: int
    part: int
    whole: int


def year_days_path(project: str, year: int) -> str:
    return f"insights/{project}/ext-days/{year}.json"


def month_days_path(project: str, month: str) -> str:
    return f"insights/{project}/ext-days/{month}.json"


@dataclass(frozen=True)
class DayTotals:
    """A file of totals: the first line decoded, the others as they are."""

    header: Mapping[str, Any]
    lines: tuple[bytes, ...]

    @classmethod
    def decode(cls, content: bytes) -> "DayTotals":
        """Decodes the first line; raises ValueError, KeyError or TypeError if it is invalid."""
        first, *lines = content.split(b"\n")
        header: Mapping[str, Any] = json.loads(first)
        if header["version"] != VERSION:
            raise ValueError(f"unknown version {header['version']}")
        if header["lines"] != len(lines):
            raise ValueError(f"{len(lines)} of {header['lines']} lines")
        return cls(header, tuple(lines))

    def ratios(self, name: str, days: range, series_filter: SeriesFilter) -> dict[int, Ratio]:
        """By period: the sums of these days; raises ValueError if a line is invalid."""
        parts: dict[int, int] = {}
        wholes: dict[int, int] = {}
        for totals in self._matching(series_filter):
            for day, part, whole in _days_of(totals.get(name, "")):
                if day in days:
                    parts[day] = parts.get(day, 0) + part
                    wholes[day] = wholes.get(day, 0) + whole
        time_range = series_filter.time_range
        return merge_ratios(
            {time_range.period(day * DAY): Ratio(parts[day], whole)}
            for day, whole in wholes.items()
        )

    def _matching(self, series_filter: SeriesFilter) -> Iterator[Mapping[str, str]]:
        """The totals whose sum a chart shows."""
        if series_filter.selects_project:
            yield self.header["totals"]
            return
        application = series_filter.application
        wanted = go_json({"app_id": application})[:-1] + b"," if application else _LABELS_LINE
        labels_line = b""
        for line in self.lines:
            if line.startswith(_LABELS_LINE):
                labels_line = line
            if line.startswith(wanted):
                labels = json.loads(labels_line)["labels"]
                if series_filter.matches(application, labels):
                    yield json.loads(line)["totals"]

    def entries(self) -> Iterator[DayTotal]:
        """All that was added up."""
        labels: Labels = ()
        for line in self.lines:
            entry = json.loads(line)
            if "labels" in entry:
                labels = sorted_labels(entry["labels"])
                continue
            for name, text in entry["totals"].items():
                for day, part, whole in _days_of(text):
                    yield DayTotal(labels, entry["app_id"], name, day, part, whole)


# The part and the whole of each day, by the name of the totals.
_Sums = dict[str, dict[int, list[int]]]


def encode_totals(entries: Iterable[DayTotal], header: Mapping[str, Any]) -> bytes:
    """Adds up the entries for the project, each set of labels and each application."""
    of_project: _Sums = {}
    by_labels: dict[Labels, tuple[_Sums, dict[str, _Sums]]] = {}
    for labels, application, name, day, part, whole in entries:
        of_labels, by_application = by_labels.setdefault(labels, ({}, {}))
        for sums in (of_project, of_labels, by_application.setdefault(application, {})):
            of_day = sums.setdefault(name, {}).setdefault(day, [0, 0])
            of_day[0] += part
            of_day[1] += whole
    lines: list[bytes] = []
    for labels, (of_labels, by_application) in sorted(by_labels.items()):
        lines.append(go_json({"labels": dict(labels), "totals": _texts(of_labels)}))
        lines += (
            go_json({"app_id": application, "totals": _texts(sums)})
            for application, sums in sorted(by_application.items())
        )
    first = {"version": VERSION, "lines": len(lines), **header, "totals": _texts(of_project)}
    return b"\n".join((go_json(first), *lines))


def _texts(sums: _Sums) -> dict[str, str]:
    """The days as texts, `day,part,whole,day,part,whole…`, which are decoded when needed."""
    return {
        name: ",".join(f"{day},{part},{whole}" for day, (part, whole) in sorted(days.items()))
        for name, days in sorted(sums.items())
    }


def _days_of(text: str) -> Iterator[tuple[int, int, int]]:
    numbers = map(int, text.split(",") if text else ())
    return zip(numbers, numbers, numbers, strict=True)


@dataclass(frozen=True)
class YearDays:
    """The totals of some completed chunks of a block."""

    chunks: frozenset[ChunkMeta]
    totals: DayTotals

    @classmethod
    def empty(cls) -> "YearDays":
        return cls.decode(encode_totals((), {"chunks": []}))

    @classmethod
    def decode(cls, content: bytes) -> "YearDays":
        """Decodes the file of a year; raises ValueError, KeyError or TypeError if invalid."""
        totals = DayTotals.decode(content)
        chunks = frozenset(
            ChunkMeta(index, first, last, count, completed=True)
            for index, first, last, count in totals.header["chunks"]
        )
        return cls(chunks, totals)

    def is_of(self, block: Block) -> bool:
        """Whether the block still has these chunks; a restored or deleted one may differ."""
        return self.chunks <= frozenset(block.chunks)

    def failures(self, series_filter: SeriesFilter) -> dict[int, Ratio]:
        """By period: the number of failed deployments out of all, on days within the range."""
        days = series_filter.time_range.whole_days()
        return self.totals.ratios(FAILURES, days, series_filter)

    def with_chunks(self, chunks: Mapping[ChunkMeta, Iterable[DeploymentResult]]) -> bytes:
        """The file with these chunks too, which are not counted yet."""

        def entries() -> Iterator[DayTotal]:
            yield from self.totals.entries()
            for results in chunks.values():
                for at, application, labels, is_failure in results:
                    sums = (at // DAY, int(is_failure), 1)
                    yield DayTotal(sorted_labels(labels), application, FAILURES, *sums)

        counted = sorted((c.index, c.first, c.last, c.count) for c in (*self.chunks, *chunks))
        return encode_totals(entries(), {"chunks": counted})


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


def month_totals(month: Month) -> bytes:
    """The file of totals of a month."""

    def entries() -> Iterator[DayTotal]:
        for group, totals in month.totals.items():
            if totals.lead_count:
                sums = (group.day // DAY, totals.lead_seconds, totals.lead_count)
                yield DayTotal(group.labels, group.application, LEAD_TIMES, *sums)
        for one in find_restorations(month.totals, month.failing)[0]:
            sums = (one.at // DAY, one.seconds, 1)
            yield DayTotal(one.labels, one.application, RESTORE_TIMES, *sums)

    return encode_totals(entries(), {})


def month_ratios(totals: DayTotals, name: str, series_filter: SeriesFilter) -> Ratios:
    """By period: the seconds, and the number of changes or failures that took them.

    A day that is partly in the range counts as a whole, because months have no shorter times.
    """
    return totals.ratios(name, series_filter.time_range.all_days(), series_filter)
