# SPDX-License-Identifier: Apache-2.0
"""Runs each job on one replica only: wherever its lease is held.

A lease is short and renewed all the time, so that another replica takes over soon after one has
died. Whoever cannot renew a lease ends the job before the lease runs out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog

from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.jobs.metrics import JobMetrics
from pipecd.controlplane.jobs.schedule import Schedule
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import PipecdError

log = structlog.get_logger()

TERM_SECONDS = 60.0
RETRY_AFTER = timedelta(minutes=5)
# A clock that is set or a machine that slept is noticed this soon.
LONGEST_NAP_SECONDS = 60.0

Nap = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Job:
    """Some work that goes on until it is cancelled, on the replica that holds its lease."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Pace:
    """The clock of a job, how it waits, and who counts its runs."""

    metrics: JobMetrics | None = None
    now: Now = utc_now
    nap: Nap = asyncio.sleep


REAL_TIME = Pace()


def periodic(
    name: str, schedule: Schedule, work: Callable[[], Awaitable[object]], pace: Pace = REAL_TIME
) -> Job:
    """A job that works as soon as it may and then whenever its schedule says."""

    async def run() -> None:
        while True:
            done = await attempt(name, work, pace.metrics)
            due = schedule.after(pace.now())
            if not done:
                due = min(due, pace.now() + RETRY_AFTER)
            while (left := (due - pace.now()).total_seconds()) > 0:
                await pace.nap(min(left, LONGEST_NAP_SECONDS))

    return Job(name, run)


async def attempt(
    name: str, work: Callable[[], Awaitable[object]], metrics: JobMetrics | None = None
) -> bool:
    """Does the work once; an expected failure is logged and left to the next turn."""
    try:
        await work()
    except PipecdError as e:
        log.warning("job failed, trying again later", job=name, error=str(e))
        if metrics:
            metrics.failed(name)
        return False
    if metrics:
        metrics.succeeded(name)
    return True


class Upkeep:
    """The jobs of one replica."""

    def __init__(
        self, leases: Leases, holder: str, jobs: Sequence[Job], *, term: float = TERM_SECONDS
    ) -> None:
        self._leases, self._holder, self._jobs, self._term = leases, holder, jobs, term
        self._until: dict[str, float] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as jobs:
                while True:
                    await self.beat(jobs)
                    await asyncio.sleep(self._term / 3)
        finally:
            await asyncio.shield(self._release())

    async def beat(self, jobs: asyncio.TaskGroup) -> None:
        """Takes and renews leases; starts what may run here and ends what may not any longer."""
        held = await asyncio.gather(*(self._hold(job.name) for job in self._jobs))
        for job, is_held in zip(self._jobs, held, strict=True):
            running = self._running.get(job.name)
            if is_held and (running is None):
                self._running[job.name] = jobs.create_task(job.run(), name=job.name)
            elif not is_held and running is not None:
                running.cancel()
                del self._running[job.name]

    async def _hold(self, name: str) -> bool:
        clock = asyncio.get_running_loop().time
        asked_at = clock()
        try:
            is_held = await self._leases.acquire(name, self._holder, seconds=self._term)
        except PipecdError as e:
            log.warning("lease not renewed", job=name, error=str(e))
            # It is still ours until it runs out; the next beat must come before that.
            return self._until.get(name, 0.0) > clock() + self._term / 3
        if is_held:
            self._until[name] = asked_at + self._term
        else:
            self._until.pop(name, None)
        return is_held

    async def _release(self) -> None:
        for name in self._until:
            with suppress(PipecdError):
                await self._leases.release(name, self._holder)
