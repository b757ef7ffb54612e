# SPDX-License-Identifier: Apache-2.0
"""What the conditions of services and revisions mean: health, and whether a wait has ended."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipecd.sdk import Health
from pipecd.sdk.unstructured import Body, at, condition_of, list_at, map_at, text_at

_TYPES = frozenset(
    {
        "Active",
        "Ready",
        "ConfigurationsReady",
        "RoutesReady",
        "ContainerHealthy",
        "ResourcesAvailable",
    }
)
_ROUTES = frozenset({"RoutesReady"})
_REQUIRED = {
    "Service": ("Ready", "ConfigurationsReady", "RoutesReady"),
    "Revision": ("Ready", "Active", "ContainerHealthy", "ResourcesAvailable"),
}
# Such a condition does not contribute to readiness: a revision without traffic is not active.
_INFORMATIVE = "Info"


@dataclass(frozen=True)
class Readiness:
    """Whether an object is ready; `has_failed` does not change without another deployment."""

    is_ready: bool = False
    has_failed: bool = False
    reason: str = ""


def health(body: Body, kind: str) -> tuple[Health, str]:
    """Returns the health of a service or revision, and why."""
    if not map_at(body, "status"):
        return Health.UNKNOWN, "Cloud Run has not reported a status yet"
    if failed := _messages(body, "False"):
        return Health.UNHEALTHY, "; ".join(failed)
    if unknown := _messages(body, "Unknown"):
        # Knative gives a condition that it still works on the status Unknown.
        return Health.PROGRESSING, "; ".join(unknown)
    for required in _REQUIRED[kind]:
        condition = condition_of(body, required)
        is_informative = text_at(condition, "severity") == _INFORMATIVE
        if text_at(condition, "status") != "True" and not is_informative:
            return Health.UNKNOWN, f"Cloud Run has not reported the condition {required} yet"
    return Health.HEALTHY, ""


def revision_readiness(revision: Body | None) -> Readiness:
    """Returns whether a revision can serve requests."""
    if revision is None:
        return Readiness(reason="it does not exist yet")
    if failed := _messages(revision, "False"):
        log = text_at(revision, "status", "logUrl")
        return Readiness(
            has_failed=True, reason="; ".join(failed) + (f" (log: {log})" if log else "")
        )
    if text_at(condition_of(revision, "Ready"), "status") == "True":
        return Readiness(is_ready=True)
    return Readiness(reason="; ".join(_messages(revision, "Unknown")) or "it is being prepared")


def service_readiness(service: Body | None, generation: int) -> Readiness:
    """Returns whether a service has carried out its change with this generation."""
    if service is None:
        return Readiness(has_failed=True, reason="it was deleted")
    if (at(service, "status", "observedGeneration") or 0) < generation:
        return Readiness(reason="its traffic is not distributed yet")
    if failed := _messages(service, "False"):
        return Readiness(has_failed=True, reason="; ".join(failed))
    if text_at(condition_of(service, "Ready"), "status") == "True":
        return Readiness(is_ready=True)
    return Readiness(reason="; ".join(_messages(service, "Unknown")) or "it is being updated")


def route_readiness(service: Body | None, generation: int, traffic: Mapping[str, int]) -> Readiness:
    """Returns whether the traffic is distributed, also beside a newest revision that failed."""
    if service is None:
        return Readiness(has_failed=True, reason="it was deleted")
    if (at(service, "status", "observedGeneration") or 0) < generation:
        return Readiness(reason="it is not distributed yet")
    if failed := _messages(service, "False", types=_ROUTES):
        return Readiness(has_failed=True, reason="; ".join(failed))
    shares = {
        text_at(target, "revisionName"): at(target, "percent") or 0
        for target in list_at(service, "status", "traffic")
    }
    wanted = {revision: percent for revision, percent in traffic.items() if percent}
    if {revision: percent for revision, percent in shares.items() if percent} == wanted:
        return Readiness(is_ready=True)
    return Readiness(reason="; ".join(_messages(service, "Unknown", types=_ROUTES)) or "it moves")


def _messages(body: Body, status: str, *, types: frozenset[str] = _TYPES) -> list[str]:
    """Returns the messages of the conditions with a status, one for each reason."""
    messages: dict[str, str] = {}
    for condition in _conditions(body, types):
        found = text_at(condition, "status")
        if (found if found in ("True", "False") else "Unknown") == status:
            kind, reason = text_at(condition, "type"), text_at(condition, "reason")
            text = text_at(condition, "message") or f"{kind} is {found or 'unknown'}"
            messages.setdefault(reason or kind, text)
    return list(dict.fromkeys(messages.values()))


def _conditions(body: Body, types: frozenset[str]) -> Iterator[Mapping[str, Any]]:
    for condition in list_at(body, "status", "conditions"):
        is_informative = text_at(condition, "severity") == _INFORMATIVE
        if text_at(condition, "type") in types and not is_informative:
            yield condition
