# SPDX-License-Identifier: Apache-2.0
"""View model of the live state of an application: a tree of resources, of v0 and v1 pipeds."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from pipecd.controlplane.console.formatting import Timestamp, plural, timestamp
from pipecd.controlplane.console.status_badge import Badge, health_badge
from pipecd.proto.model import livestate_pb2 as pb
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

_V0ResourceState: TypeAlias = (
    pb.KubernetesResourceState
    | pb.CloudRunResourceState
    | pb.ECSResourceState
    | pb.LambdaResourceState
)
MAX_RESOURCES = 200
# Deeper resources are indented as far as this.
_MAX_DEPTH = 6
# Metadata with columns of their own.
_COLUMNS = ("Kind", "Namespace")


@dataclass(frozen=True)
class ResourceRow:
    """One row of the tree; `depth` is its indentation."""

    id: str
    name: str
    kind: str
    location: str
    badge: Badge
    text: str
    metadata: tuple[tuple[str, str], ...]
    depth: int
    created: Timestamp | None


@dataclass(frozen=True)
class LiveStateView:
    """All live resources, and the health of the application."""

    badge: Badge
    summary: str
    resources: tuple[ResourceRow, ...]
    omitted: int
    updated: Timestamp | None


def live_state_view(snapshot: ApplicationLiveStateSnapshot, now: datetime) -> LiveStateView:
    """The view of a snapshot of any piped; resources of v0 take the form of v1."""
    resources = list(snapshot.application_live_state.resources)
    for each in (*snapshot.kubernetes.resources, *snapshot.cloudrun.resources):
        metadata = {"API Version": each.api_version, "Namespace": each.namespace}
        resources.append(_to_v1(each, metadata))
    functions: pb.LambdaApplicationLiveState = getattr(snapshot, "lambda")
    resources += (_to_v1(each, {}) for each in (*snapshot.ecs.resources, *functions.resources))
    rows = [_row(resource, depth, now) for resource, depth in _tree_order(resources)]
    return LiveStateView(
        # v0 calls OTHER what v1 calls UNHEALTHY.
        badge=health_badge(min(snapshot.health_status, ResourceState.UNHEALTHY)),
        summary=plural(len(rows), "resource"),
        resources=tuple(rows[:MAX_RESOURCES]),
        omitted=max(0, len(rows) - MAX_RESOURCES),
        updated=timestamp(snapshot.version.timestamp, now),
    )


def _to_v1(resource: _V0ResourceState, metadata: Mapping[str, str]) -> ResourceState:
    return ResourceState(
        id=resource.id,
        parent_ids=resource.parent_ids,
        name=resource.name,
        resource_type=resource.kind,
        resource_metadata=metadata,
        # The health statuses have the same numbers in all of them.
        health_status=ResourceState.HealthStatus.ValueType(resource.health_status),
        health_description=resource.health_description,
        created_at=resource.created_at,
        updated_at=resource.updated_at,
    )


def _tree_order(resources: Sequence[ResourceState]) -> Iterator[tuple[ResourceState, int]]:
    """Each resource once, below its first parent, with its depth; cycles come last."""
    by_key = {(each.deploy_target, each.id): each for each in resources}
    children: defaultdict[tuple[str, str], list[ResourceState]] = defaultdict(list)
    roots: list[ResourceState] = []
    for each in sorted(resources, key=_sort_key):
        parents = [(each.deploy_target, id_) for id_ in each.parent_ids]
        parent = next((parent for parent in parents if parent in by_key), None)
        (roots if parent is None else children[parent]).append(each)
    visited: set[tuple[str, str]] = set()
    pending = [(each, 0) for each in reversed(roots)]
    remaining = iter(sorted(resources, key=_sort_key))
    while True:
        while pending:
            each, depth = pending.pop()
            key = (each.deploy_target, each.id)
            if key not in visited:
                visited.add(key)
                yield each, depth
                pending += [(child, depth + 1) for child in reversed(children[key])]
        left = next((e for e in remaining if (e.deploy_target, e.id) not in visited), None)
        if left is None:
            return
        pending.append((left, 0))


def _sort_key(resource: ResourceState) -> tuple[str, str, str, str]:
    return resource.deploy_target, resource.resource_type, resource.name, resource.id


def _row(resource: ResourceState, depth: int, now: datetime) -> ResourceRow:
    metadata = resource.resource_metadata
    namespace = metadata.get("Namespace", "")
    return ResourceRow(
        id=f"{resource.deploy_target}/{resource.id}",
        name=resource.name,
        kind=metadata.get("Kind") or resource.resource_type,
        location=" · ".join(part for part in (namespace, resource.deploy_target) if part),
        badge=health_badge(resource.health_status),
        text=resource.health_description.strip(),
        metadata=tuple((key, metadata[key]) for key in sorted(metadata) if key not in _COLUMNS),
        depth=min(depth, _MAX_DEPTH),
        created=timestamp(resource.created_at, now),
    )
