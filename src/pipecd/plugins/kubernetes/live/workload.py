# SPDX-License-Identifier: Apache-2.0
"""How workloads are: whether all of their pods are there, new and ready."""

from typing import Any

from pipecd.plugins.kubernetes.live.verdict import FINE, Verdict, failed, unhealthy
from pipecd.plugins.kubernetes.manifest.body import at, list_at, map_at, text_at

_UNSEEN = unhealthy("the controller has not seen the last change yet")


def deployment(body: Any) -> Verdict:
    """A Deployment is fine when all pods are of the new template and available."""
    if at(body, "spec", "paused"):
        return unhealthy("paused")
    if _is_stale(body, before_first=False):
        return _UNSEEN
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "reason") == "ProgressDeadlineExceeded":
            return unhealthy(text_at(condition, "message") or "it made no progress in time")
    return _rolled_out(body)


def _rolled_out(body: Any) -> Verdict:
    desired = _desired(body)
    updated, total, available = _counts(body, "updatedReplicas", "replicas", "availableReplicas")
    if updated < desired:
        return unhealthy(f"{updated} of {desired} replicas are updated")
    if updated < total:
        return unhealthy(f"{total - updated} old replicas are still to end")
    if available < total:
        return unhealthy(f"{available} of {total} replicas are available")
    return FINE


def stateful_set(body: Any) -> Verdict:
    """A StatefulSet is fine when its pods are ready and of the revision they should have."""
    if _is_stale(body):
        return _UNSEEN
    desired = _desired(body)
    ready, updated = _counts(body, "readyReplicas", "updatedReplicas")
    if ready != desired:
        return unhealthy(f"{ready} of {desired} replicas are ready")
    partition = at(body, "spec", "updateStrategy", "rollingUpdate", "partition")
    if isinstance(partition, int) and partition > 0:
        wanted = desired - partition
        return (
            FINE if updated >= wanted else unhealthy(f"{updated} of {wanted} replicas are updated")
        )
    status = map_at(body, "status")
    if status.get("updateRevision") != status.get("currentRevision"):
        return unhealthy(f"{updated} of {desired} replicas are of the new revision")
    return FINE


def daemon_set(body: Any) -> Verdict:
    """A DaemonSet is fine when every node that should has a new, available pod."""
    if _is_stale(body):
        return _UNSEEN
    desired, updated, available = _counts(
        body, "desiredNumberScheduled", "updatedNumberScheduled", "numberAvailable"
    )
    (misplaced,) = _counts(body, "numberMisscheduled")
    if updated < desired:
        return unhealthy(f"{updated} of {desired} nodes have an updated pod")
    if available < desired:
        return unhealthy(f"{available} of {desired} nodes have an available pod")
    if misplaced > 0:
        return unhealthy(f"{misplaced} nodes run a pod that they should not")
    return FINE


def replica_set(body: Any) -> Verdict:
    """A ReplicaSet is fine when all of its pods are available."""
    if _is_stale(body):
        return _UNSEEN
    for condition in list_at(body, "status", "conditions"):
        failed = text_at(condition, "type") == "ReplicaFailure"
        if failed and text_at(condition, "status") == "True":
            return unhealthy(text_at(condition, "message"))
    desired = _desired(body)
    available, ready = _counts(body, "availableReplicas", "readyReplicas")
    if available < desired:
        return unhealthy(f"{available} of {desired} replicas are available")
    if ready != desired:
        return unhealthy(f"{ready} of {desired} replicas are ready")
    return FINE


def pod(body: Any) -> Verdict:
    """A Pod is fine when it runs or has succeeded, and no container of it is stuck."""
    stuck = [
        text_at(state, "message") or text_at(state, "reason")
        for state in (
            map_at(container, "state", "waiting")
            for field in ("initContainerStatuses", "containerStatuses")
            for container in list_at(body, "status", field)
        )
        if text_at(state, "reason").startswith("Err")
        or text_at(state, "reason").endswith(("Error", "BackOff"))
    ]
    if stuck:
        return unhealthy(", ".join(stuck))
    phase = text_at(body, "status", "phase")
    if phase in ("Running", "Succeeded"):
        return FINE
    told = text_at(body, "status", "message") or _unscheduled(body)
    if phase == "Failed":
        return failed(told or _ended_badly(body) or phase)
    return unhealthy(told or phase or "Pending")


def _ended_badly(body: Any) -> str:
    for container in list_at(body, "status", "containerStatuses"):
        end = map_at(container, "state", "terminated")
        if end.get("exitCode"):
            told = text_at(end, "message") or text_at(end, "reason") or "it failed"
            return f"container {text_at(container, 'name')} ended with {end['exitCode']}: {told}"
    return ""


def _unscheduled(body: Any) -> str:
    for condition in list_at(body, "status", "conditions"):
        scheduled = text_at(condition, "type") == "PodScheduled"
        if scheduled and text_at(condition, "status") == "False":
            return text_at(condition, "message")
    return ""


def job(body: Any) -> Verdict:
    """A Job is fine while it has not failed."""
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "type") == "Failed" and text_at(condition, "status") == "True":
            return failed(text_at(condition, "message") or "failed")
    return FINE


def cron_job(_body: Any) -> Verdict:
    """A CronJob only starts Jobs, which tell how they are themselves."""
    return FINE


def _is_stale(body: Any, *, before_first: bool = True) -> bool:
    observed = at(body, "status", "observedGeneration") or 0
    if before_first and not observed:
        return True
    return (at(body, "metadata", "generation") or 0) > observed


def _desired(body: Any) -> int:
    replicas = at(body, "spec", "replicas")
    return replicas if isinstance(replicas, int) else 1


def _counts(body: Any, *names: str) -> tuple[int, ...]:
    return tuple(at(body, "status", name) or 0 for name in names)
