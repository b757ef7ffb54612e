# SPDX-License-Identifier: Apache-2.0
"""Runs each job on one replica only: the one that holds the job's lease.

A lease is short and renewed all the time, so that another replica takes over soon after one died. A
replica that cannot renew a lease stops the job before the lease expires.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.jobs.schedule import Schedule
from pipecd.model.clock import Now, utc_now
from pipecd.model.errors import PipecdError

log = structlog.get_logger()

LEASE_SECONDS = 60.0
# Users wait for a controller, so that another replica continues it soon after one died.
CONTROLLER_LEASE_SECONDS = 9.0
RETRY_AFTER = timedelta(minutes=5)
# After the clock was set or the machine was suspended, a job that is due starts this soon.
MAX_SLEEP_SECONDS = 60.0


@dataclass(frozen=True)
class ContinuousJob:
    """A controller that runs until it is cancelled."""

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class PeriodicJob:
    """Work that is done when the job starts, and then on a schedule."""

    name: str
    schedule: Schedule
    work: Callable[[], Awaitable[object]]


Job = ContinuousJob | PeriodicJob


class JobMetrics:
    """Counts the runs of each job, and when it last succeeded."""

    def __init__(self, registry: CollectorRegistry, component: str) -> None:
        self._component = component
        labels = ("pipecd_component", "job")
        self._runs = Counter(
            "pipecd_job_runs",
            "Runs of background jobs by result.",
            (*labels, "result"),
            registry=registry,
        )
        self._last_success = Gauge(
            "pipecd_job_last_success_timestamp_seconds",
            "When a background job last succeeded.",
            labels,
            registry=registry,
        )

    def succeeded(self, job: str) -> None:
        self._runs.labels(self._component, job, "success").inc()
        self._last_success.labels(self._component, job).set_to_current_time()

    def failed(self, job: str) -> None:
        self._runs.labels(self._component, job, "failure").inc()


async def run_jobs(
    leases: Leases, holder: str, jobs: Sequence[Job], *, metrics: JobMetrics | None = None
) -> None:
    """Runs the jobs whose leases this replica acquires, those of controllers with short leases."""
    controllers = [job for job in jobs if isinstance(job, ContinuousJob)]
    periodic = [job for job in jobs if isinstance(job, PeriodicJob)]
    async with asyncio.TaskGroup() as tasks:
        for some, seconds in ((controllers, CONTROLLER_LEASE_SECONDS), (periodic, LEASE_SECONDS)):
            runner = JobRunner(leases, holder, some, metrics=metrics, lease_seconds=seconds)
            tasks.create_task(runner.run())


class JobRunner:
    """Runs the jobs whose leases this replica, the `holder`, acquires."""

    def __init__(
        self,
        leases: Leases,
        holder: str,
        jobs: Sequence[Job],
        *,
        metrics: JobMetrics | None = None,
        lease_seconds: float = LEASE_SECONDS,
        now: Now = utc_now,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._leases, self._holder, self._jobs = leases, holder, jobs
        self._metrics, self._lease_seconds = metrics, lease_seconds
        self._now, self._sleep = now, sleep
        self._held_until: dict[str, float] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self.renew_leases(tasks)
                    await asyncio.sleep(self._lease_seconds / 3)
        finally:
            await asyncio.shield(self._release_leases())

    async def renew_leases(self, tasks: asyncio.TaskGroup) -> None:
        """Acquires and renews leases; starts jobs with a lease and stops jobs without one."""
        held = await asyncio.gather(*(self._acquire(job.name) for job in self._jobs))
        for job, is_held in zip(self._jobs, held, strict=True):
            running = self._running.get(job.name)
            if is_held and running is None:
                run = self.run_periodic(job) if isinstance(job, PeriodicJob) else job.run()
                self._running[job.name] = tasks.create_task(run, name=job.name)
            elif not is_held and running is not None:
                running.cancel()
                del self._running[job.name]

    async def run_periodic(self, job: PeriodicJob) -> None:
        """Does the work now and on schedule; a failed run is repeated after `RETRY_AFTER`."""
        while True:
            succeeded = await self.run_once(job)
            due = job.schedule.after(self._now())
            if not succeeded:
                due = min(due, self._now() + RETRY_AFTER)
            while (left := (due - self._now()).total_seconds()) > 0:
                await self._sleep(min(left, MAX_SLEEP_SECONDS))

    async def run_once(self, job: PeriodicJob) -> bool:
        """Does the work once; logs an expected failure and returns False."""
        try:
            await job.work()
        except PipecdError as e:
            log.warning("job failed, retrying later", job=job.name, error=str(e))
            if self._metrics:
                self._metrics.failed(job.name)
            return False
        if self._metrics:
            self._metrics.succeeded(job.name)
        return True

    async def _acquire(self, job: str) -> bool:
        clock = asyncio.get_running_loop().time
        requested_at = clock()
        try:
            is_held = await self._leases.acquire(job, self._holder, seconds=self._lease_seconds)
        except PipecdError as e:
            log.warning("cannot renew the lease of a job", job=job, error=str(e))
            # The lease is still ours until it expires; the next renewal must come before that.
            return self._held_until.get(job, 0.0) > clock() + self._lease_seconds / 3
        if is_held:
            self._held_until[job] = requested_at + self._lease_seconds
        else:
            self._held_until.pop(job, None)
        return is_held

    async def _release_leases(self) -> None:
        for job in self._held_until:
            with suppress(PipecdError):
                await self._leases.release(job, self._holder)
