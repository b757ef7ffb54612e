# SPDX-License-Identifier: Apache-2.0
"""All applications of a supervisor: stored, measured and reported together."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pipecd.plugins.process import logs, programs
from pipecd.plugins.process.application import SupervisedApplication
from pipecd.plugins.process.desired import DesiredApplication
from pipecd.plugins.process.instance import ApplicationStatus
from pipecd.plugins.process.release_files import changed_files
from pipecd.plugins.process.router import Router
from pipecd.plugins.process.state_file import (
    StoredApplication,
    StoredState,
    SupervisorDirectory,
    code_version,
)

logger = logging.getLogger("supervisor")

# Limits are watched closely; for people to read it need not be as fresh.
_WATCH_SECONDS, _SAMPLE_SECONDS, _REPORT_SECONDS = 1.0, 5.0, 15.0
_STOP_MARGIN_SECONDS = 5.0


class Supervisor:
    """All applications of a directory."""

    def __init__(self, directory: SupervisorDirectory) -> None:
        self.directory = directory
        self.router = Router()
        self.applications: dict[str, SupervisedApplication] = {}
        self.status_port = 0
        self.status_error = ""
        self.version = code_version()
        self.ended = asyncio.Event()
        self.has_handed_over = False
        self._changes = 0
        self._changed = asyncio.Condition()
        self._saved = 0
        self._dirty = asyncio.Event()
        self._samples: dict[int, tuple[float, programs.Sample]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: asyncio.Task[None] | None = None

    async def start(self, sockets: Mapping[str, socket.socket]) -> None:
        """Continues what the state file says; `sockets` are those of a former supervisor."""
        state = self.directory.load()
        self.status_port = state.status_port
        for stored in state.applications:
            listener = stored.desired.listener
            name = f"{stored.desired.id}@{listener}" if listener else ""
            await self._open(stored, sockets.get(name))
        for name in sockets.keys() - self.router.listeners():
            # Connections to a socket that nobody listens to would wait for ever.
            sockets[name].close()
        self._end_unknown_programs()
        self._tasks = [
            asyncio.create_task(self._save_changes()),
            asyncio.create_task(self._measure()),
        ]

    async def apply(self, desired: DesiredApplication) -> None:
        """Stores what shall run of an application and begins to make it so."""
        application = self.applications.get(desired.id)
        if application is None:
            application = await self._open(StoredApplication(desired))
        else:
            application.apply(desired)
        await self.save()

    async def configure(self, status_port: int) -> None:
        """Stores the port of the status page."""
        if status_port != self.status_port:
            self.status_port = status_port
            await self.save()

    async def save(self) -> None:
        """Returns when everything until now is stored."""
        self._on_change()
        wanted = self._changes
        async with self._changed:
            await self._changed.wait_for(lambda: self._saved >= wanted)

    def statuses(self) -> list[ApplicationStatus]:
        """Returns what runs."""
        return [application.status() for application in self.applications.values()]

    def find(self, name: str) -> SupervisedApplication | None:
        """Returns the application with an id or a name."""
        by_name = (a for a in self.applications.values() if a.desired.name == name)
        return self.applications.get(name) or next(by_name, None)

    async def next_change(self, seen: int) -> int:
        """Waits for a change after the one that was seen; returns its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._saved > seen)
            return self._saved

    async def shut_down(self) -> None:
        """Ends all programs and then the supervisor; the next one starts them again."""
        desired = [application.desired for application in self.applications.values()]
        for application in self.applications.values():
            application.apply(DesiredApplication(application.desired.id, application.desired.name))
        grace = max(
            (i.grace_period for a in self.applications.values() for i in a.instances.values()),
            default=0.0,
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(2 * grace + _STOP_MARGIN_SECONDS):
                seen = 0
                while not all(a.is_gone for a in self.applications.values()):
                    seen = await self.next_change(seen)
        await self.close()
        stored = tuple(StoredApplication(each) for each in desired)
        with suppress(FileNotFoundError):
            await asyncio.to_thread(self.directory.save, StoredState(stored, self.status_port))
        self.ended.set()

    async def hand_over(self) -> Mapping[str, socket.socket]:
        """Stops to supervise; returns the listening sockets for the next supervisor."""
        await self.save()
        await self.close()
        self.has_handed_over = True
        return self.router.sockets()

    async def close(self) -> None:
        """Ends all tasks; programs go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for application in self.applications.values():
            await application.stop()

    async def _open(
        self, stored: StoredApplication, sock: socket.socket | None = None
    ) -> SupervisedApplication:
        id = stored.desired.id
        application = SupervisedApplication(
            stored,
            owner=self.directory.path,
            directory=self.directory.application(id),
            router=self.router,
            on_change=self._on_change,
        )
        self.applications[id] = application
        await application.start(sock)
        return application

    def _end_unknown_programs(self) -> None:
        """Ends programs whose start could not be stored before a supervisor was killed."""
        known = {i.pid for a in self.applications.values() for i in a.instances.values()}
        for pid in programs.find_programs(str(self.directory.path)):
            if pid not in known and pid != os.getpid():
                logger.warning("process %s is not known and is ended", pid)
                programs.signal_program(pid, programs.start_time(pid), signal.SIGKILL)

    def _on_change(self) -> None:
        self._changes += 1
        self._dirty.set()

    async def _save_changes(self) -> None:
        """Stores every change, and then tells those who wait for one."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            for id in [id for id, a in self.applications.items() if a.is_gone]:
                await self.applications.pop(id).stop()
            changes = self._changes
            stored = tuple(application.stored() for application in self.applications.values())
            state = StoredState(stored, self.status_port)
            try:
                await asyncio.to_thread(self.directory.save, state)
            except OSError:
                logger.exception("the state cannot be stored")
            async with self._changed:
                self._saved = changes
                self._changed.notify_all()

    async def _measure(self) -> None:
        """Reads what programs use, rotates logs and looks for changed releases."""
        sampled = reported = time.monotonic()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if not self.directory.lock_file.exists():
                self._begin_to_end()
                return
            now = time.monotonic()
            instances = [
                (application, instance)
                for application in self.applications.values()
                for instance in application.instances.values()
                if instance.pid
            ]
            has_limits = any(i.limits.memory or i.limits.processes for _, i in instances)
            if not instances or not (has_limits or now - sampled >= _SAMPLE_SECONDS):
                continue
            sampled = now
            samples = await asyncio.to_thread(programs.sample, {i.pid for _, i in instances})
            for application, instance in instances:
                taken, before = self._samples.get(instance.pid, (now, programs.Sample()))
                usage = programs.usage_between(before, samples[instance.pid], now - taken)
                application.measured(instance.id, usage)
                if await asyncio.to_thread(logs.rotate, Path(instance.log)):
                    application.truncated(instance.log)
            self._samples = {pid: (now, sample) for pid, sample in samples.items()}
            if now - reported >= _REPORT_SECONDS:
                reported = now
                await self._check_releases()
                self._on_change()

    def _begin_to_end(self) -> None:
        """Ends everything when the directory was removed: nobody could control it any more."""
        logger.warning("the directory was removed")
        self._ending = asyncio.create_task(self.shut_down())

    async def _check_releases(self) -> None:
        for application in [*self.applications.values()]:
            releases = {instance.release for instance in application.instances.values()}
            found: dict[str, tuple[str, ...]] = {}
            for release in releases:
                if changed := await asyncio.to_thread(changed_files, Path(release)):
                    found[release] = changed
            if found != application.changed_files:
                application.changed_files = found
                self._on_change()
