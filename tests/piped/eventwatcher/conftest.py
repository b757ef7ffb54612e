# SPDX-License-Identifier: Apache-2.0
"""An event watcher at work on real repositories, for a real control plane."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipecd.config.catalog import load_catalog
from pipecd.config.piped import EventWatcherRepoSpec
from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.events import EventFilter
from pipecd.git.credentials import GitCredentials
from pipecd.git.mirror import Repository, open_mirrors
from pipecd.model.clock import Now, utc_now
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.wakeups import WakeupStream
from pipecd.piped.eventwatcher.definitions import DefinitionReader
from pipecd.piped.eventwatcher.event_queue import EventQueue
from pipecd.piped.eventwatcher.repository_updater import (
    EventWatcher,
    RepositoryUpdater,
    UpdaterContext,
)
from pipecd.piped.source.configs import ApplicationConfigs
from pipecd.proto.model import event_pb2
from pipecd.proto.model.event_pb2 import Event
from pipecd.proto.service.api_pb2 import RegisterEventRequest
from pipecd.proto.service.wakeups_pb2 import Wakeup
from servers.origin import NewOrigin
from servers.polling import eventually

_POLL = 300.0


@dataclass
class Registry:
    """Where a pipeline tells of what it built, and reads what became of it."""

    plane: Any

    async def register(self, name: str, data: str, **further: Any) -> str:
        request = RegisterEventRequest(name=name, data=data, **further)
        return await self.plane.cases.events.register(request, by=self.plane.admin)

    async def all(self) -> dict[str, Event]:
        by: User = self.plane.admin
        listed = await self.plane.cases.events.list(EventFilter(project=by.project), by=by)
        return {event.id: event for event in listed.items}

    async def ended(self, id_: str, at_most: float = 20) -> Event:
        async def look() -> Event | None:
            event = await self.plane.cases.events._stores.events.get(id_)
            return event if event.status != event_pb2.EVENT_NOT_HANDLED else None

        return await eventually(look, at_most)

    async def succeeded(self, id_: str) -> str:
        event = await self.ended(id_)
        assert event.status == event_pb2.EVENT_SUCCESS, event.status_description
        return event.status_description

    async def failed(self, id_: str) -> str:
        event = await self.ended(id_)
        assert event.status == event_pb2.EVENT_FAILURE, event.status_description
        return event.status_description


@pytest.fixture
def registry_of() -> Callable[[Any], Registry]:
    return Registry


@pytest.fixture
def shop(new_origin: NewOrigin) -> Any:
    """A repository that piped may push to."""
    origin = new_origin("shop")
    origin.git("config", "receive.denyCurrentBranch", "updateInstead")
    return origin


@pytest.fixture
def watching(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[EventQueue]]:
    """Runs an event watcher: `async with watching(plane, {"site": remote})`."""

    @asynccontextmanager
    async def watch(
        plane: Any,
        remotes: Mapping[str, str],
        *,
        settings: EventWatcherRepoSpec | None = None,
        credentials: GitCredentials | None = None,
        directory: str = "mirrors",
        is_woken: bool = True,
        now: Now = utc_now,
    ) -> AsyncGenerator[EventQueue, None]:
        repositories = [Repository(id_, remote, "main") for id_, remote in remotes.items()]
        place = tmp_path / directory
        async with (
            plane.piped.api() as api,
            open_mirrors(
                repositories, directory=place, credentials=credentials or GitCredentials()
            ) as mirrors,
        ):
            applications, heads = ApplicationCache(api), RepositoryHeads(mirrors)
            configs, queue = (
                ApplicationConfigs(load_catalog()),
                EventQueue(api, every=_POLL, now=now),
            )
            context = UpdaterContext(queue=queue, heads=heads, applications=applications)
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
                parts = (applications, heads, watcher, *([wakeups] if is_woken else []))
                running = [tasks.create_task(part.run()) for part in parts]
                yield queue
                for task in running:
                    task.cancel()

    return watch
