# SPDX-License-Identifier: Apache-2.0
"""The progress of an analysis, and the start of the previous one.

The progress is saved in the metadata of the stage, so that it resumes after a restart of piped; the
start of a successful analysis is saved with the application.
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
_SAVE_INTERVAL = 1.0
_LAST_SAVE_TIMEOUT = 5.0


class AnalysisProgress:
    """The elapsed time and the failures of each check."""

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
        self._started_at = clock()
        self._failures: dict[str, int] = {}
        self._changed = asyncio.Event()

    @property
    def elapsed(self) -> float:
        """The seconds that the analysis has run, without the time that piped was down."""
        return self._clock() - self._started_at

    async def start(self) -> None:
        """Starts the clock, at the saved elapsed time after a restart of piped."""
        elapsed, failures = await self._metadata.get(ELAPSED), await self._metadata.get(FAILURES)
        # Values that cannot be parsed are ignored.
        with suppress(ValueError):
            self.resumed_at = max(Duration.parse(elapsed or "0s"), 0.0)
        with suppress(ValueError, AttributeError):
            counts: dict[str, Any] = json.loads(failures or "{}")
            self._failures = {check: int(count) for check, count in counts.items()}
        self._started_at = self._clock() - self.resumed_at

    async def schedule(self, interval: float) -> AsyncGenerator[None, None]:
        """Yields whenever a check is due: after every interval, the last one included."""
        done = math.floor(self.resumed_at / interval)
        while True:
            number = next_check(done, self.elapsed / interval, self.duration / interval)
            if number is None:
                return
            done = number
            await self.wait_until(number * interval)
            yield

    async def wait_until(self, elapsed: float) -> None:
        """Waits until the analysis has run for `elapsed` seconds."""
        await asyncio.sleep(max(elapsed - self.elapsed, 0))

    def failed(self, check: str) -> int:
        """Counts a failure of a check and returns its number of failures."""
        self._failures[check] = self._failures.get(check, 0) + 1
        return self._failures[check]

    def check_completed(self) -> None:
        """Requests a save, because a check ran."""
        self._changed.set()

    @asynccontextmanager
    async def saving(self) -> AsyncGenerator[None, None]:
        """Saves the progress while the block runs, and once more at its end."""
        async with asyncio.TaskGroup() as tasks:
            saving = tasks.create_task(self._save_periodically(), name="analysis progress")
            try:
                yield
            finally:
                saving.cancel()
                # A stopped stage must not wait for an unavailable control plane.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LAST_SAVE_TIMEOUT):
                        await self._save()

    async def _save_periodically(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._save()
            await asyncio.sleep(_SAVE_INTERVAL)

    async def _save(self) -> None:
        elapsed = Duration(round(self.elapsed, 3))
        values = {ELAPSED: str(elapsed)}
        if self._failures:
            values[FAILURES] = json.dumps(self._failures)
        # The next check saves what cannot be saved now.
        with suppress(PipecdError):
            await self._metadata.put(values)


def next_check(done: int, elapsed: float, duration: float) -> int | None:
    """Returns the number of the next run of a check; times are counted in intervals.

    Runs that were missed because one took too long are replaced by a single one.
    """
    # A sum of tenths is rarely a whole number of them.
    last = math.floor(duration + 0.001)
    if done >= last:
        return None
    return min(max(done + 1, math.floor(elapsed)), last)


async def read_previous_start(objects: ApplicationObjects) -> int | None:
    """Returns the Unix time at which the last successful analysis started, None without one."""
    try:
        return int(json.loads(await objects.get(PREVIOUS_RESULT) or b"")["start_time"])
    except (ValueError, KeyError, TypeError):
        return None


async def write_previous_start(objects: ApplicationObjects, started_at: float) -> None:
    """Saves the start of a successful analysis for the next one."""
    await objects.put(PREVIOUS_RESULT, json.dumps({"start_time": int(started_at)}).encode())
