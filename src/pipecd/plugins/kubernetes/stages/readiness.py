# SPDX-License-Identifier: Apache-2.0
"""Whether an object that a stage applied is ready: it does what comes next relies on."""

from collections.abc import Mapping
from typing import Any

from pipecd.plugins.kubernetes.live.health import by_conditions, health, is_judged_by_conditions
from pipecd.plugins.kubernetes.live.verdict import FINE, Verdict, unhealthy
from pipecd.plugins.kubernetes.manifest.body import at, list_at, text_at
from pipecd.plugins.kubernetes.manifest.manifest import Manifest
from pipecd.sdk import Health


def is_awaited(manifest: Manifest) -> bool:
    """Reports whether an object may become ready later than it is applied."""
    return (
        manifest.is_builtin("apps", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
        or manifest.is_builtin("", "Pod", "ReplicationController")
        or manifest.is_builtin("batch", "Job")
        or is_judged_by_conditions(manifest.key)
    )


def readiness(body: Mapping[str, Any]) -> Verdict | None:
    """Returns how far an object is; None means that nothing tells, and perhaps never will."""
    manifest = Manifest(body)
    if is_judged_by_conditions(manifest.key) and not at(body, "metadata", "deletionTimestamp"):
        return by_conditions(body)
    verdict = health(body)
    if verdict.health is not Health.HEALTHY:
        return verdict
    if manifest.is_builtin("batch", "Job"):
        return _job(body)
    return _pod(body) if manifest.is_builtin("", "Pod") else verdict


def _job(body: Any) -> Verdict:
    """A Job is ready when it is done; one that is suspended waits for somebody, not for time."""
    if _state(body, "Complete") == "True" or at(body, "spec", "suspend"):
        return FINE
    wanted, done = at(body, "spec", "completions") or 1, at(body, "status", "succeeded") or 0
    return unhealthy(f"{done} of {wanted} pods are done")


def _pod(body: Any) -> Verdict:
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "type") == "Ready" and text_at(condition, "status") == "False":
            is_done = text_at(body, "status", "phase") == "Succeeded"
            told = text_at(condition, "message") or text_at(condition, "reason")
            return FINE if is_done else unhealthy(told or "not ready")
    return FINE


def _state(body: Any, kind: str) -> str:
    for condition in list_at(body, "status", "conditions"):
        if text_at(condition, "type") == kind:
            return text_at(condition, "status")
    return ""
