# SPDX-License-Identifier: Apache-2.0
"""What runs for an application as the message that the control plane keeps.

Consoles read the part of the platform for an application of the first generation, and the part for
all platforms for one of the second, so one of the two is filled.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from pipecd.model.application import ApplicationKind
from pipecd.proto.model import livestate_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

# What the plugin for Kubernetes tells of an object beside its kind, in both implementations.
_API_VERSION, _NAMESPACE = "API Version", "Namespace"
_NOT_TOLD = "unknown"
_Snapshot = ApplicationLiveStateSnapshot
_Status: TypeAlias = "ApplicationLiveStateSnapshot.Status.ValueType"


def tidied(
    resources: Iterable[ResourceState], before: Iterable[ResourceState], *, now: int
) -> tuple[ResourceState, ...]:
    """Resources as the control plane accepts them, in one order.

    One that is as it was `before` keeps its time, so that the time says when it last changed.
    """
    known = {(each.deploy_target, each.id): each for each in before}
    found: list[ResourceState] = []
    for given in resources:
        if not given.id:
            continue
        resource = ResourceState()
        resource.CopyFrom(given)
        resource.name = given.name or given.id
        resource.created_at = given.created_at if given.created_at > 0 else now
        old = known.get((resource.deploy_target, resource.id))
        resource.updated_at = old.updated_at if old is not None else now
        # Where the platform does not tell an age, the SDK gives the time of the look for both.
        has_age = given.created_at > 0 and given.created_at != given.updated_at
        if old is not None and not has_age:
            resource.created_at = old.created_at
        if old is not None and resource != old:
            resource.updated_at = now
        found.append(resource)
    found.sort(key=lambda each: (each.deploy_target, each.created_at, each.id))
    return tuple(found)


def snapshot_of(
    application: Application, resources: Sequence[ResourceState], *, now: int
) -> ApplicationLiveStateSnapshot:
    """The whole message; two of the same resources differ in their version only."""
    snapshot = ApplicationLiveStateSnapshot(
        application_id=application.id,
        piped_id=application.piped_id,
        project_id=application.project_id,
        kind=application.kind,
        health_status=_health(resources, _Snapshot.UNHEALTHY),
        version=pb.ApplicationLiveStateVersion(timestamp=now),
    )
    if not _is_first_generation(application):
        snapshot.application_live_state.CopyFrom(pb.ApplicationLiveState(resources=resources))
        return snapshot
    snapshot.health_status = _health(resources, _Snapshot.OTHER)
    match application.kind:
        case ApplicationKind.KUBERNETES:
            snapshot.kubernetes.resources.extend(
                pb.KubernetesResourceState(**_plain(each), **_place(each)) for each in resources
            )
        case ApplicationKind.CLOUDRUN:
            snapshot.cloudrun.resources.extend(
                pb.CloudRunResourceState(**_plain(each), **_place(each)) for each in resources
            )
        case ApplicationKind.ECS:
            snapshot.ecs.resources.extend(pb.ECSResourceState(**_plain(e)) for e in resources)
        case ApplicationKind.LAMBDA:
            part: pb.LambdaApplicationLiveState = getattr(snapshot, "lambda")
            part.resources.extend(pb.LambdaResourceState(**_plain(e)) for e in resources)
        case _:
            # Terraform has no resources to tell of.
            snapshot.terraform.SetInParent()
    return snapshot


def _is_first_generation(application: Application) -> bool:
    """As upstream's console tells them apart."""
    has_provider = bool(application.platform_provider or application.cloud_provider)
    return has_provider and not application.deploy_targets_by_plugin


def _health(resources: Iterable[ResourceState], ill: _Status) -> _Status:
    healths = {resource.health_status for resource in resources}
    if ResourceState.UNHEALTHY in healths:
        return ill
    return _Snapshot.UNKNOWN if ResourceState.UNKNOWN in healths else _Snapshot.HEALTHY


def _plain(resource: ResourceState) -> dict[str, Any]:
    """What every platform of the first generation tells; states of health have the same numbers."""
    return {
        "id": resource.id,
        "owner_ids": resource.parent_ids,
        "parent_ids": resource.parent_ids,
        "name": resource.name,
        "kind": resource.resource_type or _NOT_TOLD,
        "health_status": resource.health_status,
        "health_description": resource.health_description,
        "created_at": resource.created_at,
        "updated_at": resource.updated_at,
    }


def _place(resource: ResourceState) -> dict[str, Any]:
    return {
        "api_version": resource.resource_metadata.get(_API_VERSION) or _NOT_TOLD,
        "namespace": resource.resource_metadata.get(_NAMESPACE, ""),
    }
