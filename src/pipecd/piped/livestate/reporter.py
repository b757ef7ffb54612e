# SPDX-License-Identifier: Apache-2.0
"""Reports the live state and drift of every application of this piped."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from pipecd.git.mirror import Mirrors
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import Watch
from pipecd.piped.livestate.watcher import ApplicationWatcher, WatcherContext

_REFRESH_INTERVAL = 60.0
_CANCEL_TIMEOUT = 5.0


@dataclass(frozen=True)
class _RunningWatcher:
    watcher: ApplicationWatcher
    task: asyncio.Task[None]


@dataclass(kw_only=True)
class LiveStateReporter:
    """Watches each application in a task of its own, so that a slow one delays no other."""

    applications: ApplicationCache
    mirrors: Mirrors
    context: WatcherContext
    _running: dict[str, _RunningWatcher] = field(
        init=False, default_factory=dict[str, _RunningWatcher]
    )

    def changed(self, application_ids: Collection[str]) -> None:
        """The live state of these applications may have changed, for example as a plugin pushes."""
        for id_ in application_ids:
            if (running := self._running.get(id_)) is not None:
                running.watcher.refresh_soon()

    async def run(self) -> None:
        await self.context.desired_states.remove_all()
        await self.applications.wait_until_loaded()
        await self.context.deployments.wait_until_loaded()
        wakeup, applications = Watch(), self.applications.changes.watch()
        self.applications.changes.add(wakeup)
        deployed = self.context.deployments.changed_applications.watch(wakeup)
        is_woken = False
        async with asyncio.TaskGroup() as tasks:
            while True:
                if applications.taken() or not is_woken:
                    await self._update_watchers(tasks)
                # Applications whose deployments started or completed are read at once.
                self.changed(deployed.taken())
                is_woken = await wakeup.wait(_REFRESH_INTERVAL)

    async def _update_watchers(self, tasks: asyncio.TaskGroup) -> None:
        """Runs one watcher for every application whose repository is configured."""
        watched = {a.id: a for a in self.applications.all if a.git_path.repo.id in self.mirrors}
        for id_, running in list(self._running.items()):
            application, before = watched.get(id_), running.watcher.application
            if application is None or application.git_path.repo.id != before.git_path.repo.id:
                del self._running[id_]
                running.task.cancel()
                # A plugin that ignores the cancellation delays no other application.
                await asyncio.wait({running.task}, timeout=_CANCEL_TIMEOUT)
                await self.context.desired_states.remove(id_)
            else:
                running.watcher.update(application)
        for id_, application in watched.items():
            if id_ not in self._running:
                watcher = ApplicationWatcher(application, self.context)
                task = tasks.create_task(watcher.run(), name=f"live state of {application.name}")
                self._running[id_] = _RunningWatcher(watcher, task)
