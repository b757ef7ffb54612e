# SPDX-License-Identifier: Apache-2.0
"""What happened to the live resources of an application, found by comparing its snapshots."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from pipecd.model.health import HealthStatus, health_of, parse_progress
from pipecd.proto.model.livestate_pb2 import ResourceState

# How many events of an application are kept, and how long a text of them is.
MAX_EVENTS = 500
_MAX_TEXT = 300


class ResourceEventType(StrEnum):
    """What happened to a resource."""

    APPEARED = "appeared"
    REMOVED = "removed"
    HEALTH = "health"


@dataclass(frozen=True)
class ResourceEvent:
    """Something that happened to a live resource; `health` and `text` are those after it."""

    at: int
    target: str
    id: str
    name: str
    kind: str
    type: ResourceEventType
    health: HealthStatus
    text: str = ""


def resource_events(
    before: Iterable[ResourceState], after: Iterable[ResourceState], *, at: int
) -> tuple[ResourceEvent, ...]:
    """The events between two snapshots."""
    old = {(each.deploy_target, each.id): each for each in before}
    new = {(each.deploy_target, each.id): each for each in after}
    events = [_event(old[key], ResourceEventType.REMOVED, at) for key in old if key not in new]
    for key, resource in new.items():
        if key not in old:
            events.append(_event(resource, ResourceEventType.APPEARED, at))
        elif (health_of(old[key]), _text(old[key])) != (health_of(resource), _text(resource)):
            events.append(_event(resource, ResourceEventType.HEALTH, at))
    return tuple(events)


def encode_events(events: Sequence[ResourceEvent]) -> bytes:
    """The newest events as a document."""
    return json.dumps([asdict(event) for event in events[-MAX_EVENTS:]]).encode()


def decode_events(content: bytes) -> tuple[ResourceEvent, ...]:
    """The events of a document; none if it is damaged, as they are not worth an error."""
    try:
        documents: list[dict[str, Any]] = json.loads(content)
        return tuple(_decode(document) for document in documents)
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def _decode(document: dict[str, Any]) -> ResourceEvent:
    type, health = document.pop("type"), document.pop("health")
    return ResourceEvent(**document, type=ResourceEventType(type), health=HealthStatus(health))


def _event(resource: ResourceState, type: ResourceEventType, at: int) -> ResourceEvent:
    return ResourceEvent(
        at=at,
        target=resource.deploy_target,
        id=resource.id,
        name=resource.name,
        kind=resource.resource_type,
        type=type,
        health=health_of(resource),
        text=_text(resource),
    )


def _text(resource: ResourceState) -> str:
    description = resource.health_description.strip()
    progress = parse_progress(description)
    return (description if progress is None else progress)[:_MAX_TEXT]
