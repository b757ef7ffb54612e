# SPDX-License-Identifier: Apache-2.0
"""How cached facts of the control plane are refreshed, and what an outage logs."""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable

import structlog

from pipecd.model.errors import PipecdError
from pipecd.piped.cache.changes import Changes, Watch

log: structlog.stdlib.BoundLogger = structlog.get_logger()

# The resync interval while the wake-up stream is up, in seconds: a random number in between.
RESYNC = (120.0, 300.0)
# Wake-ups that arrive within this many seconds share one poll.
_DEBOUNCE = 0.05
# After a poll that failed the next one follows within this many seconds.
_RETRY_SECONDS = 5.0


class RefreshSchedule:
    """Decides when to poll again.

    Without the wake-up stream it polls at the interval of upstream's piped. With the stream it
    polls when the control plane says so, and every few minutes as a safety net.
    """

    def __init__(
        self,
        interval: float,
        *,
        resync: tuple[float, float] = RESYNC,
        chance: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._interval, self._resync, self._chance = interval, resync, chance
        self._requested = Watch()
        self.wakeups = Changes()
        self._is_streaming = False
        self._last = float("-inf")

    def refresh_soon(self) -> None:
        """Requests a poll without waiting for it."""
        self._requested.mark()

    def wake(self) -> None:
        """Handles a wake-up: the control plane has something new."""
        self.wakeups.notify()
        self.refresh_soon()

    def set_streaming(self, is_up: bool) -> None:
        """The wake-up stream came up or went down; either way wake-ups may have been missed."""
        self._is_streaming = is_up
        self._requested.mark()

    async def wait(self, *, after_failure: bool = False) -> None:
        """Returns when it is time to poll again; soon, if the last poll failed."""
        loop = asyncio.get_running_loop()
        interval = self._interval
        if after_failure:
            interval = min(interval, self._chance(_RETRY_SECONDS / 2, _RETRY_SECONDS))
        elif self._is_streaming:
            interval = max(interval, self._chance(*self._resync))
        await self._requested.wait(interval)
        await asyncio.sleep(max(0.0, self._last + _DEBOUNCE - loop.time()))
        self._last = loop.time()


class OutageLog:
    """Logs once that polls or reports of one kind fail, and once that they work again."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._error: type[PipecdError] | None = None

    def failed(self, error: PipecdError) -> None:
        """Logs a failure, unless the last one was of the same kind."""
        if self._error is not type(error):
            self._error = type(error)
            log.warning(
                "control plane unavailable, using cached data",
                resource=self._resource,
                error=str(error),
            )

    def succeeded(self) -> None:
        """Logs the end of an outage, if there was one."""
        if self._error is not None:
            self._error = None
            log.info("control plane available again", resource=self._resource)


class PolledCache(ABC):
    """A copy of something in the control plane, refreshed by polling."""

    def __init__(self, resource: str, *, interval: float) -> None:
        self.schedule = RefreshSchedule(interval)
        self.changes = Changes()
        self._outage = OutageLog(resource)
        self._loaded = asyncio.Event()
        self._polls_started = 0
        self._poll_count = 0
        # The number of the poll that returned the copy, of all polls that were started.
        self._copied_by = 0
        self._copied = asyncio.Condition()

    @property
    def poll_count(self) -> int:
        """How many polls have succeeded, which distinguishes a newer copy from an older one."""
        return self._poll_count

    @abstractmethod
    async def poll(self) -> bool:
        """Replaces the copy and returns whether it changed."""

    def refresh_soon(self) -> None:
        """Requests a new copy without waiting for it."""
        self.schedule.refresh_soon()

    async def refresh(self) -> None:
        """Requests a new copy and waits for it."""
        number = self._polls_started + 1
        self.schedule.refresh_soon()
        async with self._copied:
            await self._copied.wait_for(lambda: self._copied_by >= number)

    async def wait_until_loaded(self) -> None:
        """Waits for the first copy."""
        await self._loaded.wait()

    async def run(self) -> None:
        while True:
            self._polls_started += 1
            has_failed = False
            try:
                is_changed = await self.poll()
            except PipecdError as e:
                has_failed = True
                self._outage.failed(e)
            else:
                self._outage.succeeded()
                self._poll_count += 1
                if is_changed or not self._loaded.is_set():
                    self.changes.notify()
                self._loaded.set()
                async with self._copied:
                    self._copied_by = self._polls_started
                    self._copied.notify_all()
            await self.schedule.wait(after_failure=has_failed)
