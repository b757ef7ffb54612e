# SPDX-License-Identifier: Apache-2.0
"""View model of the live state of an application: a tree of resources that can be filtered.

The worst resources come first at every level. A filter shows the resources that match it, below
their ancestors. The pages of all platforms are the same; `live_graph` draws the tree as a graph.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256

from starlette.datastructures import QueryParams

from pipecd.controlplane.console.diff_view import DiffSection, DiffView
from pipecd.controlplane.console.formatting import Timestamp, isolate, plural, sentence, timestamp
from pipecd.controlplane.console.status_badge import Badge, health_badge
from pipecd.controlplane.usecases.livestate_history import ResourceEvent, ResourceEventType
from pipecd.model.health import HealthStatus, health_of, parse_progress
from pipecd.model.livestate import application_health, live_resources
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

MAX_RESOURCES = 2000
# Branches in which everything is healthy are closed if there are more resources than this.
_MAX_OPEN = 60
# What `worst_first` shows whole.
_FEW = 8
_MAX_DEPTH = 12
_MAX_EVENTS = 20
# Metadata with places of their own.
_SHOWN_ELSEWHERE = ("Kind", "Namespace")
# Metadata whose name is written in another way than plugins do.
_FACT_NAMES = {"API Version": "API version"}
# Metadata that tells most about a resource, with the word before its value; at most so many.
_HIGHLIGHTS = {
    "Traffic": "traffic ",
    "Share": "traffic ",
    "status": "",
    "scale": "scale ",
    "taskDefinition": "",
    "runningCount": "running ",
    "desiredCount": "desired ",
    "lastStatus": "",
    "Commit": "commit ",
    "Image": "",
    "Runtime": "",
    "Memory": "",
    "CPU": "",
    "id": "",
}
_MAX_HIGHLIGHTS = 3
# Longer numbers are rather parts of hashes.
_NUMBER = re.compile(r"(?<![0-9A-Fa-f])([0-9]{1,9})(?![0-9A-Fa-f])")
_SEVERITY = {health: rank for rank, health in enumerate(HealthStatus)}
# The resource that a definition of ECS describes; a piped of v0 reports a `Service`.
_ECS_DEFINITIONS = {
    "ServiceDefinition": ("ECS:Service", "Service"),
    "TaskDefinition": ("ECS:TaskDefinition", "ECS:Service", "Service"),
}

Key = tuple[str, str]


@dataclass(frozen=True)
class LiveQuery:
    """Filters of the live state, and the resource whose panel is open."""

    target: str = ""
    kind: str = ""
    health: str = ""
    text: str = ""
    resource: str = ""
    is_graph: bool = False

    @property
    def is_filtered(self) -> bool:
        return bool(self.kind or self.health or self.text)


def parse_live_query(params: QueryParams) -> LiveQuery:
    health = params.get("health", "")
    return LiveQuery(
        target=params.get("target", ""),
        kind=params.get("kind", ""),
        health=health if health in [*HealthStatus] else "",
        text=params.get("q", "").strip(),
        resource=params.get("res", ""),
        is_graph=params.get("view", "") == "graph",
    )


@dataclass(frozen=True)
class ResourceRow:
    """One resource of the tree."""

    id: str
    anchor: str
    name: str
    kind: str
    location: str
    health: HealthStatus
    text: str
    highlights: str
    created: Timestamp | None
    # False for an ancestor of what a filter matches.
    is_match: bool = True
    is_open: bool = True
    drift: Badge | None = None
    # How many resources are below, and the worst health among them.
    below: int = 0
    worst: HealthStatus = HealthStatus.HEALTHY
    children: tuple["ResourceRow", ...] = ()

    @property
    def badge(self) -> Badge:
        return health_badge(self.health)

    @property
    def hint(self) -> str:
        """What is below, for a closed branch."""
        is_bad = self.worst is not HealthStatus.HEALTHY
        return f"{self.below} below" + (f", {self.worst.value}" if is_bad else "")


@dataclass(frozen=True)
class FilterOption:
    """A value to filter by, with the number of resources that have it."""

    value: str
    count: int
    badge: Badge | None = None


@dataclass(frozen=True)
class ResourceLink:
    """A link to another resource."""

    id: str
    name: str
    kind: str
    badge: Badge


@dataclass(frozen=True)
class EventRow:
    """Something that happened to a resource."""

    at: Timestamp | None
    badge: Badge
    text: str


@dataclass(frozen=True)
class ResourcePanel:
    """Everything about one resource."""

    row: ResourceRow
    facts: tuple[tuple[str, str], ...]
    created: Timestamp | None
    updated: Timestamp | None
    parents: tuple[ResourceLink, ...]
    children: tuple[ResourceLink, ...]
    drift: tuple[DiffSection, ...]
    events: tuple[EventRow, ...]


@dataclass(frozen=True)
class LiveStateView:
    """All live resources, and the health of the application."""

    badge: Badge
    summary: str
    total: int
    roots: tuple[ResourceRow, ...]
    shown: int
    healths: tuple[FilterOption, ...]
    kinds: tuple[FilterOption, ...]
    targets: tuple[FilterOption, ...]
    updated: Timestamp | None
    panel: ResourcePanel | None = None
    # The resource that was asked for is gone.
    is_missing: bool = False

    @property
    def trouble(self) -> str:
        """The first unhealthy resource that says why it is; empty if none does."""
        row = next(filter(None, map(_first_unhealthy, self.roots)), None)
        return f"{row.kind} {isolate(row.name)}: {sentence(row.text)}" if row else ""

    @property
    def omitted(self) -> int:
        return self.total - self.shown


def live_state_view(
    snapshot: ApplicationLiveStateSnapshot,
    now: datetime,
    query: LiveQuery | None = None,
    *,
    drift: DiffView | None = None,
    events: Iterable[ResourceEvent] = (),
) -> LiveStateView:
    """The view of a snapshot of any piped that the query asks for."""
    query, drift = query or LiveQuery(), drift or DiffView()
    everything = live_resources(snapshot)
    of_target = [each for each in everything if query.target in ("", each.deploy_target)]
    matching = [each for each in of_target if _matches(each, query)]
    forest = _Forest(of_target, now, drift)
    roots = forest.rows(matching)
    panel = forest.panel(query.resource, events) if query.resource else None
    return LiveStateView(
        badge=health_badge(application_health(snapshot, everything)),
        summary=_summary(everything),
        total=len(matching),
        roots=roots,
        shown=sum(map(_count_matches, roots)),
        healths=_health_options(of_target),
        kinds=_options(_kind(each) for each in of_target),
        targets=_target_options(everything),
        updated=timestamp(snapshot.version.timestamp, now),
        panel=panel,
        is_missing=bool(query.resource) and panel is None,
    )


def worst_first(view: LiveStateView, at_most: int) -> LiveStateView:
    """A short version: only branches with something that is not healthy, or all of them closed.

    A tree of a few resources is whole.
    """
    if view.total <= _FEW:
        return view
    if all(_worst(row) is HealthStatus.HEALTHY for row in view.roots) and view.total <= at_most:
        return replace(view, roots=tuple(replace(row, is_open=False) for row in view.roots))
    roots = tuple(row for row in view.roots if _worst(row) is not HealthStatus.HEALTHY)
    pruned = tuple(_prune(row) for row in roots)
    shown: list[ResourceRow] = []
    left = at_most
    for row in pruned:
        if left <= 0:
            break
        shown.append(row)
        left -= 1 + row.below
    return replace(view, roots=tuple(shown), shown=sum(1 + row.below for row in shown))


def _prune(row: ResourceRow) -> ResourceRow:
    """The row without branches in which everything is healthy."""
    children = tuple(
        _prune(child) for child in row.children if _worst(child) is not HealthStatus.HEALTHY
    )
    return replace(
        row, children=children, below=sum(1 + child.below for child in children), is_open=True
    )


def _with_numbers(name: str) -> tuple[tuple[int, str], ...]:
    """What names are sorted by, so that `web-2` comes before `web-10`."""
    # Every second part is what the pattern has found.
    return tuple(
        (int(part), "") if index % 2 else (-1, part)
        for index, part in enumerate(_NUMBER.split(name))
    )


def _worst(row: ResourceRow) -> HealthStatus:
    return min(row.health, row.worst, key=_SEVERITY.__getitem__)


def _count_matches(row: ResourceRow) -> int:
    return int(row.is_match) + sum(map(_count_matches, row.children))


def _first_unhealthy(row: ResourceRow) -> ResourceRow | None:
    """This resource, or the first one below it, that says why it is unhealthy."""
    if row.health is HealthStatus.UNHEALTHY and row.text:
        return row
    return next(filter(None, map(_first_unhealthy, row.children)), None)


def _summary(resources: Sequence[ResourceState]) -> str:
    """The number of resources, and how many of them are not healthy."""
    counts = Counter(map(health_of, resources))
    parts = [
        f"{counts[health]} {health.value}"
        if health is not HealthStatus.UNKNOWN
        else f"{counts[health]} of unknown health"
        for health in HealthStatus
        if counts[health] and health is not HealthStatus.HEALTHY
    ]
    return ", ".join((plural(len(resources), "resource"), *parts))


def _matches(resource: ResourceState, query: LiveQuery) -> bool:
    text = query.text.casefold()
    searched = (resource.name, _kind(resource), _namespace(resource), resource.health_description)
    return (
        query.kind in ("", _kind(resource))
        and query.health in ("", health_of(resource))
        and (not text or any(text in each.casefold() for each in searched))
    )


def _options(values: Iterable[str]) -> tuple[FilterOption, ...]:
    counts = Counter(values)
    return tuple(FilterOption(value, counts[value]) for value in sorted(counts) if value)


def _health_options(resources: Iterable[ResourceState]) -> tuple[FilterOption, ...]:
    counts = Counter(map(health_of, resources))
    return tuple(
        FilterOption(health.value, counts[health], health_badge(health))
        for health in HealthStatus
        if counts[health]
    )


def _target_options(resources: Iterable[ResourceState]) -> tuple[FilterOption, ...]:
    """The deploy targets with their worst health; none if there is only one."""
    healths: defaultdict[str, list[HealthStatus]] = defaultdict(list)
    for each in resources:
        healths[each.deploy_target].append(health_of(each))
    if len(healths) < 2:
        return ()
    return tuple(
        FilterOption(
            target,
            len(healths[target]),
            health_badge(min(healths[target], key=_SEVERITY.__getitem__)),
        )
        for target in sorted(healths)
    )


def _kind(resource: ResourceState) -> str:
    return resource.resource_metadata.get("Kind") or resource.resource_type


def _namespace(resource: ResourceState) -> str:
    return resource.resource_metadata.get("Namespace", "")


def _key(resource: ResourceState) -> Key:
    return resource.deploy_target, resource.id


def _health_text(resource: ResourceState) -> str:
    text = resource.health_description.strip()
    progress = parse_progress(text) if health_of(resource) is HealthStatus.PROGRESSING else None
    return text if progress is None else progress


def _highlights(resource: ResourceState) -> str:
    metadata = resource.resource_metadata
    known = [
        f"{word}{_short_name(metadata[key])}"
        for key, word in _HIGHLIGHTS.items()
        if metadata.get(key)
    ]
    return " · ".join(known[:_MAX_HIGHLIGHTS])


def _short_name(value: str) -> str:
    """Returns the last part of an ARN, which is the name and revision of a task definition."""
    return value.rpartition("/")[2] if value.startswith("arn:") else value


@dataclass(frozen=True)
class _Subtree:
    row: ResourceRow
    has_match: bool


class _Forest:
    """The resources of one or all targets, each below its first parent."""

    def __init__(self, resources: Sequence[ResourceState], now: datetime, drift: DiffView) -> None:
        self._now = now
        self._by_key = {_key(each): each for each in resources}
        self._has_targets = len({each.deploy_target for each in resources}) > 1
        self._drifted = _drift_by_resource(resources, drift)
        self._children: defaultdict[Key, list[Key]] = defaultdict(list)
        self._roots: list[Key] = []
        self._matching: set[Key] = set()
        self._opens_all, self._left = True, MAX_RESOURCES
        for key, each in self._by_key.items():
            parents = ((each.deploy_target, id) for id in each.parent_ids)
            parent = next((p for p in parents if p in self._by_key and p != key), None)
            (self._roots if parent is None else self._children[parent]).append(key)
        reached: set[Key] = set()
        for root in self._roots:
            self._reach(root, reached)
        # What is left are cycles; one resource of each becomes a root.
        for key in sorted(self._by_key):
            if key not in reached:
                self._roots.append(key)
                self._reach(key, reached)

    def _reach(self, root: Key, reached: set[Key]) -> None:
        """Adds all below to `reached`; drops the edge of a cycle, and limits the depth."""
        pending: list[tuple[Key, Key, int]] = [(root, root, 0)]
        while pending:
            key, parent, depth = pending.pop()
            reached.add(key)
            below = [child for child in self._children[key] if child not in reached]
            if depth < _MAX_DEPTH:
                self._children[key] = below
                pending += ((child, key, depth + 1) for child in below)
            else:
                self._children[key] = []
                self._children[parent] += below
                pending += ((child, parent, depth) for child in below)

    def rows(self, matching: Sequence[ResourceState]) -> tuple[ResourceRow, ...]:
        """The tree of what matches, below its ancestors; the worst branches first."""
        self._matching = {_key(each) for each in matching}
        is_all = len(self._matching) == len(self._by_key)
        self._opens_all = len(self._matching) <= _MAX_OPEN or not is_all
        self._left = MAX_RESOURCES
        trees = self._sorted(self._subtree(root) for root in self._roots)
        return tuple(tree.row for tree in trees)

    def _subtree(self, key: Key) -> _Subtree:
        below = self._sorted(self._subtree(child) for child in self._children[key])
        children = tuple(tree.row for tree in below)
        worst = min(
            (_worst(child) for child in children),
            key=_SEVERITY.__getitem__,
            default=HealthStatus.HEALTHY,
        )
        is_match = key in self._matching and self._left > 0
        self._left -= is_match
        row = replace(
            self.row(self._by_key[key]),
            is_match=is_match,
            is_open=self._opens_all or worst is not HealthStatus.HEALTHY,
            below=sum(1 + child.below for child in children),
            worst=worst,
            children=children,
        )
        return _Subtree(row, is_match or bool(children))

    def _sorted(self, trees: Iterable[_Subtree]) -> list[_Subtree]:
        return sorted(
            (tree for tree in trees if tree.has_match),
            key=lambda tree: (
                _SEVERITY[_worst(tree.row)],
                not tree.row.children,
                tree.row.kind,
                _with_numbers(tree.row.name),
                tree.row.id,
            ),
        )

    def row(self, resource: ResourceState) -> ResourceRow:
        id = f"{resource.deploy_target}/{resource.id}"
        location = (_namespace(resource), resource.deploy_target if self._has_targets else "")
        drift = self._drifted.get(_key(resource), ())
        return ResourceRow(
            id=id,
            anchor="live-" + sha256(id.encode()).hexdigest()[:12],
            name=resource.name,
            kind=_kind(resource),
            location=" · ".join(part for part in location if part),
            health=health_of(resource),
            text=_health_text(resource),
            highlights=_highlights(resource),
            created=timestamp(resource.created_at, self._now),
            drift=drift[0].badge if drift else None,
        )

    def panel(self, id: str, events: Iterable[ResourceEvent]) -> ResourcePanel | None:
        """Everything about one resource; None if it is gone."""
        resource = next((r for key, r in self._by_key.items() if "/".join(key) == id), None)
        if resource is None:
            return None
        key, metadata = _key(resource), resource.resource_metadata
        facts = (
            ("Namespace", _namespace(resource)),
            ("Deploy target", resource.deploy_target),
            ("Plugin", resource.plugin_name),
            *(
                (_FACT_NAMES.get(name, name), metadata[name])
                for name in sorted(metadata)
                if name not in _SHOWN_ELSEWHERE
            ),
            ("ID", resource.id),
        )
        parents = ((resource.deploy_target, parent) for parent in resource.parent_ids)
        below = sorted(
            (self._by_key[child] for child in self._children[key]),
            key=lambda each: (_SEVERITY[health_of(each)], _kind(each), each.name),
        )
        own = [event for event in events if (event.target, event.id) == key]
        return ResourcePanel(
            row=self.row(resource),
            facts=tuple((name, value) for name, value in facts if value),
            created=timestamp(resource.created_at, self._now),
            updated=timestamp(resource.updated_at, self._now),
            parents=tuple(_link(self._by_key[p]) for p in parents if p in self._by_key),
            children=tuple(map(_link, below)),
            drift=tuple(self._drifted.get(key, ())),
            events=tuple(event_row(event, self._now) for event in reversed(own[-_MAX_EVENTS:])),
        )


def _link(resource: ResourceState) -> ResourceLink:
    id, badge = "/".join(_key(resource)), health_badge(health_of(resource))
    return ResourceLink(id, resource.name, _kind(resource), badge)


def event_row(event: ResourceEvent, now: datetime) -> EventRow:
    match event.type:
        case ResourceEventType.APPEARED:
            text = "Appeared"
        case ResourceEventType.REMOVED:
            text = "Removed"
        case ResourceEventType.HEALTH:
            text = health_badge(event.health).text
    details = f": {event.text}" if event.text else ""
    return EventRow(timestamp(event.at, now), health_badge(event.health), text + details)


def _drift_by_resource(
    resources: Sequence[ResourceState], drift: DiffView
) -> dict[Key, list[DiffSection]]:
    """The sections of a diff by the resource that they are about."""
    found: defaultdict[Key, list[DiffSection]] = defaultdict(list)
    if not drift.sections:
        return found
    by_name: dict[tuple[str, str, str], list[ResourceState]] = defaultdict(list)
    by_address: dict[str, list[ResourceState]] = defaultdict(list)
    for each in resources:
        by_name[_kind(each), _namespace(each), each.name].append(each)
        by_address[each.id].append(each)
    roots = [each for each in resources if not each.parent_ids]
    for section in drift.sections:
        candidates = by_name.get((section.kind, section.namespace, section.name)) or (
            by_address.get(section.name) or _described(section, resources)
        )
        if not section.name and len(drift.sections) == 1 and len(roots) == 1:
            candidates = roots
        for each in candidates:
            if section.target in ("", each.deploy_target):
                found[_key(each)].append(section)
    return found


def _described(section: DiffSection, resources: Sequence[ResourceState]) -> list[ResourceState]:
    """The resources that a definition of ECS is about."""
    for kind in _ECS_DEFINITIONS.get(section.name, ()):
        if found := [each for each in resources if each.resource_type == kind]:
            return found
    return []
