# SPDX-License-Identifier: Apache-2.0
"""Live states for the tests of the console: deployments with pods on two targets, and a drift."""

from collections.abc import Iterator

from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveState,
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
    ResourceState,
)

DRIFT = """\
Diff between the defined state in Git at commit 7f3c91a and actual state in cluster:

--- Actual   (LiveState)
+++ Expected (Git)

# 1. name="web-1", kind="Deployment", namespace="shop", apiVersion="apps/v1"

  spec:
    #spec.replicas
-   replicas: 5
+   replicas: 2
"""


def resources(services: int, pods: int, *, broken: bool) -> Iterator[ResourceState]:
    """Deployments with pods; one pod of `web-1` crashes if `broken`."""
    for service in range(services):
        name, target = f"web-{service}", "tokyo" if service < services // 2 else "osaka"
        for id, kind, parents in (
            (name, "Deployment", ()),
            *((f"{name}-{pod}", "Pod", (name,)) for pod in range(pods)),
        ):
            is_bad = broken and id == "web-1-0"
            yield ResourceState(
                id=id,
                name=id,
                resource_type=kind,
                parent_ids=parents,
                deploy_target=target,
                resource_metadata={"Kind": kind, "Namespace": "shop"},
                health_status=ResourceState.UNHEALTHY if is_bad else ResourceState.HEALTHY,
                health_description="CrashLoopBackOff" if is_bad else "",
                created_at=1,
                updated_at=1,
            )


def snapshot(application: Application, *reported: ResourceState) -> ApplicationLiveStateSnapshot:
    is_bad = any(each.health_status == ResourceState.UNHEALTHY for each in reported)
    return ApplicationLiveStateSnapshot(
        application_id=application.id,
        kind=application.kind,
        health_status=ApplicationLiveStateSnapshot.UNHEALTHY
        if is_bad
        else ApplicationLiveStateSnapshot.HEALTHY,
        application_live_state=ApplicationLiveState(resources=reported),
        version=ApplicationLiveStateVersion(timestamp=1),
    )
