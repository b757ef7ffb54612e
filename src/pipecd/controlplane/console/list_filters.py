# SPDX-License-Identifier: Apache-2.0
"""Filters of lists in the URL: the URL of a list is its state.

Parameters and numbers are those of the upstream console, so that bookmarks keep working; we add
some of our own.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TypeVar
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.deploy_targets import platform_text
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
DEFAULT_PAGE_SIZE = 50
SORT_KEYS = ("status", "health", "name", "deployed", "updated")
# What needs somebody is first.
_DEFAULT_SORT = "status"
_STATUS_KEY = re.compile(r"(?:syncStatus|status)(?:\[\d*\])?")
_PLUGIN_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_KEY = re.compile(r"labels\[([0-9]{1,9})\]")
_PERIOD_TEXTS = {"24h": "last 24 hours", "7d": "last 7 days"}
# Parameters whose texts are words of ours.
_WORD_PARAMS = ("status", "syncStatus", "health", "activeStatus", "since")
# Parameters that a link to the same page does not carry on.
_ONE_TIME_PARAMS = ("project", "cmd", "added", "deleted")
_NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class ActiveFilter:
    """A filter of a query: the parameter of the URL, its value, and both in words."""

    param: str
    value: str
    text: str


Choice = tuple[str, str]
ENABLED_CHOICES: tuple[Choice, ...] = (("enabled", "Enabled"), ("disabled", "Disabled"))


@dataclass(frozen=True)
class FilterChoices:
    """What the selects of the filters offer: values of the URL and their words."""

    statuses: tuple[Choice, ...] = ()
    pipeds: tuple[Choice, ...] = ()
    healths: tuple[Choice, ...] = ()
    labels: tuple[Choice, ...] = ()
    platforms: tuple[Choice, ...] = ()
    enabled: tuple[Choice, ...] = ENABLED_CHOICES


@dataclass(frozen=True)
class FilterChip:
    """An active filter; `href` is the same list without it."""

    text: str
    href: str


@dataclass(frozen=True)
class ApplicationQuery:
    """Filters, order and page of the list of applications."""

    enabled: bool | None
    platforms: tuple[str, ...]
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
        """What the datastore filters; `application_list` applies the rest and the order."""
        return ApplicationFilter(
            project=project,
            enabled=self.enabled,
            name=self.name,
            piped_id=self.piped_id,
            labels=self.labels,
        )

    def active_filters(self, names: Mapping[str, str] = _NO_NAMES) -> tuple[ActiveFilter, ...]:
        """What limits the list; `names` maps ids of pipeds to their names."""
        enabled = {None: "", True: "enabled", False: "disabled"}[self.enabled]
        return _with_values(
            ActiveFilter("q", self.text, f"“{self.text}”"),
            ActiveFilter("name", self.name, f"name: {self.name}"),
            ActiveFilter("syncStatus", ",".join(self.statuses), _sync_text(self.statuses)),
            ActiveFilter("health", self.health, self.health),
            _platform_filter(self.platforms),
            _piped_filter(self.piped_id, names),
            ActiveFilter("activeStatus", enabled, enabled),
            *label_filters(self.labels),
        )

    def url(self) -> "PageUrl":
        """The address of the list with these filters and nothing else."""
        is_default = self.sort == _DEFAULT_SORT and not self.descending
        order = (("sort", self.sort), ("dir", "desc" if self.descending else ""))
        size = str(self.size) if self.size != DEFAULT_PAGE_SIZE else ""
        page = str(self.page) if self.page > 1 else ""
        params = [(each.param, each.value) for each in self.active_filters()]
        params += [
            *(() if is_default else order),
            ("size", size),
            ("page", page),
        ]
        return PageUrl("/applications", QueryParams(params), reset=("page",))


@dataclass(frozen=True)
class DeploymentQuery:
    """Filters of the list of deployments, and the cursor of the page.

    A deployment that waits for an approval has the status RUNNING, but counts as waiting only.
    """

    statuses: tuple[int, ...] = ()
    platforms: tuple[str, ...] = ()
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
            application_ids=(self.application_id,) if self.application_id else (),
            application_name=self.application_name,
            piped_id=self.piped_id,
            labels=self.labels,
            text=self.text,
        )

    @property
    def status_values(self) -> tuple[str, ...]:
        """The values of the status filter."""
        return (*((WAITING,) if self.waiting else ()), *map(str, self.statuses))

    def active_filters(self, names: Mapping[str, str] = _NO_NAMES) -> tuple[ActiveFilter, ...]:
        """What limits the list; `names` maps ids of pipeds and applications to their names."""
        application = names.get(self.application_id, self.application_id[:8])
        texts = [WAITING_FOR_APPROVAL.text] if self.waiting else []
        texts += (deployment_badge(DeploymentStatus(status)).text for status in self.statuses)
        return _with_values(
            ActiveFilter("q", self.text, f"“{self.text}”"),
            ActiveFilter("status", ",".join(self.status_values), " or ".join(texts).lower()),
            _platform_filter(self.platforms),
            ActiveFilter("applicationId", self.application_id, f"application: {application}"),
            ActiveFilter(
                "applicationName", self.application_name, f"application: {self.application_name}"
            ),
            _piped_filter(self.piped_id, names),
            *label_filters(self.labels),
            ActiveFilter("since", self.since, _PERIOD_TEXTS.get(self.since, "")),
        )

    def url(self) -> "PageUrl":
        """The address of the list with these filters and nothing else."""
        params = [(each.param, each.value) for each in self.active_filters()]
        params += [("before", self.before)]
        return PageUrl("/deployments", QueryParams(params), reset=("before",))


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
    is_sorted = sort in SORT_KEYS
    size = _number(params.get("size", ""), 0)
    return ApplicationQuery(
        enabled={"enabled": True, "disabled": False}.get(params.get("activeStatus", "")),
        platforms=_platforms(params),
        statuses=_application_statuses(",".join(params.getlist("syncStatus"))),
        name=params.get("name", ""),
        piped_id=params.get("pipedId", ""),
        labels=parse_labels(params),
        health=params.get("health", "") if params.get("health", "") in [*HealthStatus] else "",
        text=params.get("q", "").strip(),
        sort=sort if is_sorted else _DEFAULT_SORT,
        descending=is_sorted and params.get("dir", "") == "desc",
        page=max(_number(params.get("page", ""), 1), 1),
        size=size if size in PAGE_SIZES else DEFAULT_PAGE_SIZE,
    )


def parse_deployment_query(params: QueryParams) -> DeploymentQuery:
    return DeploymentQuery(
        statuses=_enum_values(params, "status", DeploymentStatus),
        platforms=_platforms(params),
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
    texts = [value for key, value in params.multi_items() if _LABEL_KEY.fullmatch(key)]
    pairs = (text.partition(":") for text in texts)
    return {key.strip(): value.strip() for key, colon, value in pairs if key.strip() and colon}


def label_filters(labels: Mapping[str, str]) -> tuple[ActiveFilter, ...]:
    """A filter for each label."""
    return tuple(
        ActiveFilter(f"labels[{number}]", f"{key}:{value}", f"{key}: {value}")
        for number, (key, value) in enumerate(labels.items())
    )


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
        labels = [
            (int(matched[1]), value)
            for key, value in self.params.multi_items()
            if (matched := _LABEL_KEY.fullmatch(key))
        ]
        if pair in [value for _, value in labels]:
            return self.with_params()
        free = max((number for number, _ in labels), default=-1) + 1
        return self.with_params(**{f"labels[{free}]": pair})

    def chips(self, filters: Iterable[ActiveFilter]) -> tuple[FilterChip, ...]:
        """The filters with links that remove them."""
        dropped = {*self.reset, *_ONE_TIME_PARAMS}
        return tuple(
            FilterChip(_chip_text(each), self._without({each.param, *dropped}, {}))
            for each in filters
        )

    def hidden_fields(self, *controls: str) -> tuple[tuple[str, str], ...]:
        """What a form must send besides its own controls so that the rest of the state stays."""
        dropped = {*controls, *self.reset, *_ONE_TIME_PARAMS}
        return tuple(
            pair for pair in self.params.multi_items() if pair[1] and pair[0] not in dropped
        )

    def _without(self, dropped: set[str], added: Mapping[str, str | int]) -> str:
        current = [(key, value) for key, value in self.params.multi_items() if value]
        pairs = [pair for pair in current if pair[0] not in dropped]
        pairs += [(key, str(value)) for key, value in added.items() if value != ""]
        return f"{self.path}?{urlencode(pairs)}" if pairs else self.path


def _chip_text(filter: ActiveFilter) -> str:
    """The words of a filter that stand alone; names and labels are as they are written."""
    text = filter.text
    return text[:1].upper() + text[1:] if filter.param in _WORD_PARAMS else text


def _with_values(*filters: ActiveFilter) -> tuple[ActiveFilter, ...]:
    return tuple(each for each in filters if each.value)


def _platforms(params: QueryParams) -> tuple[str, ...]:
    """The kinds, and the names of plugins."""
    kinds = {str(int(kind)) for kind in ApplicationKind}
    values = [part.strip() for value in params.getlist("kind") for part in value.split(",")]
    known = (each for each in values if each in kinds or _PLUGIN_NAME.fullmatch(each))
    return tuple(dict.fromkeys(known))


def _platform_filter(values: Sequence[str]) -> ActiveFilter:
    return ActiveFilter("kind", ",".join(values), " or ".join(map(platform_text, values)))


def _piped_filter(piped_id: str, names: Mapping[str, str]) -> ActiveFilter:
    return ActiveFilter("pipedId", piped_id, f"piped: {names.get(piped_id, piped_id[:8])}")


def _sync_text(statuses: Iterable[str]) -> str:
    unknown = sync_badge(SyncStatus.UNKNOWN)
    return " or ".join(APPLICATION_STATUSES.get(each, unknown).text for each in statuses).lower()


def _application_statuses(value: str) -> tuple[str, ...]:
    """The statuses of a comma-separated list; upstream's number for unknown is one of them."""
    known = (*APPLICATION_STATUSES, UNKNOWN_STATUS)
    return tuple(dict.fromkeys(part for part in value.split(",") if part in known))


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
