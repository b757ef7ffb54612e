# SPDX-License-Identifier: Apache-2.0
"""What runs for an application, as a tree of lines, whoever reported it in whatever form."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from pipecd.controlplane.console.formatting import Moment, moment, plural
from pipecd.controlplane.console.status_badge import Mark, health_mark
from pipecd.proto.model import livestate_pb2 as pb
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

_First: TypeAlias = (
    pb.KubernetesResourceState
    | pb.CloudRunResourceState
    | pb.ECSResourceState
    | pb.LambdaResourceState
)
# More lines than this say less.
MOST_SHOWN = 200
# Deeper ones are drawn at the edge.
_DEEPEST = 6
# These are said in columns of their own.
_SAID = ("Kind", "Namespace")


@dataclass(frozen=True)
class LiveResource:
    """One line of the tree; `depth` says how far it is drawn to the right."""

    id: str
    name: str
    kind: str
    place: str
    mark: Mark
    text: str
    facts: tuple[tuple[str, str], ...]
    depth: int
    created: Moment | None


@dataclass(frozen=True)
class LiveTree:
    """Everything that runs, and how it is as a whole."""

    mark: Mark
    summary: str
    resources: tuple[LiveResource, ...]
    omitted: int
    seen: Moment | None


def live_tree(snapshot: ApplicationLiveStateSnapshot, now: datetime) -> LiveTree:
    """The tree in a report of any piped."""
    lines = [_line(resource, depth, now) for resource, depth in _in_order(_resources(snapshot))]
    return LiveTree(
        # The first generation calls OTHER what the second calls UNHEALTHY.
        mark=health_mark(min(snapshot.health_status, ResourceState.UNHEALTHY)),
        summary=plural(len(lines), "resource"),
        resources=tuple(lines[:MOST_SHOWN]),
        omitted=max(0, len(lines) - MOST_SHOWN),
        seen=moment(snapshot.version.timestamp, now),
    )


def _resources(snapshot: ApplicationLiveStateSnapshot) -> list[ResourceState]:
    """The resources of both generations in the form of the second."""
    placed = (*snapshot.kubernetes.resources, *snapshot.cloudrun.resources)
    functions: pb.LambdaApplicationLiveState = getattr(snapshot, "lambda")
    found = list(snapshot.application_live_state.resources)
    for each in placed:
        metadata = {"API Version": each.api_version, "Namespace": each.namespace}
        found.append(_as_second(each, metadata))
    found += (_as_second(each, {}) for each in (*snapshot.ecs.resources, *functions.resources))
    return found


def _as_second(resource: _First, metadata: Mapping[str, str]) -> ResourceState:
    return ResourceState(
        id=resource.id,
        parent_ids=resource.parent_ids,
        name=resource.name,
        resource_type=resource.kind,
        resource_metadata=metadata,
        # The states of health have the same numbers in all of them.
        health_status=ResourceState.HealthStatus.ValueType(resource.health_status),
        health_description=resource.health_description,
        created_at=resource.created_at,
        updated_at=resource.updated_at,
    )


def _in_order(resources: Sequence[ResourceState]) -> Iterator[tuple[ResourceState, int]]:
    """Each resource once, below its first parent; those in a circle come last."""
    by_key = {(each.deploy_target, each.id): each for each in resources}
    below: defaultdict[tuple[str, str], list[ResourceState]] = defaultdict(list)
    roots: list[ResourceState] = []
    for each in sorted(resources, key=_rank):
        parents = [(each.deploy_target, id_) for id_ in each.parent_ids]
        known = next((parent for parent in parents if parent in by_key), None)
        (roots if known is None else below[known]).append(each)
    told: set[tuple[str, str]] = set()
    waiting = [(each, 0) for each in reversed(roots)]
    rest = iter(sorted(resources, key=_rank))
    while True:
        while waiting:
            each, depth = waiting.pop()
            key = (each.deploy_target, each.id)
            if key not in told:
                told.add(key)
                yield each, depth
                waiting += [(child, depth + 1) for child in reversed(below[key])]
        left = next((e for e in rest if (e.deploy_target, e.id) not in told), None)
        if left is None:
            return
        waiting.append((left, 0))


def _rank(resource: ResourceState) -> tuple[str, str, str, str]:
    return resource.deploy_target, resource.resource_type, resource.name, resource.id


def _line(resource: ResourceState, depth: int, now: datetime) -> LiveResource:
    metadata = resource.resource_metadata
    namespace = metadata.get("Namespace", "")
    return LiveResource(
        id=f"{resource.deploy_target}/{resource.id}",
        name=resource.name,
        kind=metadata.get("Kind") or resource.resource_type,
        place=" · ".join(part for part in (namespace, resource.deploy_target) if part),
        mark=health_mark(resource.health_status),
        text=resource.health_description.strip(),
        facts=tuple((key, metadata[key]) for key in sorted(metadata) if key not in _SAID),
        depth=min(depth, _DEEPEST),
        created=moment(resource.created_at, now),
    )
