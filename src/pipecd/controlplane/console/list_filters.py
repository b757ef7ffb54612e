# SPDX-License-Identifier: Apache-2.0
"""Filters in the address: the address of a list is its state.

Names and numbers are those of the upstream console, so that bookmarks keep working; ours are added.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.status_badge import deployment_mark, kind_word, sync_mark
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.deployment import DeploymentStatus

E = TypeVar("E", bound=IntEnum)

SIZES = (20, 50, 100)
SORTS = ("status", "name", "deployed", "updated")
# What belongs to one visit and not to the view.
_PASSING = ("project", "cmd")


@dataclass(frozen=True)
class Chip:
    """A filter that is on; `href` is the same view without it."""

    text: str
    href: str


@dataclass(frozen=True)
class ApplicationQuery:
    """Which applications are wanted, in which order, and which page of them."""

    enabled: bool | None
    kinds: tuple[int, ...]
    statuses: tuple[int, ...]
    name: str
    piped_id: str
    labels: Mapping[str, str]
    text: str
    sort: str
    descending: bool
    page: int
    size: int

    def filter(self, project: str) -> ApplicationFilter:
        """What the store can find; status, text and order are for the view."""
        return ApplicationFilter(
            project=project,
            enabled=self.enabled,
            kinds=self.kinds,
            name=self.name,
            piped_id=self.piped_id,
            labels=self.labels,
        )


@dataclass(frozen=True)
class DeploymentQuery:
    """Which deployments are wanted, and from where on."""

    statuses: tuple[int, ...]
    kinds: tuple[int, ...]
    application_id: str
    application_name: str
    piped_id: str
    labels: Mapping[str, str]
    text: str
    waiting: bool
    before: str

    def filter(self, project: str) -> DeploymentFilter:
        """What the store can find; the rest is looked through by the view."""
        statuses = self.statuses
        if self.waiting:
            statuses = (int(DeploymentStatus.RUNNING),)
        return DeploymentFilter(
            project=project,
            statuses=statuses,
            kinds=self.kinds,
            application_ids=(self.application_id,) if self.application_id else (),
            application_name=self.application_name,
            labels=self.labels,
        )


def read_applications(params: QueryParams) -> ApplicationQuery:
    sort = params.get("sort", "")
    size = params.get("size", "")
    return ApplicationQuery(
        enabled={"enabled": True, "disabled": False}.get(params.get("activeStatus", "")),
        kinds=_numbers(params, "kind", ApplicationKind),
        statuses=_numbers(params, "syncStatus", SyncStatus),
        name=params.get("name", ""),
        piped_id=params.get("pipedId", ""),
        labels=labels(params),
        text=params.get("q", "").strip(),
        sort=sort if sort in SORTS else "",
        descending=params.get("dir", "") == "desc",
        page=max(_number(params.get("page", ""), 1), 1),
        size=_number(size, 0) if _number(size, 0) in SIZES else 50,
    )


def read_deployments(params: QueryParams) -> DeploymentQuery:
    return DeploymentQuery(
        statuses=_numbers(params, "status", DeploymentStatus),
        kinds=_numbers(params, "kind", ApplicationKind),
        application_id=params.get("applicationId", ""),
        application_name=params.get("applicationName", ""),
        piped_id=params.get("pipedId", ""),
        labels=labels(params),
        text=params.get("q", "").strip(),
        waiting=params.get("waiting", "") == "approval",
        before=params.get("before", ""),
    )


def labels(params: QueryParams) -> dict[str, str]:
    """The pairs of `labels[n]=key:value`; what is no pair does not count."""
    texts = [value for key, value in params.multi_items() if re.fullmatch(r"labels\[\d+\]", key)]
    pairs = (text.split(":") for text in texts)
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0]}


@dataclass(frozen=True)
class Address:
    """Where a reader is; `restart` names what a change of anything else takes back."""

    path: str
    params: QueryParams
    restart: tuple[str, ...] = ()

    def to(self, **changes: str | int) -> str:
        """The address of the same view with some of its state changed; an empty text takes away."""
        return self._without({*changes, *self.restart, *_PASSING}, changes)

    def chips(self, names: Mapping[str, str]) -> tuple[Chip, ...]:
        """The filters that are on; `names` says what pipeds and applications are called."""
        found: list[Chip] = []
        for key, value in self.params.multi_items():
            text = _chip_text(key, value, names)
            if text and value:
                href = self._without({key, *self.restart, *_PASSING}, {})
                found.append(Chip(text, href))
        return tuple(found)

    def _without(self, gone: set[str], new: Mapping[str, str | int]) -> str:
        kept = [(key, value) for key, value in self.params.multi_items() if value]
        pairs = [pair for pair in kept if pair[0] not in gone]
        pairs += [(key, str(value)) for key, value in new.items() if value != ""]
        return f"{self.path}?{urlencode(pairs)}" if pairs else self.path


def _chip_text(key: str, value: str, names: Mapping[str, str]) -> str:
    if key.startswith("labels["):
        return value
    words = {
        "q": f"“{value}”",
        "name": f"name: {value}",
        "applicationName": f"application: {value}",
        "applicationId": f"application: {names.get(value, value[:8])}",
        "pipedId": f"piped: {names.get(value, value[:8])}",
        "activeStatus": value,
        "waiting": "waiting for approval",
        "kind": _words(value, ApplicationKind),
        "syncStatus": _words(value, SyncStatus),
        "status": _words(value, DeploymentStatus),
    }
    return words.get(key, "")


def _words(value: str, kind: type[IntEnum]) -> str:
    members = (kind(number) for number in _listed(value, kind))
    return " or ".join(_word(member).lower() for member in members)


def _word(member: IntEnum) -> str:
    match member:
        case ApplicationKind():
            return kind_word(member)
        case SyncStatus():
            return sync_mark(member).word
        case DeploymentStatus():
            return deployment_mark(member).word
        case _:
            return member.name


def _numbers(params: QueryParams, key: str, kind: type[E]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(n for value in params.getlist(key) for n in _listed(value, kind)))


def _listed(value: str, kind: type[IntEnum]) -> tuple[int, ...]:
    """The numbers of a list with commas that mean something."""
    known = {int(member) for member in kind}
    numbers = (_number(part, -1) for part in value.split(","))
    return tuple(number for number in numbers if number in known)


def _number(text: str, otherwise: int) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else otherwise
