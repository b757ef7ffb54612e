# SPDX-License-Identifier: Apache-2.0
"""The health of objects by their status."""

from typing import Any

import pytest

from pipecd.plugins.kubernetes.health import health
from pipecd.sdk import Health

OK, BAD, UNKNOWN = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN
NOT_YET = Health.PROGRESSING


def thing(kind: str, version: str = "v1", **fields: Any) -> dict[str, Any]:
    """Returns an object of generation 2."""
    return {"apiVersion": version, "kind": kind, "metadata": {"generation": 2}, **fields}


def workload(kind: str, *, desired: int | None = 2, spec: Any = None, **status: Any) -> Any:
    """Returns a workload whose last change was observed."""
    declared = {**({} if desired is None else {"replicas": desired}), **(spec or {})}
    return thing(kind, "apps/v1", spec=declared, status={"observedGeneration": 2, **status})


def condition(kind: str, status: str, **more: str) -> dict[str, str]:
    """Returns a condition."""
    return {"type": kind, "status": status, **more}


def row_id(value: Any) -> str:
    """Returns the part of a row in its name: the kind, the health, and why."""
    if isinstance(value, dict):
        return str(value["kind"])
    return value.name if isinstance(value, Health) else value or "without a reason"


READY = {"updatedReplicas": 2, "replicas": 2, "availableReplicas": 2, "readyReplicas": 2}
CONDITIONS = "autoscaling.alpha.kubernetes.io/conditions"
ISSUER = "cert-manager.io/v1"


