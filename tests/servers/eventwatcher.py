# SPDX-License-Identifier: Apache-2.0
"""The event watcher of a piped between a control plane and repositories."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import EventWatcherRepoSpec
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.clock import Now, utc_now
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.wakeups import WakeupStream
from pipecd.piped.eventwatcher.definitions import DefinitionReader
from pipecd.piped.eventwatcher.event_queue import EventQueue
from pipecd.piped.eventwatcher.pushed_edits import PushedEdits
from pipecd.piped.eventwatcher.repository_updater import (
    EventWatcher,
    RepositoryUpdater,
    UpdaterContext,
)
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.program.workers import WorkerPool
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.wakeups_pb2 import Wakeup
from servers.control_plane import GatedControlPlane
from servers.polling import eventually

_POLL_INTERVAL = 300.0


@dataclass(frozen=True)
class EventClient:
    """Registers events as a CI pipeline does, and reads their statuses."""

    plane: GatedControlPlane

    async def register(self, name: str, data: str, **fields: Any) -> str:
        """Registers an event and returns its id."""
        request = RegisterEventRequest(name=name, data=data, **fields)
        return await self.plane.cases.events.register(request, by=self.plane.admin)

    async def all(self) -> dict[str, Event]:
        """The events of the project by id."""
        admin = self.plane.admin
        listed = await self.plane.cases.events.list(EventFilter(project=admin.project), by=admin)
        return {event.id: event for event in listed.items}

    async def backdate(self, id_: str, seconds: int) -> None:
        """Makes an event older."""

        def change(event: Event) -> None:
            event.created_at -= seconds

        await self.plane.stores.events.update(id_, change)

    async def handled(self, id_: str, within: float = 20) -> Event:
        """The event, once it is handled."""
        return await eventually(partial(self._if_handled, id_), within)

    async def _if_handled(self, id_: str) -> Event | None:
        event = await self.plane.stores.events.get(id_)
        return event if event.status != event_pb2.EVENT_NOT_HANDLED else None

    async def succeeded(self, id_: str) -> str:
        """Waits for the success of an event, and returns the description."""
        event = await self.handled(id_)
        assert event.status == event_pb2.EVENT_SUCCESS, event.status_description
        return event.status_description

    async def failed(self, id_: str) -> str:
        """Waits for the failure of an event, and returns the description."""
        event = await self.handled(id_)
        assert event.status == event_pb2.EVENT_FAILURE, event.status_description
        return event.status_description


@asynccontextmanager
async def watching_events(
    plane: GatedControlPlane,
    remotes: Mapping[str, str],
    *,
    settings: EventWatcherRepoSpec | None = None,
    credentials: GitCredentials | None = None,
    directory: str = "mirrors",
    has_wakeups: bool = True,
    now: Now = utc_now,
) -> AsyncGenerator[EventQueue]:
    """Runs an event watcher for the remotes by repository id; leaving the block stops it."""
    repositories = [Repository(id_, remote, "main") for id_, remote in remotes.items()]
    async with (
        plane.piped.api() as api,
        open_mirrors(
            repositories,
            directory=plane.directory / directory,
            credentials=credentials or GitCredentials(),
        ) as mirrors,
        WorkerPool() as workers,
    ):
        applications, heads = ApplicationCache(api), RepositoryHeads(mirrors)
        configs, queue = (
            ApplicationConfigs(load_catalog()),
            EventQueue(api, interval=_POLL_INTERVAL, now=now),
        )
        context = UpdaterContext(
            queue=queue,
            heads=heads,
            applications=applications,
            workers=workers,
            pushed=PushedEdits(plane.directory / directory / "pushed.json"),
        )
        updaters = [
            RepositoryUpdater(
                mirror,
                DefinitionReader(mirror, configs, settings or EventWatcherRepoSpec()),
                context,
            )
            for mirror in mirrors
        ]
        watcher = EventWatcher(queue, updaters)
        wakeups = WakeupStream(
            api,
            schedules={
                Wakeup.CONNECTED: (watcher.schedule, applications.schedule),
                Wakeup.EVENTS: (watcher.schedule,),
                Wakeup.APPLICATIONS: (applications.schedule,),
            },
            heads=heads,
        )
        async with asyncio.TaskGroup() as tasks:
            components = (applications, heads, watcher, *([wakeups] if has_wakeups else []))
            running = [tasks.create_task(each.run()) for each in components]
            yield queue
            for task in running:
                task.cancel()
