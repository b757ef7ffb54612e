# SPDX-License-Identifier: Apache-2.0
"""The health of objects by their status."""

from typing import Any

import pytest

from pipecd.plugins.kubernetes.health import health
from pipecd.sdk import Health

OK, BAD, UNKNOWN = Health.HEALTHY, Health.UNHEALTHY, Health.UNKNOWN


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


READY = {"updatedReplicas": 2, "replicas": 2, "availableReplicas": 2, "readyReplicas": 2}
ISSUER = "cert-manager.io/v1"


@pytest.mark.parametrize(
    ("body", "expected", "why"),
    [
        (workload("Deployment", **READY), OK, ""),
        (workload("Deployment", **READY, spec={"paused": True}), BAD, "paused"),
        (workload("Deployment", **READY | {"observedGeneration": 1}), BAD, "not seen"),
        (
            workload("Deployment", **READY | {"updatedReplicas": 1}),
            BAD,
            "1 of 2 replicas are updated",
        ),
        (workload("Deployment", **READY | {"replicas": 3}), BAD, "1 old replicas"),
        (workload("Deployment", **READY | {"availableReplicas": 1}), BAD, "1 of 2 replicas are av"),
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
            BAD,
            "new revision",
        ),
        (workload("StatefulSet", readyReplicas=1), BAD, "1 of 2 replicas are ready"),
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
        (workload("DaemonSet", desiredNumberScheduled=2), BAD, "0 of 2 nodes have an updated pod"),
        (workload("ReplicaSet", **READY), OK, ""),
        (workload("ReplicaSet", **READY | {"availableReplicas": 0}), BAD, "0 of 2"),
        (thing("Pod", status={"phase": "Running"}), OK, ""),
        (thing("Pod", status={"phase": "Pending"}), BAD, "Pending"),
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
        (thing("Job", "batch/v1", status={"active": 1}), OK, ""),
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
        (thing("Service", spec={"type": "LoadBalancer"}), BAD, "no address"),
        (thing("Ingress", "networking.k8s.io/v1"), BAD, "no address"),
        (thing("PersistentVolumeClaim", status={"phase": "Bound"}), OK, ""),
        (thing("PersistentVolumeClaim", status={"phase": "Lost"}), BAD, "Lost"),
        (thing("Namespace", status={"phase": "Active"}), OK, ""),
        (thing("Namespace", status={"phase": "Terminating"}), BAD, "Terminating"),
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
            thing(
                "PodDisruptionBudget",
                "policy/v1",
                status={"currentHealthy": 1, "desiredHealthy": 2},
            ),
            BAD,
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
        (thing("Issuer", ISSUER, status={"observedGeneration": 1}), BAD, "not seen"),
        (thing("Issuer", ISSUER), UNKNOWN, "no condition"),
        ({**thing("ConfigMap"), "metadata": {"deletionTimestamp": "now"}}, BAD, "being deleted"),
        (
            thing(
                "Pod",
                status={
                    "phase": "Pending",
                    "conditions": [condition("PodScheduled", "False", message="0/1 nodes fit")],
                },
            ),
            BAD,
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
        (thing("HTTPRoute", "gateway.networking.k8s.io/v1"), BAD, "no Gateway has accepted it"),
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
)
def test_an_object_is(body: dict[str, Any], expected: Health, why: str) -> None:
    status = health(body)
    assert status.status == expected, status.message
    assert why in status.message
