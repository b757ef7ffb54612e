# SPDX-License-Identifier: Apache-2.0
"""Filters of lists in the URL: the URL of a list is its state.

Parameters and numbers are those of the upstream console, so that bookmarks keep working; we add
some of our own.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.deploy_targets import KIND_NAMES
from pipecd.controlplane.console.status_badge import (
    APPLICATION_STATUSES,
    WAITING,
    WAITING_FOR_APPROVAL,
    deployment_badge,
    sync_badge,
)
from pipecd.controlplane.datastore.applications import ApplicationFilter
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.model.application import ApplicationKind, SyncStatus
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.health import HealthStatus

E = TypeVar("E", bound=IntEnum)

# Matches every application whose sync status is unknown, as in upstream's console.
UNKNOWN_STATUS = str(int(SyncStatus.UNKNOWN))
# The values of `since` and how far back they reach, in seconds.
PERIODS = {"24h": 86400, "7d": 7 * 86400}

PAGE_SIZES = (20, 50, 100)
SORT_KEYS = ("status", "health", "name", "deployed", "updated")
_STATUS_KEY = re.compile(r"(?:syncStatus|status)(?:\[\d*\])?")
# Parameters that a link to the same list does not carry on.
_ONE_TIME_PARAMS = ("project", "cmd", "deleted")


@dataclass(frozen=True)
class FilterChip:
    """An active filter; `href` is the same list without it."""

    text: str
    href: str


@dataclass(frozen=True)
class ApplicationQuery:
    """Filters, order and page of the list of applications."""

    enabled: bool | None
    kinds: tuple[int, ...]
    statuses: tuple[str, ...]
    name: str
    piped_id: str
    labels: Mapping[str, str]
    health: str
    text: str
    sort: str
    descending: bool
    page: int
    size: int

    def filter(self, project: str) -> ApplicationFilter:
        """What the datastore filters; `application_list` applies status, text and order."""
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
    """Filters of the list of deployments, and the cursor of the page.

    A deployment that waits for an approval has the status RUNNING, but counts as waiting only.
    """

    statuses: tuple[int, ...] = ()
    kinds: tuple[int, ...] = ()
    application_id: str = ""
    application_name: str = ""
    piped_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    text: str = ""
    waiting: bool = False
    since: str = ""
    before: str = ""

    def filter(self, project: str) -> DeploymentFilter:
        """What the datastore filters; `matches` distinguishes those that wait for an approval."""
        waiting = (int(DeploymentStatus.RUNNING),) if self.waiting else ()
        return DeploymentFilter(
            project=project,
            statuses=tuple(dict.fromkeys((*self.statuses, *waiting))),
            kinds=self.kinds,
            application_ids=(self.application_id,) if self.application_id else (),
            application_name=self.application_name,
            piped_id=self.piped_id,
            labels=self.labels,
            text=self.text,
        )


def canonical_params(params: QueryParams, *, status: str) -> QueryParams:
    """The parameters of a bookmark with one name and numbers for statuses.

    `status` is the parameter of this list. Bookmarks may have `status` or `syncStatus`, repeated,
    with an index or with the names of the API.
    """
    items = params.multi_items()
    is_status = [bool(_STATUS_KEY.fullmatch(key)) for key, _ in items]
    first = is_status.index(True) if True in is_status else len(items)
    pairs = [pair for pair, has_status in zip(items, is_status, strict=True) if not has_status]
    statuses = [
        part
        for (_, value), has_status in zip(items, is_status, strict=True)
        if has_status
        for part in value.split(",")
    ]
    kind: type[IntEnum] = DeploymentStatus if status == "status" else SyncStatus
    names = {member.name: str(int(member)) for member in kind}
    names |= {f"DEPLOYMENT_{name}": number for name, number in names.items()}
    values = [names.get(each.strip().upper(), each.strip()) for each in statuses]
    if joined := ",".join(dict.fromkeys(value for value in values if value)):
        pairs.insert(first, (status, joined))
    return QueryParams(pairs)


def parse_application_query(params: QueryParams) -> ApplicationQuery:
    sort = params.get("sort", "")
    size = _number(params.get("size", ""), 0)
    return ApplicationQuery(
        enabled={"enabled": True, "disabled": False}.get(params.get("activeStatus", "")),
        kinds=_enum_values(params, "kind", ApplicationKind),
        statuses=_application_statuses(",".join(params.getlist("syncStatus"))),
        name=params.get("name", ""),
        piped_id=params.get("pipedId", ""),
        labels=parse_labels(params),
        health=params.get("health", "") if params.get("health", "") in [*HealthStatus] else "",
        text=params.get("q", "").strip(),
        sort=sort if sort in SORT_KEYS else "",
        descending=params.get("dir", "") == "desc",
        page=max(_number(params.get("page", ""), 1), 1),
        size=size if size in PAGE_SIZES else 50,
    )


def parse_deployment_query(params: QueryParams) -> DeploymentQuery:
    return DeploymentQuery(
        statuses=_enum_values(params, "status", DeploymentStatus),
        kinds=_enum_values(params, "kind", ApplicationKind),
        application_id=params.get("applicationId", ""),
        application_name=params.get("applicationName", ""),
        piped_id=params.get("pipedId", ""),
        labels=parse_labels(params),
        text=params.get("q", "").strip(),
        waiting=params.get("waiting", "") == "approval"
        or WAITING in ",".join(params.getlist("status")).split(","),
        since=params.get("since", "") if params.get("since", "") in PERIODS else "",
        before=params.get("before", ""),
    )


def parse_labels(params: QueryParams) -> dict[str, str]:
    """The pairs of `labels[n]=key:value`; anything else is ignored."""
    texts = [value for key, value in params.multi_items() if re.fullmatch(r"labels\[\d+\]", key)]
    pairs = (text.split(":") for text in texts)
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2 and pair[0]}


@dataclass(frozen=True)
class PageUrl:
    """The URL of the current page; any change of it drops the parameters in `reset`."""

    path: str
    params: QueryParams
    reset: tuple[str, ...] = ()

    def with_params(self, **changes: str | int) -> str:
        """The URL with changed parameters; an empty text removes one."""
        return self._without({*changes, *self.reset, *_ONE_TIME_PARAMS}, changes)

    def with_label(self, text: str) -> str:
        """The URL with one label more, given as `key: value`."""
        pair = text.replace(": ", ":", 1)
        labels = [value for key, value in self.params.multi_items() if key.startswith("labels[")]
        if pair in labels:
            return self.with_params()
        return self.with_params(**{f"labels[{len(labels)}]": pair})

    def chips(
        self, names: Mapping[str, str], **texts: Callable[[str], str]
    ) -> tuple[FilterChip, ...]:
        """The active filters; `names` maps ids of pipeds and applications to their names.

        `texts` puts parameters into words that mean something else here than in other lists.
        """
        chips: list[FilterChip] = []
        for key, value in self.params.multi_items():
            text = texts[key](value) if key in texts else _chip_text(key, value, names)
            if text and value:
                href = self._without({key, *self.reset, *_ONE_TIME_PARAMS}, {})
                chips.append(FilterChip(text, href))
        return tuple(chips)

    def _without(self, dropped: set[str], added: Mapping[str, str | int]) -> str:
        current = [(key, value) for key, value in self.params.multi_items() if value]
        pairs = [pair for pair in current if pair[0] not in dropped]
        pairs += [(key, str(value)) for key, value in added.items() if value != ""]
        return f"{self.path}?{urlencode(pairs)}" if pairs else self.path


def _chip_text(key: str, value: str, names: Mapping[str, str]) -> str:
    if key.startswith("labels["):
        return value
    texts = {
        "q": f"“{value}”",
        "name": f"name: {value}",
        "applicationName": f"application: {value}",
        "applicationId": f"application: {names.get(value, value[:8])}",
        "pipedId": f"piped: {names.get(value, value[:8])}",
        "activeStatus": value,
        "waiting": "waiting for approval",
        "since": {"24h": "last 24 hours", "7d": "last 7 days"}.get(value, ""),
        "kind": _enum_text(value, ApplicationKind, lambda kind: KIND_NAMES[kind]),
        "syncStatus": " or ".join(
            APPLICATION_STATUSES.get(status, sync_badge(SyncStatus.UNKNOWN)).text.lower()
            for status in _application_statuses(value)
        ),
        "status": _deployment_status_text(value),
        "health": value if value in [*HealthStatus] else "",
    }
    return texts.get(key, "")


def _application_statuses(value: str) -> tuple[str, ...]:
    """The statuses of a comma-separated list; upstream's number for unknown is one of them."""
    known = (*APPLICATION_STATUSES, UNKNOWN_STATUS)
    return tuple(dict.fromkeys(part for part in value.split(",") if part in known))


def _deployment_status_text(value: str) -> str:
    texts = [WAITING_FOR_APPROVAL.text] if WAITING in value.split(",") else []
    numbers = _split_numbers(value, DeploymentStatus)
    texts += (deployment_badge(DeploymentStatus(number)).text for number in numbers)
    return " or ".join(texts).lower()


def _enum_text(value: str, kind: type[E], text: Callable[[E], str]) -> str:
    return " or ".join(text(kind(number)).lower() for number in _split_numbers(value, kind))


def _enum_values(params: QueryParams, key: str, kind: type[E]) -> tuple[int, ...]:
    values = (n for value in params.getlist(key) for n in _split_numbers(value, kind))
    return tuple(dict.fromkeys(values))


def _split_numbers(value: str, kind: type[IntEnum]) -> tuple[int, ...]:
    """The numbers of a comma-separated list that are members of the enum."""
    members = {int(member) for member in kind}
    numbers = (_number(part, -1) for part in value.split(","))
    return tuple(number for number in numbers if number in members)


def _number(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else default
