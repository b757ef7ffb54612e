# SPDX-License-Identifier: Apache-2.0
"""What an analysis remembers: how far it has come, and when the last good one began.

The first is kept with the stage, so that a restart goes on from there, the other with the
application.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from pipecd.sdk import ApplicationObjects, Duration, PipecdError, StageMetadata

ELAPSED, FAILURES = "elapsedTime", "failures"
PREVIOUS_RESULT = "latest-analysis-result"
_SAVE_EVERY = 1.0
_LAST_SAVE_SECONDS = 5.0


class Course:
    """The time that has passed and the failures so far."""

    def __init__(
        self,
        metadata: StageMetadata,
        duration: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.duration = duration
        self._metadata, self._clock = metadata, clock
        self.resumed_at = 0.0
        self._begun = clock()
        self._failures: dict[str, int] = {}
        self._news = asyncio.Event()

    @property
    def elapsed(self) -> float:
        """How many seconds of the analysis are over, without those that piped was away."""
        return self._clock() - self._begun

    async def begin(self) -> None:
        """Starts the clock, from where an earlier life of piped left off if there was one."""
        self.resumed_at = _duration(await self._metadata.get(ELAPSED))
        self._failures = _counts(await self._metadata.get(FAILURES))
        self._begun = self._clock() - self.resumed_at

    def looks(self, interval: float) -> "Looks":
        """The times at which a check of this interval is due."""
        return Looks(self, interval)

    async def until(self, elapsed: float) -> None:
        """Waits until so much time is over."""
        await asyncio.sleep(max(elapsed - self.elapsed, 0))

    def failed(self, check: str) -> int:
        """Counts a failure of a check and tells how many it has."""
        self._failures[check] = self._failures.get(check, 0) + 1
        return self._failures[check]

    def looked(self) -> None:
        """A check was looked at: worth to be remembered."""
        self._news.set()

    @asynccontextmanager
    async def kept(self) -> AsyncGenerator[None, None]:
        """Saves how far it has come while the block runs, and once more however it ends."""
        async with asyncio.TaskGroup() as tasks:
            saving = tasks.create_task(self._keep_saving(), name="course of an analysis")
            try:
                yield
            finally:
                saving.cancel()
                # A stage that was stopped must not wait for a control plane that is away.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_SAVE_SECONDS):
                        await self._save()

    async def _keep_saving(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            await self._save()
            await asyncio.sleep(_SAVE_EVERY)

    async def _save(self) -> None:
        elapsed = Duration(round(self.elapsed, 3))
        values = {ELAPSED: str(elapsed)}
        if self._failures:
            values[FAILURES] = json.dumps(self._failures)
        # What cannot be saved now is saved after the next look.
        with suppress(PipecdError):
            await self._metadata.put(values)


class Looks:
    """The times at which a check is due: after every interval, the end included."""

    def __init__(self, course: Course, interval: float) -> None:
        self._course, self._interval = course, interval
        self._done = math.floor(course.resumed_at / interval)

    def __aiter__(self) -> "Looks":
        return self

    async def __anext__(self) -> None:
        number = next_look(
            self._done,
            self._course.elapsed / self._interval,
            self._course.duration / self._interval,
        )
        if number is None:
            raise StopAsyncIteration
        self._done = number
        await self._course.until(number * self._interval)


def next_look(done: int, elapsed: float, duration: float) -> int | None:
    """The number of the next look, with the times counted in intervals.

    Looks that were missed while another one took its time are made up for by one.
    """
    # A sum of tenths is rarely a whole number of them.
    last = math.floor(duration + 0.001)
    if done >= last:
        return None
    return min(max(done + 1, math.floor(elapsed)), last)


def _duration(text: str | None) -> float:
    with suppress(ValueError):
        return max(Duration.parse(text or "0s"), 0.0)
    return 0.0


def _counts(text: str | None) -> dict[str, int]:
    with suppress(ValueError, AttributeError):
        kept: dict[str, Any] = json.loads(text or "{}")
        return {check: int(count) for check, count in kept.items()}
    return {}


async def read_previous(objects: ApplicationObjects) -> int | None:
    """The Unix time, None if there was no analysis or what was kept cannot be understood."""
    try:
        return int(json.loads(await objects.get(PREVIOUS_RESULT) or b"")["start_time"])
    except (ValueError, KeyError, TypeError):
        return None


async def write_previous(objects: ApplicationObjects, begun: float) -> None:
    """Keeps the time for the next analysis."""
    await objects.put(PREVIOUS_RESULT, json.dumps({"start_time": int(begun)}).encode())
