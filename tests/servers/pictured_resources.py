# SPDX-License-Identifier: Apache-2.0
"""The live resources of an application of the pictures, and how they differ from Git."""

from collections.abc import Iterator, Sequence

from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveState,
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
    ResourceState,
)

CRASHED_POD = "checkout-7d9c5b6f4-x2x7k"
DRIFT = """\
tokyo: Diff between the defined state in Git at commit 7f3c91a and actual state in cluster:

--- Actual   (LiveState)
+++ Expected (Git)

# 1. name="checkout", kind="Deployment", namespace="shop", apiVersion="apps/v1"

  spec:
    #spec.replicas
-   replicas: 5
+   replicas: 3

    template:
      spec:
        containers:
          - name: checkout
            resources:
              limits:
                #spec.template.spec.containers.0.resources.limits.memory
-               memory: 1Gi
+               memory: 512Mi

"""


def shop_resources(
    application: Application,
    targets: Sequence[str],
    *,
    created_at: int,
    reported_at: int,
    is_broken: bool,
) -> ApplicationLiveStateSnapshot:
    """What an application has on its clusters; the first pod crashes if it is broken."""
    resources = [
        resource
        for target in targets
        for resource in _of_target(application.name, target, created_at, is_broken)
    ]
    return ApplicationLiveStateSnapshot(
        application_id=application.id,
        kind=application.kind,
        health_status=ApplicationLiveStateSnapshot.UNHEALTHY
        if is_broken
        else ApplicationLiveStateSnapshot.HEALTHY,
        application_live_state=ApplicationLiveState(resources=resources),
        version=ApplicationLiveStateVersion(timestamp=reported_at),
    )


def _of_target(name: str, target: str, created_at: int, is_broken: bool) -> Iterator[ResourceState]:
    replicas, old = f"{name}-7d9c5b6f4", f"{name}-5f6d8c7b9"
    pods = [f"{replicas}-{end}" for end in ("x2x7k", "b9qlm", "t4wzp")]
    rows = (
        (name, "Deployment", "apps/v1", "", 200),
        (replicas, "ReplicaSet", "apps/v1", name, 1),
        (old, "ReplicaSet", "apps/v1", name, 3),
        *((pod, "Pod", "v1", replicas, 1) for pod in pods),
        (name, "Service", "v1", "", 200),
        (f"{name}-x7k2p", "EndpointSlice", "discovery.k8s.io/v1", f"Service/{name}", 200),
        (name, "Ingress", "networking.k8s.io/v1", "", 180),
        (f"{name}-config", "ConfigMap", "v1", "", 40),
        (name, "HorizontalPodAutoscaler", "autoscaling/v2", "", 90),
    )
    for id, kind, version, parent, hours in rows:
        is_first = id == name and kind == "Deployment"
        is_bad = is_broken and target == "tokyo" and (id == pods[0] or is_first)
        reason = (
            ""
            if not is_bad
            else (
                "2 of 3 replicas are available" if is_first else "CrashLoopBackOff: back-off 2m40s"
            )
        )
        own = f"{kind}/{id}" if id == name and not is_first else id
        yield ResourceState(
            id=f"{own}",
            name=id,
            resource_type=kind,
            parent_ids=[parent] if parent else [],
            deploy_target=target,
            resource_metadata={"Kind": kind, "Namespace": "shop", "API Version": version},
            health_status=ResourceState.UNHEALTHY if is_bad else ResourceState.HEALTHY,
            health_description=reason,
            created_at=created_at - (hours - 1) * 3600,
            updated_at=created_at,
        )
