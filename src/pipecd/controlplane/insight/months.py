# SPDX-License-Identifier: Apache-2.0
"""The monthly totals of lead time and time to restore: files that upstream does not have."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pipecd.controlplane.insight.deployments import sorted_labels
from pipecd.controlplane.insight.dora import (
    CompletedOutcome,
    OutcomeGroup,
    OutcomeTotals,
    find_restorations,
    group_of,
    totals_of,
)
from pipecd.controlplane.insight.files import go_json
from pipecd.model.clock import from_unix

VERSION = 1
_SUFFIX = ".json"


@dataclass(frozen=True)
class Month:
    """The totals of a month.

    `failing` has the applications that were failing when the month began, with the time of their
    first failure. `recent` has the ids of deployments that may be collected again, with the time
    they completed.
    """

    totals: Mapping[OutcomeGroup, OutcomeTotals] = field(
        default_factory=dict[OutcomeGroup, OutcomeTotals]
    )
    failing: Mapping[str, int] = field(default_factory=dict[str, int])
    recent: Mapping[str, int] = field(default_factory=dict[str, int])


def month_of(timestamp: int) -> str:
    """The name of the month, such as 2026-01; names sort by time."""
    return from_unix(timestamp).strftime("%Y-%m")


def months_between(start: int, end: int) -> tuple[str, ...]:
    """The names of the months of a time range, both ends included."""
    first, last = (from_unix(timestamp) for timestamp in (start, end))
    numbers = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
    return tuple(f"{number // 12:04d}-{number % 12 + 1:02d}" for number in numbers)


def months_prefix(project: str) -> str:
    return f"insights/{project}/ext/"


def month_path(project: str, month: str) -> str:
    return f"{months_prefix(project)}{month}{_SUFFIX}"


def month_from_path(path: str) -> str:
    """The name of the month of a path."""
    return path.rpartition("/")[2].removesuffix(_SUFFIX)


def add_outcomes(
    months: Mapping[str, Month], outcomes: Iterable[CompletedOutcome], *, forget_before: int = 0
) -> dict[str, Month]:
    """Adds each outcome once; the order in which outcomes arrive does not matter.

    `months` must have the months of the outcomes, the last one before them, and all later ones.
    Deployments that completed before `forget_before` are removed from `recent`.
    """
    by_month: dict[str, list[CompletedOutcome]] = {}
    for outcome in outcomes:
        by_month.setdefault(month_of(outcome.completed_at), []).append(outcome)
    updated = dict(months)
    for name, new in by_month.items():
        month = updated.get(name, Month())
        totals, recent = dict(month.totals), dict(month.recent)
        for outcome in new:
            if outcome.id not in recent:
                recent[outcome.id] = outcome.completed_at
                group = group_of(outcome)
                totals[group] = totals.get(group, OutcomeTotals()).plus(totals_of(outcome))
        updated[name] = Month(totals, month.failing, recent)
    for name, month in updated.items():
        if month.recent and min(month.recent.values()) < forget_before:
            recent = {id: at for id, at in month.recent.items() if at >= forget_before}
            updated[name] = replace(month, recent=recent)
    failing: Mapping[str, int] | None = None
    for name in sorted(updated):
        if failing is not None:
            updated[name] = replace(updated[name], failing=failing)
        failing = find_restorations(updated[name].totals, updated[name].failing)[1]
    return updated


def encode_month(month: Month) -> bytes:
    groups: dict[tuple[str, Any], dict[str, Any]] = {}
    for group in sorted(month.totals, key=lambda g: (g.application, g.labels, g.day)):
        entry = groups.setdefault(
            (group.application, group.labels),
            {"app_id": group.application, "labels": dict(group.labels) or None, "days": {}},
        )
        entry["days"][str(group.day)] = month.totals[group]
    return go_json(
        {
            "version": VERSION,
            "failing": dict(sorted(month.failing.items())),
            "groups": list(groups.values()),
            "recent": dict(sorted(month.recent.items())),
        }
    )


def decode_month(content: bytes) -> Month:
    """Decodes a month file; raises ValueError or KeyError if it is invalid."""
    document = json.loads(content)
    if document["version"] != VERSION:
        raise ValueError(f"unknown version {document['version']}")
    totals = {
        OutcomeGroup(int(day), entry["app_id"], labels): OutcomeTotals(
            tuple(succeeded), tuple(failed), *lead
        )
        for entry in document["groups"]
        for labels in (sorted_labels(entry["labels"]),)
        for day, (succeeded, failed, *lead) in entry["days"].items()
    }
    return Month(totals, document["failing"], document["recent"])
