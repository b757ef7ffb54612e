# SPDX-License-Identifier: Apache-2.0
"""All applications of a supervisor: stored, measured and reported together."""

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

from pipecd.plugins.process import logs, programs
from pipecd.plugins.process.application import SupervisedApplication
from pipecd.plugins.process.desired import LOOPBACK, DesiredApplication
from pipecd.plugins.process.instance import ApplicationStatus, StatusPage
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
_STORE_AGAIN_SECONDS = 1.0


class CannotStore(Exception):
    """The state cannot be stored; the text says why and what to do."""


class Supervisor:
    """All applications of a directory."""

    def __init__(self, directory: SupervisorDirectory) -> None:
        self.directory = directory
        self.router = Router()
        self.applications: dict[str, SupervisedApplication] = {}
        self.status_page = StatusPage()
        self.version = code_version()
        self.ended = asyncio.Event()
        self.has_handed_over = False
        self._trusted_proxies = LOOPBACK
        self._changes = 0
        self._changed = asyncio.Condition()
        self._reported = self._stored = 0
        self._storing_error = ""
        self._dirty = asyncio.Event()
        self._is_closing = False
        self._samples: dict[int, tuple[float, programs.Sample]] = {}
        self._saving: asyncio.Task[None] | None = None
        self._measuring: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def start(self, sockets: Mapping[str, socket.socket]) -> None:
        """Continues what the state file says; `sockets` are those of a former supervisor."""
        state = self.directory.load()
        self.status_page = StatusPage(state.status_port)
        self._trust(state.trusted_proxies)
        unused = dict(sockets)
        for stored in state.applications:
            application = self._create(stored)
            if stored.listener is not None:
                sock = unused.pop(application.endpoint.name(stored.listener), None)
                if sock is not None:
                    application.endpoint.take_over(stored.listener, sock)
            application.start()
        for sock in unused.values():
            # Connections to a socket that nobody listens to would wait for ever.
            sock.close()
        self._end_unknown_programs()
        self._saving = asyncio.create_task(self._save_changes())
        self._measuring = asyncio.create_task(self._measure())

    async def apply(self, desired: DesiredApplication) -> None:
        """Stores what shall run of an application and begins to make it so.

        What cannot be stored is taken back: the next supervisor would not know of it.
        """
        application = self.applications.get(desired.id)
        if application is None:
            before = DesiredApplication(desired.id, desired.name)
            application = self._create(StoredApplication(desired))
            application.start()
        else:
            before = application.desired
            application.apply(desired)
        try:
            await self.save()
        except CannotStore:
            application.apply(before)
            self._on_change()
            raise

    async def configure(self, status_port: int, trusted_proxies: tuple[str, ...]) -> None:
        """Stores the port of the status page, and the networks whose claims the router believes."""
        if (status_port, trusted_proxies) == (self.status_page.port, self._trusted_proxies):
            return
        self._trust(trusted_proxies)
        if status_port != self.status_page.port:
            self.status_page = StatusPage(status_port)
        await self.save()

    def _trust(self, proxies: tuple[str, ...]) -> None:
        self.router.trust(tuple(ip_network(each) for each in proxies))
        self._trusted_proxies = proxies

    def report_status_page(self, page: StatusPage) -> None:
        """Takes whether the status page can be served."""
        if page.port == self.status_page.port and page != self.status_page:
            self.status_page = page
            self._on_change()

    async def save(self) -> None:
        """Returns when everything until now is stored; raises CannotStore."""
        self._on_change()
        wanted = self._changes
        async with self._changed:
            await self._changed.wait_for(lambda: self._reported >= wanted)
            if self._stored < wanted:
                raise CannotStore(
                    f"what shall run cannot be stored: {self._storing_error}; free space in "
                    f"{self.directory.control}, or make it writable"
                )

    def statuses(self) -> list[ApplicationStatus]:
        """Returns what runs."""
        page = self.status_page if self.status_page.port else None
        return [replace(each.status(), status_page=page) for each in self.applications.values()]

    def find(self, name: str) -> SupervisedApplication | None:
        """Returns the application with an id or a name."""
        by_name = (a for a in self.applications.values() if a.desired.name == name)
        return self.applications.get(name) or next(by_name, None)

    async def next_change(self, seen: int) -> int:
        """Waits for a change after the one that was seen; returns its number."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._reported > seen)
            return self._reported

    async def shut_down(self) -> None:
        """Ends all programs and then the supervisor; the next one starts them again."""
        stored = tuple(replace(each, instances=()) for each in self._state().applications)
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
        try:
            state = StoredState(stored, self.status_page.port, self._trusted_proxies)
            await asyncio.to_thread(self.directory.save, state)
        except OSError as e:
            logger.warning("the state cannot be stored: %s", e)
        self.ended.set()

    async def hand_over(self, send: Callable[[Mapping[str, socket.socket]], None]) -> None:
        """Sends the listening sockets to the next supervisor, which waits for the lock, and ends.

        If they cannot be sent, nothing has changed.
        """
        await self.save()
        send(self.router.sockets())
        self.has_handed_over = True
        await self.close()
        self.ended.set()

    async def close(self) -> None:
        """Stops to supervise, and stores the last changes; programs go on."""
        if self._measuring is not None:
            self._measuring.cancel()
            await asyncio.wait({self._measuring})
        for application in self.applications.values():
            await application.stop()
        self._is_closing = True
        self._dirty.set()
        if self._saving is not None:
            await asyncio.wait({self._saving})

    def _create(self, stored: StoredApplication) -> SupervisedApplication:
        id = stored.desired.id
        application = SupervisedApplication(
            stored,
            owner=self.directory.path,
            directory=self.directory.application(id),
            router=self.router,
            on_change=self._on_change,
        )
        self.applications[id] = application
        return application

    def _state(self) -> StoredState:
        stored = tuple(application.stored() for application in self.applications.values())
        return StoredState(stored, self.status_page.port, self._trusted_proxies)

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
        while not self._is_closing:
            await self._wait_for_change()
            self._dirty.clear()
            for id in [id for id, a in self.applications.items() if a.is_gone]:
                await self.applications.pop(id).stop()
            changes = self._changes
            try:
                await asyncio.to_thread(self.directory.save, self._state())
            except OSError as e:
                if not self._storing_error:
                    logger.exception("the state cannot be stored")
                self._storing_error = e.strerror or str(e)
            else:
                self._stored, self._storing_error = changes, ""
            async with self._changed:
                self._reported = changes
                self._changed.notify_all()

    async def _wait_for_change(self) -> None:
        """Waits for a change, or until what could not be stored is tried again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_STORE_AGAIN_SECONDS if self._storing_error else None):
                await self._dirty.wait()

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
