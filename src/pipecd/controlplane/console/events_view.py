# SPDX-License-Identifier: Apache-2.0
"""View models of events: the list by day, the page of one, and the filters in the URL."""

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from io import StringIO
from itertools import groupby
from shlex import quote

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.formatting import (
    Timestamp,
    day_heading,
    duration,
    label_texts,
    pipectl_flags,
    sentence,
    timestamp,
)
from pipecd.controlplane.console.list_filters import (
    ActiveFilter,
    PageUrl,
    label_filters,
    parse_labels,
)
from pipecd.controlplane.console.status_badge import Badge, Tone
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.proto.model import event_pb2 as pb
from pipecd.proto.model.event_pb2 import Event

# In the order of the filter; the numbers are those of the upstream console.
EVENT_STATUSES: Mapping[str, Badge] = {
    str(pb.EVENT_FAILURE): Badge(Tone.BAD, "cross", "Failed"),
    str(pb.EVENT_NOT_HANDLED): Badge(Tone.WAIT, "clock", "Not handled yet"),
    str(pb.EVENT_SUCCESS): Badge(Tone.OK, "check", "Handled"),
    str(pb.EVENT_OUTDATED): Badge(Tone.OFF, "skip", "Outdated"),
}


# What pipeds report of a change of one file.
_ONE_FILE = re.compile(r"\b1 files\b")
# The list says how long it took only if somebody may have waited for it.
_SLOW_SECONDS = 60


@dataclass(frozen=True)
class EventQuery:
    """Filters of the list of events, and the cursor of the page."""

    text: str = ""
    name: str = ""
    statuses: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    before: str = ""

    def filter(self, project: str) -> EventFilter:
        """What the datastore filters; `matches` applies the text."""
        statuses = tuple(map(int, self.statuses))
        return EventFilter(project, name=self.name, statuses=statuses, labels=self.labels)

    def active_filters(self) -> tuple[ActiveFilter, ...]:
        """What limits the list."""
        statuses = " or ".join(EVENT_STATUSES[status].text for status in self.statuses).lower()
        filters = (
            ActiveFilter("q", self.text, f"“{self.text}”"),
            ActiveFilter("name", self.name, f"name: {self.name}"),
            ActiveFilter("status", ",".join(self.statuses), statuses),
            *label_filters(self.labels),
        )
        return tuple(each for each in filters if each.value)

    def url(self) -> PageUrl:
        """The address of the list with these filters and nothing else."""
        params = [(each.param, each.value) for each in self.active_filters()]
        params += [("before", self.before)]
        return PageUrl("/events", QueryParams(params), reset=("before",))

    def matches(self, event: Event) -> bool:
        """Whether the text is in what the list shows, or begins the hash of the commit."""
        text = self.text.lower()
        shown = (event.name, event.data, event.status_description, *label_texts(event.labels))
        is_commit = event.trigger_commit_hash.lower().startswith(text)
        return is_commit or any(text in each.lower() for each in shown)


@dataclass(frozen=True)
class EventListRow:
    """One row of the list of events."""

    id: str
    name: str
    badge: Badge
    data: str
    labels: tuple[str, ...]
    contexts: tuple[tuple[str, str], ...]
    # What the piped reported.
    description: str
    commit: str
    created: Timestamp | None
    handled: Timestamp | None
    handled_after: str
    was_slow: bool


@dataclass(frozen=True)
class EventDay:
    """The events of a day."""

    heading: str
    rows: tuple[EventListRow, ...]


def parse_event_query(params: QueryParams) -> EventQuery:
    statuses = ",".join(params.getlist("status")).split(",")
    return EventQuery(
        text=params.get("q", "").strip(),
        name=params.get("name", "").strip(),
        statuses=tuple(dict.fromkeys(s for s in statuses if s in EVENT_STATUSES)),
        labels=parse_labels(params),
        before=params.get("before", ""),
    )


def event_row(event: Event, now: datetime) -> EventListRow:
    badge = EVENT_STATUSES.get(str(event.status), Badge(Tone.OFF, "question", "Unknown"))
    handled_after = max(event.handled_at - event.created_at, 0) if event.handled_at else 0
    return EventListRow(
        id=event.id,
        name=event.name,
        badge=badge,
        data=event.data,
        labels=label_texts(event.labels),
        contexts=tuple(sorted(event.contexts.items())),
        description=_result(event),
        commit=event.trigger_commit_hash,
        created=timestamp(event.created_at, now),
        handled=timestamp(event.handled_at, now),
        handled_after=duration(handled_after) if event.handled_at else "",
        was_slow=handled_after >= _SLOW_SECONDS,
    )


def register_command(event: Event, url: str) -> str:
    """The command that registers the event again at `url`; empty for one that needs no other.

    Characters that are not shown, such as marks of direction, could make it look like another one.
    """
    if event.status not in (pb.EVENT_FAILURE, pb.EVENT_NOT_HANDLED):
        return ""
    flags = [f"--name={quote(event.name)}", f"--data={quote(event.data)}"]
    flags += [f"--labels={quote(_pairs(event.labels))}"] if event.labels else []
    flags += [f"--contexts={quote(_pairs(event.contexts))}"] if event.contexts else []
    if event.trigger_commit_hash:
        flags.append(f"--commit-hash={quote(event.trigger_commit_hash)}")
    if not all(flag.isprintable() for flag in flags):
        return ""
    return " \\\n  ".join(["pipectl event register", *pipectl_flags(url), *flags])


def _pairs(values: Mapping[str, str]) -> str:
    """The pairs as a flag takes them: a line of CSV."""
    line = StringIO()
    pairs = [f"{key}={value}" for key, value in sorted(values.items())]
    csv.writer(line, lineterminator="").writerow(pairs)
    return line.getvalue()


def _result(event: Event) -> str:
    if event.status == pb.EVENT_NOT_HANDLED:
        return "Waits for the piped of an application that watches for it."
    return sentence(_ONE_FILE.sub("1 file", event.status_description))


def events_by_day(events: Sequence[Event], now: datetime) -> tuple[EventDay, ...]:
    """Newest first, grouped by day in the time zone of `now`."""
    newest = sorted(events, key=lambda event: (-event.created_at, event.id))
    groups = groupby(newest, key=lambda event: day_heading(event.created_at, now))
    return tuple(
        EventDay(heading, tuple(event_row(event, now) for event in group))
        for heading, group in groups
    )
