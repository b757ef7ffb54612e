# SPDX-License-Identifier: Apache-2.0
"""View models of deployment traces: commits of source repositories and what they deployed."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from pipecd.controlplane.console.deployments_view import (
    DeploymentRow,
    deployment_row,
    version_views,
)
from pipecd.controlplane.console.formatting import (
    Timestamp,
    day_heading,
    join_words,
    safe_link,
    sentence,
    timestamp,
)
from pipecd.controlplane.console.status_badge import Badge, Tone
from pipecd.controlplane.usecases.deployments import TracedDeployments
from pipecd.model.deployment import DeploymentStatus
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.trace_pb2 import DeploymentTrace

_MAX_VERSIONS = 2
_AT_WORK = (Tone.RUN, Tone.WAIT)
_WORST_FIRST = (Tone.BAD, Tone.WAIT, Tone.RUN, Tone.OFF, Tone.OK)
NOTHING_DEPLOYED = Badge(Tone.OFF, "dots", "Nothing deployed yet")
# The values of the status filter, in its order, and their words.
TRACE_STATUSES: Mapping[str, str] = {
    "failed": "Failed",
    "running": "In progress",
    "succeeded": "Succeeded",
    "none": NOTHING_DEPLOYED.text,
}
_HASH = re.compile(r"[0-9a-f]{7,40}")
FULL_HASH_LENGTH = 40


@dataclass(frozen=True)
class TraceRow:
    """A commit, how its deployments ended, and the deployments."""

    id: str
    title: str
    body: str
    hash: str
    short: str
    url: str
    author: str
    at: Timestamp | None
    badge: Badge
    deployments: tuple[DeploymentRow, ...]
    where: Mapping[str, str]
    """Where a deployment is or why it has ended, by its id."""


@dataclass(frozen=True)
class TraceDay:
    """The traces of a day."""

    heading: str
    rows: tuple[TraceRow, ...]


def is_commit_prefix(text: str) -> bool:
    """Whether the text is the beginning of a commit hash, or all of it."""
    return _HASH.fullmatch(text.lower()) is not None


def trace_matches(trace: DeploymentTrace, text: str) -> bool:
    """Whether the commit begins with the text, or its message or author contains it."""
    wanted = text.lower()
    if trace.commit_hash.lower().startswith(wanted):
        return True
    return any(wanted in part.lower() for part in (trace.title, trace.commit_message, trace.author))


def has_status(traced: TracedDeployments, status: str) -> bool:
    """Whether the deployments of the commit have the status of the filter; every one has none."""
    statuses = [DeploymentStatus(each.status) for each in traced.deployments]
    match status:
        case "failed":
            return DeploymentStatus.FAILURE in statuses
        case "running":
            return not all(each.is_completed for each in statuses)
        case "succeeded":
            return set(statuses) == {DeploymentStatus.SUCCESS}
        case "none":
            return not statuses
        case _:
            return True


def traces_by_day(traces: Sequence[TracedDeployments], now: datetime) -> tuple[TraceDay, ...]:
    """The newest commit first, grouped by day in the time zone of `now`."""
    newest = sorted(traces, key=lambda each: (-_committed_at(each.trace), each.trace.id))
    groups = groupby(newest, key=lambda each: day_heading(_committed_at(each.trace), now))
    return tuple(
        TraceDay(heading, tuple(trace_row(each, now) for each in group))
        for heading, group in groups
    )


def trace_row(traced: TracedDeployments, now: datetime) -> TraceRow:
    trace = traced.trace
    rows = tuple(deployment_row(each, now) for each in traced.deployments)
    subject, _, body = trace.commit_message.strip().partition("\n")
    return TraceRow(
        id=trace.id,
        title=trace.title.strip() or subject or f"Commit {trace.commit_hash[:7]}",
        body=body.strip(),
        hash=trace.commit_hash,
        short=trace.commit_hash[:7],
        url=safe_link(trace.commit_url),
        author=trace.author,
        at=timestamp(_committed_at(trace), now),
        badge=_rollup(rows),
        deployments=tuple(sorted(rows, key=lambda row: (row.application_name, -row.created_at))),
        where={
            deployment.id: where_it_is(deployment, row)
            for deployment, row in zip(traced.deployments, rows, strict=True)
        },
    )


def where_it_is(deployment: Deployment, row: DeploymentRow) -> str:
    """The stage that a deployment is at, what it has deployed, or why it has not."""
    match row.badge.tone:
        case Tone.OK:
            return _deployed(deployment) or sentence(row.summary)
        case Tone.RUN | Tone.WAIT:
            at = next((each for each in row.segments if each.badge.tone in _AT_WORK), None)
            return f"At stage {at.name}." if at else ""
        case _:
            return sentence(deployment.status_reason)


def _deployed(deployment: Deployment) -> str:
    """The versions that are deployed now; empty if the piped has reported none."""
    versions = version_views(deployment.versions)
    texts = [each.short if len(versions) == 1 else each.text for each in versions[:_MAX_VERSIONS]]
    others = len(versions) - len(texts)
    shown = join_words([*texts, f"{others} more"] if others else texts)
    return f"Deployed {shown}." if shown else ""


def _committed_at(trace: DeploymentTrace) -> int:
    return trace.commit_timestamp or trace.created_at


def _rollup(rows: Sequence[DeploymentRow]) -> Badge:
    """How the deployments of a commit are doing, those that need somebody first."""
    if not rows:
        return NOTHING_DEPLOYED
    counts = Counter(row.badge for row in rows)
    ordered = sorted(counts, key=lambda badge: _WORST_FIRST.index(badge.tone))
    text = ", ".join(f"{counts[badge]} {badge.text.lower()}" for badge in ordered)
    return Badge(ordered[0].tone, ordered[0].icon, text)
