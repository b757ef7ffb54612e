# SPDX-License-Identifier: Apache-2.0
"""Watches the objects of one kind and stores what the live state needs of them."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pipecd.plugins.kubernetes.client import ApiError, KubernetesClient
from pipecd.plugins.kubernetes.cluster import ApiResource
from pipecd.plugins.kubernetes.health import HealthStatus, health
from pipecd.plugins.kubernetes.manifest import Manifest, ResourceKey, managing_application
from pipecd.plugins.kubernetes.metrics import not_recorded
from pipecd.sdk import Backoff, PipecdError, Unavailable
from pipecd.sdk.unstructured import list_at, map_at, text_at, without

_PAGE_SIZE = 500
# The server ends a watch after this time; a watch that is silent for longer is broken.
_WATCH_SECONDS = 240
_WATCH_TIMEOUT = 300.0
# The kind is gone or may no longer be listed, so its objects are unknown.
_NOT_LISTABLE = (403, 404, 405)
_BACKOFF = Backoff(first=0.25, longest=30.0)
# The names of the events in the metrics.
_EVENTS = {"ADDED": "add", "MODIFIED": "update", "DELETED": "delete"}


@dataclass(frozen=True, slots=True)
class ObservedObject:
    """A live object; only one that an application manages has a body, as JSON.

    Parsed bodies would take ten times the memory.
    """

    uid: str
    key: ResourceKey
    owners: tuple[str, ...]
    application: str
    created_at: datetime | None
    health: HealthStatus
    body: bytes = b""

    @property
    def manifest(self) -> Manifest:
        """The object to compare with Git."""
        return Manifest(json.loads(self.body))


def observe(body: Any, api_version: str, kind: str) -> ObservedObject:
    """Returns what is stored of an object; items of a list have no kind of their own."""
    typed = {**body, "apiVersion": api_version, "kind": kind}
    owners = tuple(text_at(owner, "uid") for owner in list_at(typed, "metadata", "ownerReferences"))
    application = managing_application(typed)
    created_at = None
    with suppress(ValueError):
        created_at = datetime.fromisoformat(text_at(typed, "metadata", "creationTimestamp"))
    compact = b""
    if application:
        stored = without(without(typed, "metadata", "managedFields"), "status")
        # The resource version changes with the status too, which is in the health already.
        stored = without(stored, "metadata", "resourceVersion")
        compact = json.dumps(stored, separators=(",", ":")).encode()
    return ObservedObject(
        uid=text_at(typed, "metadata", "uid"),
        key=Manifest(typed).key,
        owners=owners,
        application=application,
        created_at=created_at,
        health=health(typed),
        body=compact,
    )


class ObjectStore:
    """The objects of one watch, indexed by application and by owner."""

    def __init__(self) -> None:
        self._by_uid: dict[str, ObservedObject] = {}
        self._by_application: dict[str, set[str]] = {}
        self._by_owner: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_uid)

    def get(self, uid: str) -> ObservedObject | None:
        """Returns an object, None if it is not stored."""
        return self._by_uid.get(uid)

    def put(self, observed: ObservedObject) -> bool:
        """Stores an object and reports whether it changed.

        An object without an owner that no application manages is not stored.
        """
        if observed == self._by_uid.get(observed.uid):
            return False
        before = self.delete(observed.uid)
        if not observed.application and not observed.owners:
            return before is not None
        self._by_uid[observed.uid] = observed
        if observed.application:
            self._by_application.setdefault(observed.application, set()).add(observed.uid)
        for owner in observed.owners:
            self._by_owner.setdefault(owner, set()).add(observed.uid)
        return True

    def delete(self, uid: str) -> ObservedObject | None:
        """Deletes an object and returns it."""
        observed = self._by_uid.pop(uid, None)
        if observed is not None:
            _remove(self._by_application, observed.application, uid)
            for owner in observed.owners:
                _remove(self._by_owner, owner, uid)
        return observed

    def replace(self, objects: Iterable[ObservedObject]) -> list[ObservedObject]:
        """Stores these objects only, and returns those that were changed or deleted by that."""
        listed = {observed.uid: observed for observed in objects}
        deleted = [self.delete(uid) for uid in list(self._by_uid) if uid not in listed]
        return [*filter(None, deleted), *(each for each in listed.values() if self.put(each))]

    def of_application(self, application: str) -> Iterator[ObservedObject]:
        """Yields the objects that an application manages."""
        return (self._by_uid[uid] for uid in self._by_application.get(application, ()))

    def owned_by(self, uid: str) -> Iterator[ObservedObject]:
        """Yields the objects that an object owns."""
        return (self._by_uid[owned] for owned in self._by_owner.get(uid, ()))


def _remove(index: dict[str, set[str]], name: str, uid: str) -> None:
    if name in index:
        index[name].discard(uid)
        if not index[name]:
            del index[name]


class ResourceWatch:
    """Lists the objects of one kind and follows their changes.

    `error` is set while the objects are unknown or out of date. `on_change` receives every changed
    object, `on_event` every event. After a lost connection the watch resumes at the last resource
    version; it lists again only if the server no longer has that version.
    """

    def __init__(
        self,
        client: KubernetesClient,
        resource: ApiResource,
        on_change: Callable[[ObservedObject], None],
        *,
        on_event: Callable[[str, ObservedObject], None] = not_recorded,
        namespace: str = "",
        selector: str = "",
    ) -> None:
        self._client = client
        self._resource = resource
        self._on_change, self._on_event = on_change, on_event
        self._path = resource.path(namespace)
        self._query = {"labelSelector": selector} if selector else {}
        self._resource_version = ""
        self._was_listed = False
        self._delays = iter(_BACKOFF)
        self._state_changed = asyncio.Event()
        self.objects = ObjectStore()
        self.error: PipecdError | None = None

    async def wait_for_sync(self) -> None:
        """Returns when the objects are up to date; raises if the server refuses to list them."""
        while self.error or not self._resource_version:
            if isinstance(self.error, ApiError):
                raise self.error
            await self._state_changed.wait()

    async def run(self) -> None:
        """Follows the objects until it is cancelled."""
        while True:
            try:
                if not self._resource_version:
                    await self._list()
                await self._follow()
                continue
            except ApiError as e:
                self._resource_version = ""
                if e.code == 410:
                    continue
                if e.code in _NOT_LISTABLE:
                    self._replace(())
                self._set_error(e)
            except Unavailable as e:
                self._set_error(e)
            await asyncio.sleep(next(self._delays))

    async def _list(self) -> None:
        objects: list[ObservedObject] = []
        query = {**self._query, "limit": str(_PAGE_SIZE)}
        while True:
            page = await self._client.get(self._path, **query)
            objects += map(self._observe, list_at(page, "items"))
            query["continue"] = text_at(page, "metadata", "continue")
            if not query["continue"]:
                break
        self._replace(objects)
        self._was_listed = True
        self._resource_version = text_at(page, "metadata", "resourceVersion")
        self._set_error(None)

    async def _follow(self) -> None:
        query = {
            **self._query,
            "resourceVersion": self._resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_WATCH_SECONDS),
        }
        try:
            async with (
                asyncio.timeout(_WATCH_TIMEOUT),
                self._client.watch(self._path, **query) as events,
            ):
                self._set_error(None)
                self._delays = iter(_BACKOFF)
                async for event in events:
                    self._handle_event(text_at(event, "type"), map_at(event, "object"))
        except TimeoutError as e:
            raise Unavailable(
                f"the watch of {self._resource.kind} received nothing for {_WATCH_TIMEOUT:g}s"
            ) from e

    def _handle_event(self, kind: str, body: Any) -> None:
        if kind in _EVENTS:
            observed = self._observe(body)
            self._on_event(_EVENTS[kind], observed)
            if kind == "DELETED":
                deleted = self.objects.delete(observed.uid)
                if deleted is not None:
                    self._on_change(deleted)
            elif self.objects.put(observed):
                self._on_change(observed)
        self._resource_version = (
            text_at(body, "metadata", "resourceVersion") or self._resource_version
        )

    def _replace(self, objects: Iterable[ObservedObject]) -> None:
        """Stores a list; the first one is no change, a live state waits for it."""
        changed = self.objects.replace(objects)
        for observed in changed if self._was_listed else ():
            self._on_change(observed)

    def _observe(self, body: Any) -> ObservedObject:
        return observe(body, self._resource.api_version, self._resource.kind)

    def _set_error(self, error: PipecdError | None) -> None:
        self.error = error
        waiting, self._state_changed = self._state_changed, asyncio.Event()
        waiting.set()
