# SPDX-License-Identifier: Apache-2.0
"""What a plugin saw, as the messages of upstream's plugin API."""

from collections.abc import Sequence

from pipecd.model.clock import to_unix
from pipecd.proto.model import application_pb2, livestate_pb2
from pipecd.proto.plugin.livestate_pb2 import GetLivestateResponse
from pipecd.proto.plugin.planpreview_pb2 import GetPlanPreviewResponse, PlanPreviewResult
from pipecd.sdk.look import Health, LiveState, Preview, Resource

_Whole = livestate_pb2.ApplicationLiveState


def live_state_message(state: LiveState, *, plugin: str, now: int) -> GetLivestateResponse:
    """What runs, with the facts that no author should have to repeat."""
    resources = [_resource(resource, plugin, now) for resource in state.resources]
    return GetLivestateResponse(
        application_live_state=_Whole(resources=resources, health_status=_health(state.resources)),
        sync_state=application_pb2.ApplicationSyncState(
            status=application_pb2.ApplicationSyncStatus.ValueType(state.sync.status),
            short_reason=state.sync.summary,
            reason=state.sync.details,
            timestamp=now,
        ),
    )


def previews_message(previews: Sequence[Preview]) -> GetPlanPreviewResponse:
    """What would happen, target by target."""
    return GetPlanPreviewResponse(
        results=[
            PlanPreviewResult(
                deploy_target=preview.target,
                summary=preview.summary,
                no_change=preview.no_change,
                details=preview.details.encode(),
                diff_language=preview.language,
            )
            for preview in previews
        ]
    )


def _resource(resource: Resource, plugin: str, now: int) -> livestate_pb2.ResourceState:
    return livestate_pb2.ResourceState(
        id=resource.id,
        parent_ids=resource.parents,
        name=resource.name,
        resource_type=resource.kind,
        resource_metadata=resource.metadata,
        health_status=livestate_pb2.ResourceState.HealthStatus.ValueType(resource.health),
        health_description=resource.health_text,
        deploy_target=resource.target,
        plugin_name=plugin,
        created_at=now if resource.created_at is None else to_unix(resource.created_at),
        updated_at=now,
    )


def _health(resources: Sequence[Resource]) -> livestate_pb2.ApplicationLiveState.Status.ValueType:
    """Upstream's order: not knowing comes before being ill."""
    healths = {resource.health for resource in resources}
    if Health.UNKNOWN in healths:
        return _Whole.UNKNOWN
    return _Whole.OTHER if Health.UNHEALTHY in healths else _Whole.HEALTHY
