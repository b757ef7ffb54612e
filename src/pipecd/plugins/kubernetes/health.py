# SPDX-License-Identifier: Apache-2.0
"""The health of objects, read from their status: built-in kinds by rules, others by conditions."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipecd.plugins.kubernetes.manifest import ResourceKey
from pipecd.sdk import Health
from pipecd.sdk.counts import counted
from pipecd.sdk.unstructured import at, condition_of, list_at, map_at, text_at


@dataclass(frozen=True)
class HealthStatus:
    """The health of an object; the message says what is missing.

    A terminal status does not change any more.
    """

    status: Health
    message: str = ""
    is_terminal: bool = False


HEALTHY = HealthStatus(Health.HEALTHY)


def healthy(message: str) -> HealthStatus:
    """Returns the status of an object that works, and something to know about it."""
    return HealthStatus(Health.HEALTHY, message)


def progressing(message: str) -> HealthStatus:
    """Returns the status of an object that does not work yet."""
    return HealthStatus(Health.PROGRESSING, message)


def unhealthy(message: str) -> HealthStatus:
    """Returns the status of an object that does not work."""
    return HealthStatus(Health.UNHEALTHY, message)


def failed(message: str) -> HealthStatus:
    """Returns the status of an object that failed and will not recover."""
    return HealthStatus(Health.UNHEALTHY, message, is_terminal=True)


def unknown(message: str = "") -> HealthStatus:
    """Returns the status of an object whose health cannot be read."""
    return HealthStatus(Health.UNKNOWN, message)


_AUTOSCALER_CONDITIONS = "autoscaling.alpha.kubernetes.io/conditions"
_NOT_OBSERVED = progressing("the controller has not seen the last change yet")


def deployment(body: Any) -> HealthStatus:
    """A Deployment is healthy when all pods have the new template and are available.

    While it is paused, pods keep their template by intention.
    """
    if _is_behind_spec(body, before_first=False):
        return _NOT_OBSERVED
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "reason") == "ProgressDeadlineExceeded":
            return unhealthy(text_at(condition, "message") or "it made no progress in time")
    if failure := _replica_failure(body):
        return failure
    desired = _desired(body)
    updated, total, available = _counts(body, "updatedReplicas", "replicas", "availableReplicas")
    if at(body, "spec", "paused"):
        message = f"paused; {available} of {desired} replicas are available"
        return progressing(message) if available < desired else healthy("paused")
    if updated < desired:
        message = f"{updated} of {desired} replicas are updated"
    elif updated < total:
        old = total - updated
        message = f"{old} old replica{' is' if old == 1 else 's are'} still to be terminated"
    elif available < total:
        message = f"{available} of {total} replicas are available"
    else:
        return HEALTHY
    return progressing(message)


def stateful_set(body: Any) -> HealthStatus:
    """A StatefulSet is healthy when its pods are ready and have the desired revision.

    With `OnDelete` pods keep their revision until somebody deletes them.
    """
    if _is_behind_spec(body):
        return _NOT_OBSERVED
    desired = _desired(body)
    ready, updated = _counts(body, "readyReplicas", "updatedReplicas")
    if ready != desired:
        return progressing(f"{ready} of {desired} replicas are ready")
    if _updates_on_delete(body):
        return HEALTHY if updated >= desired else healthy(_on_delete(desired - updated))
    partition = at(body, "spec", "updateStrategy", "rollingUpdate", "partition")
    if isinstance(partition, int) and partition > 0:
        required = desired - partition
        return (
            HEALTHY
            if updated >= required
            else progressing(f"{updated} of {required} replicas are updated")
        )
    status = map_at(body, "status")
    if status.get("updateRevision") != status.get("currentRevision"):
        return progressing(f"{updated} of {desired} replicas are of the new revision")
    return HEALTHY


def daemon_set(body: Any) -> HealthStatus:
    """A DaemonSet is healthy when every node that needs one has a new, available pod.

    With `OnDelete` pods stay as they are until somebody deletes them.
    """
    if _is_behind_spec(body):
        return _NOT_OBSERVED
    desired, updated, available = _counts(
        body, "desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"
    )
    (misplaced,) = _counts(body, "numberMisscheduled")
    if updated < desired and not _updates_on_delete(body):
        return progressing(f"{updated} of {desired} nodes have an updated pod")
    if available < desired:
        return progressing(f"{available} of {desired} nodes have an available pod")
    if misplaced > 0:
        nodes = counted(misplaced, "node runs a pod that it", "nodes run a pod that they")
        return unhealthy(f"{nodes} should not")
    return HEALTHY if updated >= desired else healthy(_on_delete(desired - updated))


def replica_set(body: Any) -> HealthStatus:
    """A ReplicaSet is healthy when all of its pods are available."""
    if _is_behind_spec(body):
        return _NOT_OBSERVED
    if failure := _replica_failure(body):
        return failure
    desired = _desired(body)
    available, ready = _counts(body, "availableReplicas", "readyReplicas")
    if available < desired:
        return progressing(f"{available} of {desired} replicas are available")
    if ready != desired:
        return progressing(f"{ready} of {desired} replicas are ready")
    return HEALTHY


def pod(body: Any) -> HealthStatus:
    """A Pod is healthy when it succeeded, or when it is ready and no container is in error."""
    containers = [
        container
        for field in ("initContainerStatuses", "containerStatuses")
        for container in list_at(body, "status", field)
    ]
    waiting = [
        text_at(state, "message") or text_at(state, "reason")
        for state in (map_at(container, "state", "waiting") for container in containers)
        if text_at(state, "reason").startswith("Err")
        or text_at(state, "reason").endswith(("Error", "BackOff"))
    ]
    if waiting:
        return unhealthy(", ".join(waiting))
    phase = text_at(body, "status", "phase")
    message = text_at(body, "status", "message")
    exits = [_failed_exit(container) for container in containers]
    failure = next((text for text in exits if text), "")
    if phase == "Failed":
        return failed(message or failure or phase)
    if failure and phase != "Succeeded":
        return unhealthy(failure)
    return _waiting_pod(body, phase, message)


def _waiting_pod(body: Any, phase: str, message: str) -> HealthStatus:
    """Returns the status of a Pod none of whose containers is in error."""
    ready, scheduled = condition_of(body, "Ready"), condition_of(body, "PodScheduled")
    match phase:
        case "Succeeded":
            return HEALTHY
        case "Running" if text_at(ready, "status") != "False":
            return HEALTHY
        case "Running":
            reason = text_at(ready, "message") or text_at(ready, "reason")
            return progressing(reason or "not ready")
        case "Unknown":
            return unhealthy(message or "its node does not answer")
        case _:
            if not message and text_at(scheduled, "status") == "False":
                message = text_at(scheduled, "message")
            return progressing(message or phase or "Pending")


def _failed_exit(container: Any) -> str:
    """Returns how a container ended with an error; empty if it did not."""
    end = map_at(container, "state", "terminated")
    code = end.get("exitCode")
    if not code:
        return ""
    reason = text_at(end, "message") or text_at(end, "reason") or "it failed"
    return f"container {text_at(container, 'name')} exited with code {code}: {reason}"


def job(body: Any) -> HealthStatus:
    """A Job is healthy while it has not failed."""
    failure = condition_of(body, "Failed")
    if text_at(failure, "status") == "True":
        return failed(text_at(failure, "message") or "failed")
    return _unless_suspended(body)


def cron_job(body: Any) -> HealthStatus:
    """A CronJob is healthy; its Jobs have a health of their own."""
    return _unless_suspended(body)


def _unless_suspended(body: Any) -> HealthStatus:
    return healthy("suspended") if at(body, "spec", "suspend") else HEALTHY


def _updates_on_delete(body: Any) -> bool:
    return text_at(body, "spec", "updateStrategy", "type") == "OnDelete"


def _on_delete(old: int) -> str:
    pods = counted(old, "pod is old until it is", "pods are old until they are")
    return f"{pods} deleted (OnDelete)"


def _replica_failure(body: Any) -> HealthStatus | None:
    """Returns the status of an object whose pods cannot be created, for example for a quota."""
    failure = condition_of(body, "ReplicaFailure")
    return unhealthy(text_at(failure, "message")) if text_at(failure, "status") == "True" else None


def _is_behind_spec(body: Any, *, before_first: bool = True) -> bool:
    observed = at(body, "status", "observedGeneration") or 0
    if before_first and not observed:
        return True
    return (at(body, "metadata", "generation") or 0) > observed


def _desired(body: Any) -> int:
    replicas = at(body, "spec", "replicas")
    return replicas if isinstance(replicas, int) else 1


def _counts(body: Any, *names: str) -> tuple[int, ...]:
    return tuple(at(body, "status", name) or 0 for name in names)


HealthCheck = Callable[[Any], HealthStatus]


def health(body: Mapping[str, Any]) -> HealthStatus:
    """Returns the health of an object; kinds without a rule are judged by their conditions."""
    if at(body, "metadata", "deletionTimestamp"):
        return progressing("being deleted")
    key = ResourceKey(text_at(body, "apiVersion"), text_at(body, "kind"), "", "")
    check = _CHECK_BY_KIND.get((key.group, key.kind))
    if check:
        return check(body)
    return health_from_conditions(body) or unknown(
        "it has no condition that says whether it is healthy"
    )


def is_custom_resource(key: ResourceKey) -> bool:
    """Reports whether a kind is a custom resource that has no health rule here."""
    return "." in key.group and (key.group, key.kind) not in _CHECK_BY_KIND


def _applied(_body: Any) -> HealthStatus:
    return HEALTHY


def _service(body: Any) -> HealthStatus:
    if text_at(body, "spec", "type") != "LoadBalancer":
        return HEALTHY
    if list_at(body, "status", "loadBalancer", "ingress"):
        return HEALTHY
    return progressing("the load balancer has no address yet")


def _ingress(body: Any) -> HealthStatus:
    if list_at(body, "status", "loadBalancer", "ingress"):
        return HEALTHY
    return progressing("no address yet: no ingress controller has reconciled it")


def _namespace(body: Any) -> HealthStatus:
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "status") == "True":
            return unhealthy(text_at(condition, "message"))
    return _phase(body, good=("Active",))


def _phase(body: Any, *, good: tuple[str, ...]) -> HealthStatus:
    phase = text_at(body, "status", "phase")
    if phase in good:
        return HEALTHY
    message = text_at(body, "status", "message")
    text = f"{phase or 'no phase yet'}{f': {message}' if message else ''}"
    return progressing(text) if phase in ("", "Pending", "Terminating") else unhealthy(text)


def _autoscaler(body: Any) -> HealthStatus:
    """An autoscaler is unhealthy if it cannot read its metrics or scale its target."""
    conditions = list_at(body, "status", "conditions")
    for condition in conditions or _annotated_conditions(body):
        is_relevant = text_at(condition, "type") in ("AbleToScale", "ScalingActive")
        is_disabled = text_at(condition, "reason") == "ScalingDisabled"
        if is_relevant and not is_disabled and text_at(condition, "status") == "False":
            return unhealthy(text_at(condition, "message"))
    return HEALTHY


def _annotated_conditions(body: Any) -> Sequence[Any]:
    """Returns the conditions of an autoscaler of v1, whose status has none."""
    annotation = text_at(body, "metadata", "annotations", _AUTOSCALER_CONDITIONS)
    try:
        conditions: object = json.loads(annotation) if annotation else []
    except ValueError:
        return []
    return list_at({"conditions": conditions}, "conditions")


def _disruption_budget(body: Any) -> HealthStatus:
    status = map_at(body, "status")
    current, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    return (
        HEALTHY if current >= desired else progressing(f"{current} of {desired} pods are healthy")
    )


def _custom_resource_definition(body: Any) -> HealthStatus:
    names_accepted = condition_of(body, "NamesAccepted")
    if text_at(names_accepted, "status") == "False":
        return unhealthy(text_at(names_accepted, "message"))
    if text_at(condition_of(body, "Established"), "status") != "True":
        return progressing("not established yet")
    return HEALTHY


def _gateway_route(body: Any) -> HealthStatus:
    """A route has conditions for each Gateway: accepted, and all references resolved."""
    parents = list_at(body, "status", "parents")
    for parent in parents:
        for condition in list_at(parent, "conditions"):
            is_relevant = text_at(condition, "type") in ("Accepted", "ResolvedRefs")
            if is_relevant and text_at(condition, "status") == "False":
                return unhealthy(_condition_message(condition))
    return HEALTHY if parents else progressing("no Gateway has accepted it")


def _configuration(body: Any) -> HealthStatus:
    """Configuration without a status is healthy unless a condition says otherwise."""
    return health_from_conditions(body) or HEALTHY


def health_from_conditions(body: Any) -> HealthStatus | None:
    """Returns the health from the usual conditions, such as Ready; None if there is none."""
    if _is_behind(body, map_at(body, "status")):
        return _NOT_RECONCILED
    for condition in list_at(body, "status", "conditions"):
        kind, state = text_at(condition, "type"), text_at(condition, "status")
        if kind in ("Stalled", "Failed") and state == "True":
            return (
                _NOT_RECONCILED
                if _is_behind(body, condition)
                else failed(_condition_message(condition))
            )
        if kind in ("Degraded", "Reconciling") and state == "True":
            judge = unhealthy if kind == "Degraded" else progressing
            return judge(_condition_message(condition))
    for name in ("Ready", "Available", "Healthy", "Accepted", "Established", "Synced"):
        condition = condition_of(body, name)
        if condition and _is_behind(body, condition):
            return _NOT_RECONCILED
        if condition:
            status = {"True": Health.HEALTHY, "False": Health.UNHEALTHY}.get(
                text_at(condition, "status"), Health.UNKNOWN
            )
            is_healthy = status is Health.HEALTHY
            return HealthStatus(status, "" if is_healthy else _condition_message(condition))
    return None


_NOT_RECONCILED = progressing("its controller has not seen the last change yet")


def _is_behind(body: Any, status: Any) -> bool:
    """Reports whether a status or condition is of an older generation of the object."""
    observed, generation = at(status, "observedGeneration"), at(body, "metadata", "generation")
    return isinstance(observed, int) and isinstance(generation, int) and observed < generation


def _condition_message(condition: Any) -> str:
    return (
        text_at(condition, "message") or text_at(condition, "reason") or text_at(condition, "type")
    )


@dataclass(frozen=True)
class _KindHealth:
    """Kinds of one API group with the same health rule."""

    group: str
    kinds: tuple[str, ...]
    check: HealthCheck


_HEALTH_CHECKS = (
    _KindHealth("apps", ("Deployment",), deployment),
    _KindHealth("apps", ("StatefulSet",), stateful_set),
    _KindHealth("apps", ("DaemonSet",), daemon_set),
    _KindHealth("apps", ("ReplicaSet",), replica_set),
    _KindHealth("", ("Pod",), pod),
    _KindHealth("", ("ReplicationController",), replica_set),
    _KindHealth("batch", ("Job",), job),
    _KindHealth("batch", ("CronJob",), cron_job),
    _KindHealth("", ("Service",), _service),
    _KindHealth("networking.k8s.io", ("Ingress",), _ingress),
    _KindHealth("", ("PersistentVolume",), partial(_phase, good=("Bound", "Available"))),
    _KindHealth("", ("PersistentVolumeClaim",), partial(_phase, good=("Bound",))),
    _KindHealth("", ("Namespace",), _namespace),
    _KindHealth("autoscaling", ("HorizontalPodAutoscaler",), _autoscaler),
    _KindHealth("policy", ("PodDisruptionBudget",), _disruption_budget),
    _KindHealth("apiextensions.k8s.io", ("CustomResourceDefinition",), _custom_resource_definition),
    _KindHealth(
        "",
        (
            *("ConfigMap", "Secret", "ServiceAccount", "Endpoints", "LimitRange"),
            *("ResourceQuota", "PodTemplate"),
        ),
        _applied,
    ),
    _KindHealth(
        "rbac.authorization.k8s.io",
        ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
        _applied,
    ),
    _KindHealth("networking.k8s.io", ("NetworkPolicy", "IngressClass"), _applied),
    _KindHealth("discovery.k8s.io", ("EndpointSlice",), _applied),
    _KindHealth("storage.k8s.io", ("StorageClass", "CSIDriver"), _applied),
    _KindHealth("scheduling.k8s.io", ("PriorityClass",), _applied),
    _KindHealth("node.k8s.io", ("RuntimeClass",), _applied),
    _KindHealth("coordination.k8s.io", ("Lease",), _applied),
    _KindHealth(
        "admissionregistration.k8s.io",
        (
            *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
            *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
            *("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
        ),
        _applied,
    ),
    _KindHealth(
        "gateway.networking.k8s.io",
        ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"),
        _gateway_route,
    ),
    _KindHealth(
        "networking.istio.io",
        (
            *("VirtualService", "DestinationRule", "Gateway", "ServiceEntry", "Sidecar"),
            *("EnvoyFilter", "ProxyConfig", "WorkloadEntry", "WorkloadGroup"),
        ),
        _configuration,
    ),
    _KindHealth("apps", ("ControllerRevision",), _applied),
)
_CHECK_BY_KIND: Mapping[tuple[str, str], HealthCheck] = {
    (row.group, kind): row.check for row in _HEALTH_CHECKS for kind in row.kinds
}
