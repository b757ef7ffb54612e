# SPDX-License-Identifier: Apache-2.0
"""Filters of the list of pipeds in the URL, and which of their versions is the newest."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.list_filters import ActiveFilter, PageUrl
from pipecd.controlplane.console.pipeds_view import PipedRow
from pipecd.controlplane.console.status_badge import PIPED_STATUSES, StatusCount

# The value of `version` for every version but the newest.
OLDER = "older"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(-[0-9A-Za-z.-]+)?(?:\+.*)?")


@dataclass(frozen=True)
class PipedQuery:
    """Filters of the list of pipeds."""

    status: str = ""
    version: str = ""
    text: str = ""

    def active_filters(self) -> tuple[ActiveFilter, ...]:
        """What limits the list."""
        version = "not the newest version" if self.version == OLDER else self.version
        status = PIPED_STATUSES[self.status].text.lower() if self.status else ""
        filters = (
            ActiveFilter("q", self.text, f"“{self.text}”"),
            ActiveFilter("status", self.status, status),
            ActiveFilter("version", self.version, version),
        )
        return tuple(each for each in filters if each.value)

    def url(self, path: str) -> PageUrl:
        """The address of the list with these filters and nothing else."""
        params = [(each.param, each.value) for each in self.active_filters()]
        return PageUrl(path, QueryParams(params))


def parse_piped_query(params: QueryParams) -> PipedQuery:
    status = params.get("status", "")
    return PipedQuery(
        status=status if status in PIPED_STATUSES else "",
        version=params.get("version", "").strip(),
        text=params.get("q", "").strip(),
    )


def matches(row: PipedRow, query: PipedQuery) -> bool:
    """Whether the piped is in the list."""
    texts = (row.name, row.description, *row.platforms, *row.repositories)
    has_version = (
        bool(row.newer_version) if query.version == OLDER else row.version == query.version
    )
    return (
        query.status in ("", row.state)
        and (not query.version or has_version)
        and any(query.text.casefold() in text.casefold() for text in texts)
    )


def piped_counts(rows: Sequence[PipedRow]) -> tuple[StatusCount, ...]:
    """How many pipeds have each status, without zeros; one that restarts is online."""
    states = [row.state for row in rows]
    return tuple(
        StatusCount(status, badge, states.count(status))
        for status, badge in PIPED_STATUSES.items()
        if status in states
    )


def mark_outdated(
    rows: Iterable[PipedRow], ours: Collection[str], own_version: str
) -> tuple[PipedRow, ...]:
    """The rows, marked if a newer version is known.

    `ours` are the ids of pipeds that are not upstream's, whose releases have other numbers;
    `own_version` is that of this control plane.
    """
    known = tuple(rows)
    running = {
        is_ours: [
            row.version for row in known if not row.is_disabled and (row.id in ours) == is_ours
        ]
        for is_ours in (True, False)
    }
    newest = {
        True: newest_version([*running[True], own_version]),
        False: newest_version(running[False]),
    }
    return tuple(
        replace(
            row,
            newer_version=(
                newest[row.id in ours]
                if not row.is_disabled and is_older(row.version, newest[row.id in ours])
                else ""
            ),
        )
        for row in known
    )


def newest_version(versions: Iterable[str]) -> str:
    """The newest of these versions; anything but a semantic version is ignored."""
    known = [version for version in versions if _precedence(version)]
    return max(known, key=_precedence, default="")


def is_older(version: str, newest: str) -> bool:
    """Whether both are semantic versions and the first one comes before the second."""
    return bool(_precedence(version)) and _precedence(version) < _precedence(newest)


def _precedence(version: str) -> tuple[int | str, ...]:
    """Sorts like the versions; empty if it is none. A pre-release comes before its release."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return ()
    major, minor, patch, pre_release = found.groups()
    return (int(major), int(minor), int(patch), not pre_release, pre_release or "")
