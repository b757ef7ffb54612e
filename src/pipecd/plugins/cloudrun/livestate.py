# SPDX-License-Identifier: Apache-2.0
"""The live state of all applications of a deploy target, read together by few requests."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pipecd.plugins.cloudrun.client import CloudRunClient
from pipecd.plugins.cloudrun.conditions import health
from pipecd.plugins.cloudrun.manifest import REVISION_LABEL, SERVICE
from pipecd.sdk import Resource
from pipecd.sdk.ownership import APPLICATION_TAG, MANAGED_BY_TAG
from pipecd.sdk.unstructured import Body, at, list_at, text_at

# Piped asks for one application after the other, about once a minute.
_TTL = 15.0
# So that the address of a request stays short.
_NAMES_PER_REQUEST = 80
_REVISION = "Revision"


@dataclass(frozen=True)
class LiveService:
    """A service with the revisions that get traffic, and the newest one."""

    service: Body
    revisions: Sequence[Body] = ()


@dataclass
class LiveServices:
    """The services of a deploy target by application, read again after some seconds."""

    client: CloudRunClient
    clock: Callable[[], float] = time.monotonic
    _known: Mapping[str, LiveService] = field(default_factory=dict[str, LiveService])
    _until: float = float("-inf")
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def invalidate(self) -> None:
        """Reads the services at the next call, because a stage has changed one."""
        self._until = float("-inf")

    async def find(self, application_id: str) -> LiveService | None:
        """Returns the service of an application, or None."""
        async with self._lock:
            if self.clock() >= self._until:
                until = self.clock() + _TTL
                self._known = await self._read()
                self._until = until
            return self._known.get(application_id)

    async def _read(self) -> Mapping[str, LiveService]:
        services = {
            application: service
            for service in await self.client.services(f"{MANAGED_BY_TAG}=piped")
            if (application := text_at(service, "metadata", "labels", APPLICATION_TAG))
        }
        names = {application: _revision_names(service) for application, service in services.items()}
        wanted = sorted({name for found in names.values() for name in found})
        revisions: dict[str, Body] = {}
        for start in range(0, len(wanted), _NAMES_PER_REQUEST):
            batch = ",".join(wanted[start : start + _NAMES_PER_REQUEST])
            selector = f"{REVISION_LABEL} in ({batch})"
            for revision in await self.client.revisions(selector):
                revisions[text_at(revision, "metadata", "name")] = revision
        return {
            application: LiveService(
                service, [revisions[name] for name in names[application] if name in revisions]
            )
            for application, service in services.items()
        }


def _revision_names(service: Body) -> list[str]:
    targets = list_at(service, "status", "traffic")
    serving = (text_at(target, "revisionName") for target in targets)
    newest = text_at(service, "status", "latestCreatedRevisionName")
    return [name for name in dict.fromkeys((*serving, newest)) if name]


def resources(live: LiveService, target: str) -> list[Resource]:
    """Returns the service and its revisions as resources."""
    service_id = text_at(live.service, "metadata", "uid")
    shares: dict[str, int] = {}
    for entry in list_at(live.service, "status", "traffic"):
        name = text_at(entry, "revisionName")
        shares[name] = shares.get(name, 0) + (at(entry, "percent") or 0)
    url = text_at(live.service, "status", "url")
    return [
        _resource(live.service, SERVICE.kind, target, {"URL": url} if url else {}),
        *(
            _resource(
                revision,
                _REVISION,
                target,
                {
                    "Traffic": f"{shares.get(text_at(revision, 'metadata', 'name'), 0)}%",
                    "Image": _images(revision),
                },
                parents=(service_id,),
            )
            for revision in live.revisions
        ),
    ]


def _images(revision: Body) -> str:
    containers: Sequence[Any] = list_at(revision, "spec", "containers")
    return ", ".join(text_at(container, "image") for container in containers)


def _resource(
    body: Body, kind: str, target: str, more: Mapping[str, str], parents: tuple[str, ...] = ()
) -> Resource:
    status, reason = health(body, kind)
    created = text_at(body, "metadata", "creationTimestamp")
    return Resource(
        id=text_at(body, "metadata", "uid"),
        name=text_at(body, "metadata", "name"),
        kind=kind,
        target=target,
        health=status,
        health_text=reason,
        parents=parents,
        metadata={
            "API Version": text_at(body, "apiVersion") or SERVICE.api_version,
            "Namespace": text_at(body, "metadata", "namespace"),
            **more,
        },
        created_at=datetime.fromisoformat(created) if created else None,
    )
