# SPDX-License-Identifier: Apache-2.0
"""Live state of applications, as their pipeds report it."""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from weakref import WeakValueDictionary

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, Subject
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, or_not_found
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import Denied, NotFound
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
    KubernetesResourceState,
    KubernetesResourceStateEvent,
)

_GET = Permission(Resource.APPLICATION, Action.GET)
CACHE_SECONDS = 300.0


class LiveStates:
    """Stores and returns the latest live state snapshot of each application."""

    def __init__(self, stores: Stores, bus: Bus, access: Access) -> None:
        self._stores, self._bus, self._access = stores, bus, access
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, application_id: str, *, by: Subject) -> ApplicationLiveStateSnapshot:
        await self._access.application(application_id, by=by, permission=_GET)
        return await or_not_found(
            self._read(application_id), "Entity was not found to get application live state"
        )

    async def report(self, snapshot: ApplicationLiveStateSnapshot, *, by: PipedCaller) -> None:
        application = await self._access.own_application(snapshot.application_id, by=by)
        snapshot.piped_id, snapshot.project_id = by.piped, by.project
        async with self._lock(application.id):
            await self._write(snapshot)
        await self._signal(application.id, by)

    async def report_events(
        self, events: Sequence[KubernetesResourceStateEvent], *, by: PipedCaller
    ) -> None:
        """Patches the snapshots of the piped's applications; ignores events that do not apply."""
        by_application = sorted(events, key=lambda event: event.application_id)
        for application_id, own in groupby(by_application, key=lambda e: e.application_id):
            try:
                await self._access.own_application(application_id, by=by)
                async with self._lock(application_id):
                    snapshot = await self._read(application_id)
                    if not patch(snapshot, own):
                        continue
                    await self._write(snapshot)
            except (NotFound, Denied):
                continue
            await self._signal(application_id, by)

    def _lock(self, application_id: str) -> asyncio.Lock:
        return self._writing.setdefault(application_id, asyncio.Lock())

    async def _read(self, application_id: str) -> ApplicationLiveStateSnapshot:
        cached = await self._stores.cache.get(_cache_key(application_id))
        content = cached or await self._stores.files.get(_path(application_id))
        return from_json(content, ApplicationLiveStateSnapshot)

    async def _write(self, snapshot: ApplicationLiveStateSnapshot) -> None:
        content = to_json(snapshot).encode()
        await self._stores.files.put(_path(snapshot.application_id), content)
        await self._stores.cache.put(
            _cache_key(snapshot.application_id), content, ttl_seconds=CACHE_SECONDS
        )

    async def _signal(self, application_id: str, by: PipedCaller) -> None:
        await self._bus.publish(Signal(Topic.APPLICATION, application_id, by.project))


def patch(
    snapshot: ApplicationLiveStateSnapshot, events: Iterable[KubernetesResourceStateEvent]
) -> bool:
    """Applies the events that are not older than the snapshot; False if all are."""
    resources = {resource.id: resource for resource in snapshot.kubernetes.resources}
    current = [e for e in events if _order(e.snapshot_version) >= _order(snapshot.version)]
    if not current:
        return False
    for event in current:
        if event.type == KubernetesResourceStateEvent.DELETED:
            resources.pop(event.state.id, None)
        else:
            resources[event.state.id] = event.state
    changed = [
        KubernetesResourceState.FromString(r.SerializeToString()) for r in resources.values()
    ]
    del snapshot.kubernetes.resources[:]
    snapshot.kubernetes.resources.extend(changed)
    statuses = {resource.health_status for resource in changed}
    if KubernetesResourceState.OTHER in statuses:
        snapshot.health_status = ApplicationLiveStateSnapshot.OTHER
    elif KubernetesResourceState.UNKNOWN in statuses:
        snapshot.health_status = ApplicationLiveStateSnapshot.UNKNOWN
    else:
        snapshot.health_status = ApplicationLiveStateSnapshot.HEALTHY
    return True


def _order(version: ApplicationLiveStateVersion) -> tuple[int, int]:
    return version.timestamp, version.index


def _path(application_id: str) -> str:
    return f"application-live-state/{application_id}.json"


def _cache_key(application_id: str) -> str:
    return f"application-live-state:{application_id}"
