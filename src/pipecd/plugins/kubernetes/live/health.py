# SPDX-License-Identifier: Apache-2.0
"""How an object is, told by its own status."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pipecd.plugins.kubernetes.live.verdict import (
    FINE,
    Verdict,
    failed,
    healthy,
    unhealthy,
    unknown,
)
from pipecd.plugins.kubernetes.live.workload import (
    cron_job,
    daemon_set,
    deployment,
    job,
    pod,
    replica_set,
    stateful_set,
)
from pipecd.plugins.kubernetes.manifest.body import at, list_at, map_at, text_at
from pipecd.plugins.kubernetes.manifest.key import Key

Rule = Callable[[Any], Verdict]


def health(body: Mapping[str, Any]) -> Verdict:
    """Returns how an object is; one of an unknown kind is judged by its conditions."""
    if at(body, "metadata", "deletionTimestamp"):
        return unhealthy("being deleted")
    key = Key(text_at(body, "apiVersion"), text_at(body, "kind"), "", "")
    rule = _RULES.get((key.group, key.kind))
    if rule:
        return rule(body)
    return by_conditions(body) or unknown("it tells nothing of its health")


def is_judged_by_conditions(key: Key) -> bool:
    """Reports whether an object is of a kind that somebody added to Kubernetes."""
    return "." in key.group and (key.group, key.kind) not in _RULES


def _applied(_body: Any) -> Verdict:
    return FINE


def _service(body: Any) -> Verdict:
    if text_at(body, "spec", "type") != "LoadBalancer":
        return FINE
    if list_at(body, "status", "loadBalancer", "ingress"):
        return FINE
    return unhealthy("the load balancer has no address yet")


def _ingress(body: Any) -> Verdict:
    if list_at(body, "status", "loadBalancer", "ingress"):
        return FINE
    return unhealthy("no address yet: no ingress controller has taken it up")


def _volume(body: Any) -> Verdict:
    return _phase(body, "Bound", "Available")


def _claim(body: Any) -> Verdict:
    return _phase(body, "Bound")


def _namespace(body: Any) -> Verdict:
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "status") == "True":
            return unhealthy(text_at(condition, "message"))
    return _phase(body, "Active")


def _phase(body: Any, *good: str) -> Verdict:
    phase = text_at(body, "status", "phase")
    if phase in good:
        return FINE
    told = text_at(body, "status", "message")
    return unhealthy(f"{phase or 'no phase yet'}{f': {told}' if told else ''}")


def _autoscaler(body: Any) -> Verdict:
    """An autoscaler that cannot read its metrics or change its target does not scale."""
    for condition in list_at(body, "status", "conditions"):
        is_of_use = text_at(condition, "type") in ("AbleToScale", "ScalingActive")
        is_off = text_at(condition, "reason") == "ScalingDisabled"
        if is_of_use and not is_off and text_at(condition, "status") == "False":
            return unhealthy(text_at(condition, "message"))
    return FINE


def _disruption_budget(body: Any) -> Verdict:
    status = map_at(body, "status")
    current, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    return FINE if current >= desired else unhealthy(f"{current} of {desired} pods are healthy")


def _definition(body: Any) -> Verdict:
    states = {
        text_at(condition, "type"): condition for condition in list_at(body, "status", "conditions")
    }
    refused = states.get("NamesAccepted", {})
    if text_at(refused, "status") == "False":
        return unhealthy(text_at(refused, "message"))
    if text_at(states.get("Established"), "status") != "True":
        return unhealthy("not established yet")
    return FINE


def _route(body: Any) -> Verdict:
    """A route tells of each Gateway whether it takes it, and knows all that it leads to."""
    parents = list_at(body, "status", "parents")
    for parent in parents:
        for condition in list_at(parent, "conditions"):
            is_of_use = text_at(condition, "type") in ("Accepted", "ResolvedRefs")
            if is_of_use and text_at(condition, "status") == "False":
                return unhealthy(_told(condition))
    return FINE if parents else unhealthy("no Gateway has taken it up")


def _setting(body: Any) -> Verdict:
    """What only controls others is fine once it is there, unless its controller complains."""
    return by_conditions(body) or FINE


def by_conditions(body: Any) -> Verdict | None:
    """Judges an object by what controllers agree to write: Ready, or something like it.

    None means that it tells nothing.
    """
    if _is_behind(body, map_at(body, "status")):
        return _UNSEEN
    conditions = list_at(body, "status", "conditions")
    for condition in conditions:
        kind, state = text_at(condition, "type"), text_at(condition, "status")
        if kind in ("Stalled", "Failed") and state == "True":
            return _UNSEEN if _is_behind(body, condition) else failed(_told(condition))
        if kind in ("Degraded", "Reconciling") and state == "True":
            return unhealthy(_told(condition))
    for name in ("Ready", "Available", "Healthy", "Accepted", "Established", "Synced"):
        for condition in conditions:
            if text_at(condition, "type") == name:
                return _UNSEEN if _is_behind(body, condition) else _ready(condition)
    return None


_UNSEEN = unhealthy("its controller has not seen the last change yet")


def _is_behind(body: Any, told: Any) -> bool:
    """Reports whether a controller spoke of an older generation of the object."""
    observed, generation = at(told, "observedGeneration"), at(body, "metadata", "generation")
    return isinstance(observed, int) and isinstance(generation, int) and observed < generation


def _ready(condition: Any) -> Verdict:
    match text_at(condition, "status"):
        case "True":
            return healthy()
        case "False":
            return unhealthy(_told(condition))
        case _:
            return unknown(_told(condition))


def _told(condition: Any) -> str:
    return (
        text_at(condition, "message") or text_at(condition, "reason") or text_at(condition, "type")
    )


@dataclass(frozen=True)
class _Kinds:
    """Kinds of one API group that are judged alike."""

    group: str
    kinds: tuple[str, ...]
    rule: Rule


_TABLE = (
    _Kinds("apps", ("Deployment",), deployment),
    _Kinds("apps", ("StatefulSet",), stateful_set),
    _Kinds("apps", ("DaemonSet",), daemon_set),
    _Kinds("apps", ("ReplicaSet",), replica_set),
    _Kinds("", ("Pod",), pod),
    _Kinds("", ("ReplicationController",), replica_set),
    _Kinds("batch", ("Job",), job),
    _Kinds("batch", ("CronJob",), cron_job),
    _Kinds("", ("Service",), _service),
    _Kinds("networking.k8s.io", ("Ingress",), _ingress),
    _Kinds("", ("PersistentVolume",), _volume),
    _Kinds("", ("PersistentVolumeClaim",), _claim),
    _Kinds("", ("Namespace",), _namespace),
    _Kinds("autoscaling", ("HorizontalPodAutoscaler",), _autoscaler),
    _Kinds("policy", ("PodDisruptionBudget",), _disruption_budget),
    _Kinds("apiextensions.k8s.io", ("CustomResourceDefinition",), _definition),
    _Kinds(
        "",
        (
            *("ConfigMap", "Secret", "ServiceAccount", "Endpoints", "LimitRange"),
            *("ResourceQuota", "PodTemplate"),
        ),
        _applied,
    ),
    _Kinds(
        "rbac.authorization.k8s.io",
        ("Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"),
        _applied,
    ),
    _Kinds("networking.k8s.io", ("NetworkPolicy", "IngressClass"), _applied),
    _Kinds("discovery.k8s.io", ("EndpointSlice",), _applied),
    _Kinds("storage.k8s.io", ("StorageClass", "CSIDriver"), _applied),
    _Kinds("scheduling.k8s.io", ("PriorityClass",), _applied),
    _Kinds("node.k8s.io", ("RuntimeClass",), _applied),
    _Kinds("coordination.k8s.io", ("Lease",), _applied),
    _Kinds(
        "admissionregistration.k8s.io",
        (
            *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"),
            *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
            *("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"),
        ),
        _applied,
    ),
    _Kinds(
        "gateway.networking.k8s.io",
        ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"),
        _route,
    ),
    _Kinds(
        "networking.istio.io",
        (
            *("VirtualService", "DestinationRule", "Gateway", "ServiceEntry", "Sidecar"),
            *("EnvoyFilter", "ProxyConfig", "WorkloadEntry", "WorkloadGroup"),
        ),
        _setting,
    ),
    _Kinds("apps", ("ControllerRevision",), _applied),
)
_RULES: Mapping[tuple[str, str], Rule] = {
    (row.group, kind): row.rule for row in _TABLE for kind in row.kinds
}
