# SPDX-License-Identifier: Apache-2.0
"""View models of deployment traces: commits of source repositories and what they deployed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from pipecd.controlplane.console.deployments_view import DeploymentRow, deployment_row
from pipecd.controlplane.console.formatting import (
    Timestamp,
    day_heading,
    plural,
    safe_link,
    sentence,
    timestamp,
)
from pipecd.controlplane.console.status_badge import Badge, Tone
from pipecd.controlplane.usecases.deployments import TracedDeployments
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.trace_pb2 import DeploymentTrace

_AT_WORK = (Tone.RUN, Tone.WAIT)
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
    """The stage that a deployment is at, or why it has ended without success."""
    match row.badge.tone:
        case Tone.OK:
            return sentence(row.summary)
        case Tone.RUN | Tone.WAIT:
            at = next((each for each in row.segments if each.badge.tone in _AT_WORK), None)
            return f"At stage {at.name}." if at else ""
        case _:
            return sentence(deployment.status_reason)


def _committed_at(trace: DeploymentTrace) -> int:
    return trace.commit_timestamp or trace.created_at


def _rollup(rows: Sequence[DeploymentRow]) -> Badge:
    """How all deployments of a commit together are doing."""
    if not rows:
        return Badge(Tone.OFF, "dots", "Nothing deployed yet")
    tones = [row.badge.tone for row in rows]
    succeeded = tones.count(Tone.OK)
    text = f"{succeeded} of {plural(len(rows), 'deployment')} succeeded"
    for tone, icon in ((Tone.BAD, "cross"), (Tone.WAIT, "clock"), (Tone.RUN, "run")):
        if tone in tones:
            return Badge(tone, icon, text)
    return Badge(Tone.OK, "check", text) if succeeded else Badge(Tone.OFF, "dots", text)
