# SPDX-License-Identifier: Apache-2.0
"""Keeps an eye on every application of this piped."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from pipecd.git.mirror import Mirrors
from pipecd.piped.cache.applications import ApplicationCache
from pipecd.piped.cache.changes import watch_any
from pipecd.piped.livestate.watcher import Tools, Watcher
from pipecd.proto.model.application_pb2 import Application

_EVERY = 60.0
_GRACE = 5.0


@dataclass(frozen=True)
class _Post:
    """A watcher at work."""

    watcher: Watcher
    task: asyncio.Task[None]


@dataclass(kw_only=True)
class LiveStates:
    """Watches each application in a task of its own, so that a slow one holds up no other."""

    applications: ApplicationCache
    mirrors: Mirrors
    tools: Tools
    _posts: dict[str, _Post] = field(init=False, default_factory=dict[str, _Post])
    _open: dict[str, frozenset[str]] = field(init=False, default_factory=dict[str, frozenset[str]])
    """The deployments under way when the watchers last heard of them."""

    def changed(self, application_ids: Collection[str]) -> None:
        """A plugin says that something else runs for these applications."""
        for id_ in application_ids:
            if (post := self._posts.get(id_)) is not None:
                post.watcher.ask()

    async def run(self) -> None:
        await self.tools.grounds.forget_all()
        await self.applications.wait_until_loaded()
        await self.tools.deployments.wait_until_loaded()
        watch = watch_any(self.applications.changes, self.tools.deployments.changes)
        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._follow_applications(tasks)
                self._follow_deployments()
                await watch.wait(_EVERY)

    async def _follow_applications(self, tasks: asyncio.TaskGroup) -> None:
        """One watcher for every application whose repository is known here."""
        wanted = {a.id: a for a in self.applications.all if a.git_path.repo.id in self.mirrors}
        for id_, post in list(self._posts.items()):
            application = wanted.get(id_)
            if application is None or _has_moved_house(post.watcher, application):
                del self._posts[id_]
                post.task.cancel()
                # A plugin that does not want to end keeps nobody waiting.
                await asyncio.wait({post.task}, timeout=_GRACE)
                await self.tools.grounds.forget(id_)
            else:
                post.watcher.renew(application)
        for id_, application in wanted.items():
            if id_ not in self._posts:
                watcher = Watcher(application, self.tools)
                task = tasks.create_task(watcher.run(), name=f"live state of {id_}")
                self._posts[id_] = _Post(watcher, task)

    def _follow_deployments(self) -> None:
        """A deployment that began or ended is a reason to look."""
        for id_, post in self._posts.items():
            now = self.tools.deployments.not_completed_of(id_)
            if now != self._open.get(id_, frozenset()):
                self._open[id_] = now
                post.watcher.ask()
        for gone in self._open.keys() - self._posts:
            del self._open[gone]


def _has_moved_house(watcher: Watcher, application: Application) -> bool:
    return watcher.application.git_path.repo.id != application.git_path.repo.id
