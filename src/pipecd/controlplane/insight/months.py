# SPDX-License-Identifier: Apache-2.0
"""Lead time and time to restore of a month: files of our own beside those of upstream."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pipecd.controlplane.insight.facts import Fact, Group, Tally, group_of, restored, tally_of
from pipecd.controlplane.insight.finished import in_order
from pipecd.controlplane.insight.gojson import go_json

VERSION = 1
_SUFFIX = ".json"


@dataclass(frozen=True)
class Month:
    """The sums of a month.

    `failing` says which applications were failing when the month began, and since when. `recent`
    has the ids of the deployments that may be met again, with the time of their end.
    """

    tallies: Mapping[Group, Tally] = field(default_factory=dict[Group, Tally])
    failing: Mapping[str, int] = field(default_factory=dict[str, int])
    recent: Mapping[str, int] = field(default_factory=dict[str, int])


def month_of(moment: int) -> str:
    """The name of the month, which sorts by time."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m")


def months_between(start: int, end: int) -> tuple[str, ...]:
    """The names of the months from the one to the other, both included."""
    first, last = (datetime.fromtimestamp(moment, UTC) for moment in (start, end))
    numbers = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
    return tuple(f"{number // 12:04d}-{number % 12 + 1:02d}" for number in numbers)


def months_prefix(project: str) -> str:
    return f"insights/{project}/ext/"


def month_path(project: str, month: str) -> str:
    return f"{months_prefix(project)}{month}{_SUFFIX}"


def month_at(path: str) -> str:
    """The month of a path."""
    return path.rpartition("/")[2].removesuffix(_SUFFIX)


def added(
    months: Mapping[str, Month], facts: Iterable[Fact], *, forget_before: int = 0
) -> dict[str, Month]:
    """The months with these facts, each counted once, whatever the order in which they come.

    `months` must have those of the facts, the last one before them, and all that follow. Ids of
    deployments that ended before `forget_before` need not be known any longer.
    """
    grown = dict(months)
    for month, new in _by_month(facts).items():
        grown[month] = _with(grown.get(month, Month()), new, forget_before)
    failing: Mapping[str, int] | None = None
    for name in sorted(grown):
        if failing is not None:
            grown[name] = replace(grown[name], failing=failing)
        failing = restored(grown[name].tallies, grown[name].failing)[1]
    return grown


def write_month(month: Month) -> bytes:
    groups: dict[tuple[str, Any], dict[str, Any]] = {}
    order = sorted(month.tallies, key=lambda g: (g.application, g.labels, g.day))
    for group in order:
        entry = groups.setdefault(
            (group.application, group.labels),
            {"app_id": group.application, "labels": dict(group.labels) or None, "days": {}},
        )
        entry["days"][str(group.day)] = month.tallies[group]
    return go_json(
        {
            "version": VERSION,
            "failing": dict(sorted(month.failing.items())),
            "groups": list(groups.values()),
            "recent": dict(sorted(month.recent.items())),
        }
    )


def read_month(content: bytes) -> Month:
    """Reads a file of ours; ValueError or KeyError when it is none."""
    document = json.loads(content)
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']} is not known")
    tallies = {
        Group(int(day), entry["app_id"], labels): Tally(tuple(ok), tuple(failed), *lead)
        for entry in document["groups"]
        for labels in (in_order(entry["labels"]),)
        for day, (ok, failed, *lead) in entry["days"].items()
    }
    return Month(tallies, document["failing"], document["recent"])


def _by_month(facts: Iterable[Fact]) -> dict[str, list[Fact]]:
    sorted_in: dict[str, list[Fact]] = {}
    for fact in facts:
        sorted_in.setdefault(month_of(fact.completed_at), []).append(fact)
    return sorted_in


def _with(month: Month, facts: Iterable[Fact], forget_before: int) -> Month:
    tallies, recent = dict(month.tallies), dict(month.recent)
    for fact in facts:
        if fact.id in recent:
            continue
        recent[fact.id] = fact.completed_at
        group = group_of(fact)
        tallies[group] = tallies.get(group, Tally()).plus(tally_of(fact))
    kept = {id: at for id, at in recent.items() if at >= forget_before}
    return Month(tallies, month.failing, kept)
