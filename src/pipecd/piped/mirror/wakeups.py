# SPDX-License-Identifier: Apache-2.0
"""Keeps the stream of wake-ups and tells the mirrors where to look."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

import structlog

from pipecd.model.backoff import STREAM_UNSUPPORTED_RETRY_SECONDS, Backoff
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.piped.mirror.pace import Pace
from pipecd.piped.mirror.trouble import Trouble
from pipecd.proto.service.wakeups_pb2 import Wakeup

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_BACKOFF = Backoff(first=1.0, longest=30.0)
# A proxy cuts streams as it likes; one that lasted this long was worth reopening at once.
_LASTED = 1.0


class Repositories(Protocol):
    """Those who look at Git."""

    def look_soon(self, repository_id: str) -> None: ...

    def streaming(self, is_up: bool) -> None: ...


class WakeupStream:
    """One stream for the whole piped; while it is down everyone polls."""

    def __init__(
        self,
        api: ControlPlaneClient,
        *,
        paces: Mapping["Wakeup.Kind.ValueType", Sequence[Pace]],
        repositories: Repositories,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._api, self._chance = api, chance
        self._paces, self._repositories = paces, repositories
        self._is_up = False
        self._trouble = Trouble("wake-ups")

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            pause = 0.0
            try:
                await self._follow()
                log.debug("wake-up stream ended")
            except Unsupported:
                log.info("this control plane has no wake-ups, polling instead")
                pause = STREAM_UNSUPPORTED_RETRY_SECONDS
            except PipecdError as e:
                self._trouble.met(e)
            finally:
                self._set(False)
            failures = 0 if loop.time() - started > _LASTED else failures + 1
            if failures and not pause:
                pause = self._chance() * _BACKOFF.after(failures)
            await asyncio.sleep(pause)

    async def _follow(self) -> None:
        async with aclosing(self._api.watch_wakeups()) as wakeups:
            async for wakeup in wakeups:
                if not self._is_up:
                    self._trouble.over()
                    self._set(True)
                if wakeup.kind == Wakeup.REPOSITORY:
                    self._repositories.look_soon(wakeup.repository)
                for pace in self._paces.get(wakeup.kind, ()):
                    pace.woken()

    def _set(self, is_up: bool) -> None:
        if self._is_up == is_up:
            return
        self._is_up = is_up
        for pace in {id(pace): pace for each in self._paces.values() for pace in each}.values():
            pace.streaming(is_up)
        self._repositories.streaming(is_up)
