# SPDX-License-Identifier: Apache-2.0
"""Follows the wake-up stream of the control plane and wakes what has to poll."""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType

import structlog

from pipecd.model.backoff import STREAM_UNSUPPORTED_RETRY_SECONDS, Backoff
from pipecd.model.errors import PipecdError, Unsupported
from pipecd.piped.cache.heads import RepositoryHeads
from pipecd.piped.cache.refresh import OutageLog, RefreshSchedule
from pipecd.piped.control_plane_client import ControlPlaneClient
from pipecd.proto.service.wakeups_pb2 import Wakeup

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_BACKOFF = Backoff(first=1.0, longest=30.0)
# The stream is opened again at once when another call succeeds, but not more often than this.
_SHORTEST_PAUSE = 2.0
# Proxies cut long streams; one that lasted longer than this is reopened without backoff.
_STABLE_AFTER = 1.0


class WakeupStream:
    """The one wake-up stream of this piped; while it is down, everything polls."""

    def __init__(
        self,
        api: ControlPlaneClient,
        *,
        schedules: Mapping["Wakeup.Kind.ValueType", Sequence[RefreshSchedule]],
        heads: RepositoryHeads,
        handlers: Mapping["Wakeup.Kind.ValueType", Callable[[], None]] = MappingProxyType({}),
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._api, self._chance = api, chance
        self._schedules, self._heads = schedules, heads
        self._handlers = handlers
        self._is_up = False
        self._outage = OutageLog("wake-ups")

    @property
    def is_up(self) -> bool:
        return self._is_up

    async def run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await self._follow()
                log.debug("wake-up stream ended")
            except Unsupported:
                log.info("the control plane has no wake-up stream, polling instead")
                await asyncio.sleep(STREAM_UNSUPPORTED_RETRY_SECONDS)
            except PipecdError as e:
                self._outage.failed(e)
            finally:
                self._set_up(False)
            failures = 0 if loop.time() - started > _STABLE_AFTER else failures + 1
            if failures:
                pause = self._chance() * _BACKOFF.after(failures)
                await self._api.wait_until_available(pause)
                shortest = min(pause, self._chance() * _SHORTEST_PAUSE)
                await asyncio.sleep(max(0.0, started + shortest - loop.time()))

    async def _follow(self) -> None:
        async with aclosing(self._api.watch_wakeups()) as wakeups:
            async for wakeup in wakeups:
                if not self._is_up:
                    self._outage.succeeded()
                    self._set_up(True)
                if wakeup.kind == Wakeup.REPOSITORY:
                    self._heads.push_announced(wakeup.repository)
                if handler := self._handlers.get(wakeup.kind):
                    handler()
                for schedule in self._schedules.get(wakeup.kind, ()):
                    schedule.wake()

    def _set_up(self, is_up: bool) -> None:
        if self._is_up == is_up:
            return
        self._is_up = is_up
        for schedule in {id(s): s for group in self._schedules.values() for s in group}.values():
            schedule.set_streaming(is_up)
        self._heads.set_streaming(is_up)
