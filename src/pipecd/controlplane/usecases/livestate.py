# SPDX-License-Identifier: Apache-2.0
"""Live state of applications, as their pipeds report it."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from weakref import WeakValueDictionary

from pipecd.controlplane.auth.rbac import Action, Permission, Resource
from pipecd.controlplane.auth.subject import PipedCaller, Subject, User
from pipecd.controlplane.bus.signal import Bus, Signal, Topic
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.usecases.access import Access, or_not_found
from pipecd.controlplane.usecases.livestate_history import (
    ResourceEvent,
    decode_events,
    encode_events,
    resource_events,
)
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import Denied, NotFound
from pipecd.model.health import HealthStatus
from pipecd.model.livestate import application_health, live_resources
from pipecd.proto.model.livestate_pb2 import (
    ApplicationLiveStateSnapshot,
    ApplicationLiveStateVersion,
    KubernetesResourceState,
    KubernetesResourceStateEvent,
    ResourceState,
)

_GET = Permission(Resource.APPLICATION, Action.GET)
_LIST = Permission(Resource.APPLICATION, Action.LIST)
CACHE_SECONDS = 300.0


class LiveStates:
    """Stores and returns the latest live state snapshot of each application."""

    def __init__(self, stores: Stores, bus: Bus, access: Access, now: Now = utc_now) -> None:
        self._stores, self._bus, self._access, self._now = stores, bus, access, now
        self._writing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, application_id: str, *, by: Subject) -> ApplicationLiveStateSnapshot:
        await self._access.application(application_id, by=by, permission=_GET)
        return await or_not_found(
            self._read(application_id), "Entity was not found to get application live state"
        )

    async def events(self, application_id: str, *, by: Subject) -> tuple[ResourceEvent, ...]:
        """What happened to the live resources of an application, the oldest first."""
        await self._access.application(application_id, by=by, permission=_GET)
        return await self._read_events(application_id)

    async def health(self, *, by: User) -> Mapping[str, HealthStatus]:
        """The health of the project's applications that have a live state, by their ids.

        The caller shows it beside applications that it may list.
        """
        await self._access.scope(by, _LIST)
        return await self._stores.application_health.of_project(by.project)

    async def report(self, snapshot: ApplicationLiveStateSnapshot, *, by: PipedCaller) -> None:
        application = await self._access.own_application(snapshot.application_id, by=by)
        snapshot.piped_id, snapshot.project_id = by.piped, by.project
        async with self._lock(application.id):
            before: list[ResourceState] = []
            with suppress(NotFound):
                before = live_resources(await self._read(application.id))
            await self._write(snapshot, before)
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
                    before = live_resources(snapshot)
                    if not patch(snapshot, own):
                        continue
                    await self._write(snapshot, before)
            except (NotFound, Denied):
                continue
            await self._signal(application_id, by)

    def _lock(self, application_id: str) -> asyncio.Lock:
        return self._writing.setdefault(application_id, asyncio.Lock())

    async def _read(self, application_id: str) -> ApplicationLiveStateSnapshot:
        cached = await self._stores.cache.get(_cache_key(application_id))
        content = cached or await self._stores.files.get(_path(application_id))
        return from_json(content, ApplicationLiveStateSnapshot)

    async def _read_events(self, application_id: str) -> tuple[ResourceEvent, ...]:
        try:
            return decode_events(await self._stores.files.get(_events_path(application_id)))
        except NotFound:
            return ()

    async def _write(
        self, snapshot: ApplicationLiveStateSnapshot, before: Sequence[ResourceState]
    ) -> None:
        """Stores the snapshot, its health, and what has changed since the one before."""
        resources = live_resources(snapshot)
        # The first snapshot is no news.
        events = resource_events(before, resources, at=to_unix(self._now())) if before else ()
        if events:
            known = await self._read_events(snapshot.application_id)
            content = encode_events((*known, *events))
            await self._stores.files.put(_events_path(snapshot.application_id), content)
        health = application_health(snapshot, resources)
        await self._stores.application_health.put(
            snapshot.application_id, snapshot.project_id, health
        )
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


def _events_path(application_id: str) -> str:
    return f"application-live-state-events/{application_id}.json"


def _cache_key(application_id: str) -> str:
    return f"application-live-state:{application_id}"
