# SPDX-License-Identifier: Apache-2.0
"""Follows the objects of one kind: a list, and from there on every change."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from pipecd.plugins.kubernetes.cluster.client import Client
from pipecd.plugins.kubernetes.cluster.discovery import Resource
from pipecd.plugins.kubernetes.cluster.refusal import Refusal
from pipecd.plugins.kubernetes.figures import uncounted
from pipecd.plugins.kubernetes.live.sighting import Sighting, Sightings, sighting
from pipecd.plugins.kubernetes.manifest.body import list_at, map_at, text_at
from pipecd.sdk import Backoff, PipecdError, Unavailable

_PAGE = 500
# The server ends a watch after this time, and what is silent for longer is taken for dead.
_LASTS = 240
_DEAD_AFTER = 300.0
# The kind is gone, or may not be read any more: nothing is known of its objects.
_OUT_OF_SIGHT = (403, 404, 405)
_BACKOFF = Backoff(first=0.25, longest=30.0)
# What dashboards call the events.
_EVENTS = {"ADDED": "add", "MODIFIED": "update", "DELETED": "delete"}


class Watch:
    """The objects of one kind as of now; `problem` says why they are not known or not up to date.

    Every change is told as `news`, every event as `heard`. A lost connection is taken up where it
    ended; only a version that the server has forgotten makes it list everything anew.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        news: Callable[[Sighting], None],
        *,
        heard: Callable[[str, Sighting], None] = uncounted,
        namespace: str = "",
        selector: str = "",
    ) -> None:
        self._client = client
        self._resource = resource
        self._news, self._heard = news, heard
        self._path = resource.path(namespace)
        self._query = {"labelSelector": selector} if selector else {}
        self._version = ""
        self._is_listed = False
        self._pauses = iter(_BACKOFF)
        self._changed = asyncio.Event()
        self.sightings = Sightings()
        self.problem: PipecdError | None = None

    async def ready(self) -> None:
        """Returns when the objects are known as of now; a refusal of the server is raised."""
        while self.problem or not self._version:
            if isinstance(self.problem, Refusal):
                raise self.problem
            await self._changed.wait()

    async def run(self) -> None:
        """Follows the objects until it is cancelled."""
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._follow()
                continue
            except Refusal as e:
                self._version = ""
                if e.code == 410:
                    continue
                if e.code in _OUT_OF_SIGHT:
                    self._replace(())
                self._tell(e)
            except Unavailable as e:
                self._tell(e)
            await asyncio.sleep(next(self._pauses))

    async def _list(self) -> None:
        found: list[Sighting] = []
        query = {**self._query, "limit": str(_PAGE)}
        while True:
            answer = await self._client.get(self._path, **query)
            found += map(self._sighting, list_at(answer, "items"))
            query["continue"] = text_at(answer, "metadata", "continue")
            if not query["continue"]:
                break
        self._replace(found)
        self._is_listed = True
        self._version = text_at(answer, "metadata", "resourceVersion")
        self._tell(None)

    async def _follow(self) -> None:
        query = {
            **self._query,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(_LASTS),
        }
        try:
            async with (
                asyncio.timeout(_DEAD_AFTER),
                self._client.watch(self._path, **query) as events,
            ):
                self._tell(None)
                self._pauses = iter(_BACKOFF)
                async for event in events:
                    self._take(text_at(event, "type"), map_at(event, "object"))
        except TimeoutError as e:
            raise Unavailable(f"the watch of {self._resource.kind} fell silent") from e

    def _take(self, kind: str, body: Any) -> None:
        if kind in _EVENTS:
            seen = self._sighting(body)
            self._heard(_EVENTS[kind], seen)
            if kind == "DELETED":
                gone = self.sightings.drop(seen.uid)
                if gone is not None:
                    self._news(gone)
            elif self.sightings.put(seen):
                self._news(seen)
        self._version = text_at(body, "metadata", "resourceVersion") or self._version

    def _replace(self, found: Iterable[Sighting]) -> None:
        """Takes a list; the first one is no news, since it is there because somebody looks."""
        changed = self.sightings.replace(found)
        for seen in changed if self._is_listed else ():
            self._news(seen)

    def _sighting(self, body: Any) -> Sighting:
        return sighting(body, self._resource.api_version, self._resource.kind)

    def _tell(self, problem: PipecdError | None) -> None:
        self.problem = problem
        waiting, self._changed = self._changed, asyncio.Event()
        waiting.set()
