# SPDX-License-Identifier: Apache-2.0
"""Reading live state snapshots of all platforms and both generations."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from pipecd.model.health import HealthStatus, only_progress
from pipecd.proto.model import livestate_pb2 as pb
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

_V0ResourceState: TypeAlias = (
    pb.KubernetesResourceState
    | pb.CloudRunResourceState
    | pb.ECSResourceState
    | pb.LambdaResourceState
)


def live_resources(snapshot: ApplicationLiveStateSnapshot) -> list[ResourceState]:
    """Returns the resources of a snapshot; those of v0 take the form of v1.

    A snapshot of v0 that has the common part, too, has the same resources with metadata there.
    """
    resources = list(snapshot.application_live_state.resources)
    if resources:
        return resources
    for each in (*snapshot.kubernetes.resources, *snapshot.cloudrun.resources):
        metadata = {"API Version": each.api_version, "Namespace": each.namespace}
        resources.append(_to_v1(each, metadata))
    functions: pb.LambdaApplicationLiveState = getattr(snapshot, "lambda")
    resources += (_to_v1(each, {}) for each in (*snapshot.ecs.resources, *functions.resources))
    return resources


def application_health(
    snapshot: ApplicationLiveStateSnapshot, resources: Sequence[ResourceState]
) -> HealthStatus:
    """Returns the health that a snapshot reports; `resources` are those of it.

    It is progressing if all that is wrong with its resources will go away by itself.
    """
    match snapshot.health_status:
        case ApplicationLiveStateSnapshot.HEALTHY:
            return HealthStatus.HEALTHY
        case ApplicationLiveStateSnapshot.OTHER | ApplicationLiveStateSnapshot.UNHEALTHY:
            # v0 calls OTHER what v1 calls UNHEALTHY.
            progresses = only_progress(resources)
            return HealthStatus.PROGRESSING if progresses else HealthStatus.UNHEALTHY
        case _:
            return HealthStatus.UNKNOWN


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