@pytest.mark.parametrize(
    ("body", "expected", "why"),
    [
        (workload("Deployment", **READY), OK, ""),
        (workload("Deployment", **READY, spec={"paused": True}), OK, "paused"),
        (
            workload("Deployment", **READY | {"updatedReplicas": 0}, spec={"paused": True}),
            OK,
            "paused",
        ),
        (
            workload("Deployment", **READY | {"availableReplicas": 1}, spec={"paused": True}),
            NOT_YET,
            "paused; 1 of 2 replicas are available",
        ),
        (
            workload(
                "Deployment",
                updatedReplicas=0,
                conditions=[condition("ReplicaFailure", "True", message="exceeded quota")],
            ),
            BAD,
            "exceeded quota",
        ),
        (workload("Deployment", **READY | {"observedGeneration": 1}), NOT_YET, "not seen"),
        (
            workload("Deployment", **READY | {"updatedReplicas": 1}),
            NOT_YET,
            "1 of 2 replicas are updated",
        ),
        (
            workload("Deployment", **READY | {"replicas": 3}),
            NOT_YET,
            "1 old replica is still to be",
        ),
        (
            workload("Deployment", **READY | {"availableReplicas": 1}),
            NOT_YET,
            "1 of 2 replicas are av",
        ),
        (
            workload(
                "Deployment",
                **READY,
                conditions=[
                    condition(
                        "Progressing", "False", reason="ProgressDeadlineExceeded", message="late"
                    )
                ],
            ),
            BAD,
            "late",
        ),
        (workload("Deployment", desired=None, **dict.fromkeys(READY, 1)), OK, ""),
        (workload("StatefulSet", **READY, updateRevision="a", currentRevision="a"), OK, ""),
        (
            workload("StatefulSet", **READY, updateRevision="b", currentRevision="a"),
            NOT_YET,
            "new revision",
        ),
        (workload("StatefulSet", readyReplicas=1), NOT_YET, "1 of 2 replicas are ready"),
        (
            workload(
                "StatefulSet",
                **READY | {"updatedReplicas": 1},
                updateRevision="b",
                currentRevision="a",
                spec={"updateStrategy": {"rollingUpdate": {"partition": 1}}},
            ),
            OK,
            "",
        ),
        (
            workload(
                "DaemonSet",
                desiredNumberScheduled=2,
                updatedNumberScheduled=2,
                numberAvailable=2,
            ),
            OK,
            "",
        ),
        (
            workload(
                "StatefulSet",
                **READY | {"updatedReplicas": 1},
                updateRevision="b",
                currentRevision="a",
                spec={"updateStrategy": {"type": "OnDelete"}},
            ),
            OK,
            "1 pod is old until it is deleted",
        ),
        (
            workload(
                "StatefulSet",
                readyReplicas=1,
                spec={"updateStrategy": {"type": "OnDelete"}},
            ),
            NOT_YET,
            "1 of 2 replicas are ready",
        ),
        (
            workload(
                "DaemonSet",
                desiredNumberScheduled=2,
                numberAvailable=2,
                spec={"updateStrategy": {"type": "OnDelete"}},
            ),
            OK,
            "2 pods are old until they are deleted",
        ),
        (
            workload(
                "DaemonSet",
                desiredNumberScheduled=2,
                numberAvailable=1,
                spec={"updateStrategy": {"type": "OnDelete"}},
            ),
            NOT_YET,
            "1 of 2 nodes have an available pod",
        ),
        (
            workload("DaemonSet", desiredNumberScheduled=2),
            NOT_YET,
            "0 of 2 nodes have an updated pod",
        ),
        (workload("ReplicaSet", **READY), OK, ""),
        (workload("ReplicaSet", **READY | {"availableReplicas": 0}), NOT_YET, "0 of 2"),
        (thing("Pod", status={"phase": "Running"}), OK, ""),
        (thing("Pod", status={"phase": "Pending"}), NOT_YET, "Pending"),
        (
            thing(
                "Pod",
                status={
                    "phase": "Running",
                    "containerStatuses": [
                        {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "again"}}}
                    ],
                },
            ),
            BAD,
            "again",
        ),
        (
            thing(
                "Pod",
                status={
                    "phase": "Running",
                    "conditions": [condition("Ready", "False", message="unready: [web]")],
                },
            ),
            NOT_YET,
            "unready: [web]",
        ),
        (
            thing(
                "Pod",
                status={
                    "phase": "Running",
                    "containerStatuses": [
                        {"name": "web", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
                    ],
                },
            ),
            BAD,
            "container web exited with code 1: Error",
        ),
        (
            thing(
                "Pod",
                status={
                    "phase": "Running",
                    "containerStatuses": [{"state": {"terminated": {"exitCode": 0}}}],
                },
            ),
            OK,
            "",
        ),
        (thing("Job", "batch/v1", status={"active": 1}), OK, ""),
        (thing("Job", "batch/v1", spec={"suspend": True}), OK, "suspended"),
        (thing("CronJob", "batch/v1", spec={"suspend": True}), OK, "suspended"),
        (
            thing(
                "Job",
                "batch/v1",
                status={"conditions": [condition("Failed", "True", message="bad")]},
            ),
            BAD,
            "bad",
        ),
        (thing("Service", spec={"type": "ClusterIP"}), OK, ""),
        (thing("Service", spec={"type": "LoadBalancer"}), NOT_YET, "no address"),
        (thing("Ingress", "networking.k8s.io/v1"), NOT_YET, "no address"),
        (thing("PersistentVolumeClaim", status={"phase": "Bound"}), OK, ""),
        (thing("PersistentVolumeClaim", status={"phase": "Lost"}), BAD, "Lost"),
        (thing("Namespace", status={"phase": "Active"}), OK, ""),
        (thing("Namespace", status={"phase": "Terminating"}), NOT_YET, "Terminating"),
        (
            thing(
                "HorizontalPodAutoscaler",
                "autoscaling/v2",
                status={"conditions": [condition("ScalingActive", "False", message="no metrics")]},
            ),
            BAD,
            "no metrics",
        ),
        (
            {
                **thing("HorizontalPodAutoscaler", "autoscaling/v1"),
                "metadata": {
                    "annotations": {
                        CONDITIONS: '[{"type": "AbleToScale", "status": "False", "message": "no target"}]'
                    }
                },
            },
            BAD,
            "no target",
        ),
        (
            {
                **thing("HorizontalPodAutoscaler", "autoscaling/v1"),
                "metadata": {"annotations": {CONDITIONS: "{"}},
            },
            OK,
            "",
        ),
        (
            thing(
                "PodDisruptionBudget",
                "policy/v1",
                status={"currentHealthy": 1, "desiredHealthy": 2},
            ),
            NOT_YET,
            "1 of 2",
        ),
        (
            thing(
                "CustomResourceDefinition",
                "apiextensions.k8s.io/v1",
                status={"conditions": [condition("Established", "True")]},
            ),
            OK,
            "",
        ),
        (thing("ConfigMap"), OK, ""),
        (thing("Issuer", ISSUER, status={"conditions": [condition("Ready", "True")]}), OK, ""),
        (
            thing(
                "Issuer", ISSUER, status={"conditions": [condition("Ready", "False", reason="No")]}
            ),
            BAD,
            "No",
        ),
        (
            thing("Issuer", ISSUER, status={"conditions": [condition("Ready", "Unknown")]}),
            UNKNOWN,
            "Ready",
        ),
        (thing("Issuer", ISSUER, status={"observedGeneration": 1}), NOT_YET, "not seen"),
        (thing("Issuer", ISSUER), UNKNOWN, "no condition"),
        (
            {**thing("ConfigMap"), "metadata": {"deletionTimestamp": "now"}},
            NOT_YET,
            "being deleted",
        ),
        (
            thing(
                "Pod",
                status={
                    "phase": "Pending",
                    "conditions": [condition("PodScheduled", "False", message="0/1 nodes fit")],
                },
            ),
            NOT_YET,
            "0/1 nodes fit",
        ),
        (thing("Lease", "coordination.k8s.io/v1"), OK, ""),
        (thing("ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1"), OK, ""),
        (thing("VirtualService", "networking.istio.io/v1"), OK, ""),
        (
            thing(
                "VirtualService",
                "networking.istio.io/v1",
                status={"conditions": [condition("Ready", "False", message="no such host")]},
            ),
            BAD,
            "no such host",
        ),
        (thing("HTTPRoute", "gateway.networking.k8s.io/v1"), NOT_YET, "no Gateway has accepted it"),
        (
            thing(
                "HTTPRoute",
                "gateway.networking.k8s.io/v1",
                status={"parents": [{"conditions": [condition("Accepted", "True")]}]},
            ),
            OK,
            "",
        ),
        (
            thing(
                "HTTPRoute",
                "gateway.networking.k8s.io/v1",
                status={
                    "parents": [
                        {"conditions": [condition("Accepted", "True")]},
                        {"conditions": [condition("ResolvedRefs", "False", reason="NoService")]},
                    ]
                },
            ),
            BAD,
            "NoService",
        ),
    ],
    ids=row_id,
)
def test_an_object_is(body: dict[str, Any], expected: Health, why: str) -> None:
    status = health(body)
    assert status.status == expected, status.message
    assert why in status.message
