# SPDX-License-Identifier: Apache-2.0
"""How the health of a resource that progresses is written.

The wire knows healthy and unhealthy. A resource that is on its way to be healthy is an unhealthy
one there; its description begins with a word by which people, and our console, see the difference.
"""

from collections.abc import Iterable
from enum import StrEnum

from pipecd.proto.model.livestate_pb2 import ResourceState

_PROGRESSING = "Progressing"


class HealthStatus(StrEnum):
    """The health of a resource or an application, worst first."""

    UNHEALTHY = "unhealthy"
    PROGRESSING = "progressing"
    UNKNOWN = "unknown"
    HEALTHY = "healthy"


_STATUSES = {
    ResourceState.HEALTHY: HealthStatus.HEALTHY,
    ResourceState.UNHEALTHY: HealthStatus.UNHEALTHY,
}


def health_of(resource: ResourceState) -> HealthStatus:
    """Returns the health of a resource; a status of a later version counts as unknown."""
    if only_progress([resource]):
        return HealthStatus.PROGRESSING
    return _STATUSES.get(resource.health_status, HealthStatus.UNKNOWN)


def describe_progress(text: str) -> str:
    """Returns the description of a resource that progresses; `text` says what is missing."""
    return f"{_PROGRESSING}: {text}" if text else _PROGRESSING


def parse_progress(description: str) -> str | None:
    """Returns the text of a description if its resource progresses, else None."""
    word, _, text = description.partition(":")
    return text.strip() if word == _PROGRESSING else None


def only_progress(resources: Iterable[ResourceState]) -> bool:
    """Returns whether some resources are not healthy, and all of those progress."""
    unhealthy = [each for each in resources if each.health_status == ResourceState.UNHEALTHY]
    return bool(unhealthy) and all(
        parse_progress(each.health_description) is not None for each in unhealthy
    )
