# SPDX-License-Identifier: Apache-2.0
"""The live state of an application as the message that the control plane stores.

Upstream's console reads the part of the platform for a v0 application and the common part for a v1
application. The parts of ECS, Lambda and Cloud Run have no metadata, such as the traffic, and that
of Terraform has no resources, so their common part is filled for v0, too.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from pipecd.model.application import ApplicationKind
from pipecd.proto.model import livestate_pb2 as pb
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import ApplicationLiveStateSnapshot, ResourceState

# Metadata of the Kubernetes plugin, in both implementations.
_API_VERSION, _NAMESPACE = "API Version", "Namespace"
# What the types of resources begin with in v1 only, in both implementations.
_ECS_TYPE = "ECS:"
_UNKNOWN = "unknown"
_Snapshot = ApplicationLiveStateSnapshot
_Status: TypeAlias = "ApplicationLiveStateSnapshot.Status.ValueType"


def normalize_resources(
    resources: Iterable[ResourceState], before: Iterable[ResourceState], *, now: int
) -> tuple[ResourceState, ...]:
    """Resources as the control plane accepts them, sorted.

    A resource that equals the one `before` has the same `updated_at`, the time of its last change.
    """
    previous = {(each.deploy_target, each.id): each for each in before}
    normalized: list[ResourceState] = []
    for given in resources:
        if not given.id:
            continue
        resource = ResourceState()
        resource.CopyFrom(given)
        resource.name = given.name or given.id
        resource.created_at = given.created_at if given.created_at > 0 else now
        old = previous.get((resource.deploy_target, resource.id))
        resource.updated_at = old.updated_at if old is not None else now
        # If the platform has no creation time, the SDK sets both to the time of the read.
        has_age = given.created_at > 0 and given.created_at != given.updated_at
        if old is not None and not has_age:
            resource.created_at = old.created_at
        if old is not None and resource != old:
            resource.updated_at = now
        normalized.append(resource)
    normalized.sort(key=lambda each: (each.deploy_target, each.created_at, each.id))
    return tuple(normalized)


def create_snapshot(
    application: Application, resources: Sequence[ResourceState], *, now: int
) -> ApplicationLiveStateSnapshot:
    """The message; two snapshots of equal resources differ in their version only."""
    snapshot = ApplicationLiveStateSnapshot(
        application_id=application.id,
        piped_id=application.piped_id,
        project_id=application.project_id,
        kind=application.kind,
        health_status=_health(resources, _Snapshot.UNHEALTHY),
        version=pb.ApplicationLiveStateVersion(timestamp=now),
    )
    # Upstream's console distinguishes v0 applications in the same way.
    has_provider = bool(application.platform_provider or application.cloud_provider)
    if not has_provider or application.deploy_targets_by_plugin:
        snapshot.application_live_state.CopyFrom(pb.ApplicationLiveState(resources=resources))
        return snapshot
    snapshot.health_status = _health(resources, _Snapshot.OTHER)
    match application.kind:
        case ApplicationKind.KUBERNETES:
            snapshot.kubernetes.resources.extend(
                pb.KubernetesResourceState(**_common_fields(each), **_kubernetes_fields(each))
                for each in resources
            )
        case ApplicationKind.CLOUDRUN:
            snapshot.cloudrun.resources.extend(
                pb.CloudRunResourceState(**_common_fields(each), **_kubernetes_fields(each))
                for each in resources
            )
        case ApplicationKind.ECS:
            for each in resources:
                fields = _common_fields(each)
                fields["kind"] = fields["kind"].removeprefix(_ECS_TYPE)
                snapshot.ecs.resources.append(pb.ECSResourceState(**fields))
        case ApplicationKind.LAMBDA:
            part: pb.LambdaApplicationLiveState = getattr(snapshot, "lambda")
            part.resources.extend(pb.LambdaResourceState(**_common_fields(e)) for e in resources)
        case _:
            # Upstream has no resources of Terraform, and its console does not ask for any.
            snapshot.terraform.SetInParent()
    if application.kind != ApplicationKind.KUBERNETES:
        snapshot.application_live_state.resources.extend(resources)
    return snapshot


def _health(resources: Iterable[ResourceState], unhealthy: _Status) -> _Status:
    healths = {resource.health_status for resource in resources}
    if ResourceState.UNHEALTHY in healths:
        return unhealthy
    return _Snapshot.UNKNOWN if ResourceState.UNKNOWN in healths else _Snapshot.HEALTHY


def _common_fields(resource: ResourceState) -> dict[str, Any]:
    """The fields of every v0 platform; health statuses have the same numbers."""
    return {
        "id": resource.id,
        "owner_ids": resource.parent_ids,
        "parent_ids": resource.parent_ids,
        "name": resource.name,
        "kind": resource.resource_type or _UNKNOWN,
        "health_status": resource.health_status,
        "health_description": resource.health_description,
        "created_at": resource.created_at,
        "updated_at": resource.updated_at,
    }


def _kubernetes_fields(resource: ResourceState) -> dict[str, Any]:
    return {
        "api_version": resource.resource_metadata.get(_API_VERSION) or _UNKNOWN,
        "namespace": resource.resource_metadata.get(_NAMESPACE, ""),
    }
