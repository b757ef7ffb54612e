# SPDX-License-Identifier: Apache-2.0
"""Each job runs on exactly one replica."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from pipecd.config.controlplane import InsightCollectorSpec
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs import background_jobs
from pipecd.controlplane.jobs.runner import (
    ContinuousJob,
    JobMetrics,
    JobRunner,
    PeriodicJob,
    run_jobs,
)
from pipecd.controlplane.jobs.schedule import Every, Schedule, parse_schedule
from pipecd.model.clock import Now
from pipecd.model.errors import Unavailable

HOUR = Every(timedelta(hours=1))
# A run of one periodic job needs no leases.
UNUSED_LEASES = cast("Leases", None)


class Replica:
    """A replica with one job that records whether it runs."""

    def __init__(self, leases: Leases, name: str, lease_seconds: float = 60.0) -> None:
        self.is_working, self.started = False, asyncio.Event()
        job = ContinuousJob("job", self._run)
        self.runner = JobRunner(leases, name, [job], lease_seconds=lease_seconds)

    async def _run(self) -> None:
        self.is_working = True
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False

    async def renew(self, jobs: asyncio.TaskGroup) -> bool:
        """Renews the lease; returns whether the job runs."""
        await self.runner.renew_leases(jobs)
        await asyncio.sleep(0)
        return self.is_working


@asynccontextmanager
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that cancels its tasks at the end."""
    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.TaskGroup() as group:
            yield group
            raise _End
    assert ended.group_contains(_End)


class _End(Exception):
    """The end of a test."""


async def test_one_of_two_replicas_runs_the_job(stores: Stores) -> None:
    first, second = Replica(stores.leases, "first"), Replica(stores.leases, "second")
    async with tasks() as jobs:
        for _ in range(3):
            assert [await first.renew(jobs), await second.renew(jobs)] == [True, False]


async def test_another_replica_takes_over_when_the_lease_expires(
    stores: Stores, advance: Callable[[float], None]
) -> None:
    first, second = Replica(stores.leases, "first"), Replica(stores.leases, "second")
    async with tasks() as jobs:
        assert await first.renew(jobs)
        advance(59)
        assert not await second.renew(jobs)
        advance(2)
        assert await second.renew(jobs)
        # The first was only suspended; it stops its job because another holds the lease.
        assert not await first.renew(jobs)
        assert second.is_working


async def test_a_replica_releases_its_leases_at_the_end(stores: Stores) -> None:
    first, second = Replica(stores.leases, "first"), Replica(stores.leases, "second")
    running = asyncio.ensure_future(first.runner.run())
    async with asyncio.timeout(5):
        await first.started.wait()
    running.cancel()
    await asyncio.wait({running})
    assert not first.is_working
    async with tasks() as jobs:
        assert await second.renew(jobs)


async def test_a_controller_is_continued_sooner_than_periodic_work(
    stores: Stores, advance: Callable[[float], None]
) -> None:
    started = asyncio.Event()

    async def work() -> None:
        started.set()

    async def run() -> None:
        await asyncio.Event().wait()

    jobs = [ContinuousJob("controller", run), PeriodicJob("periodic", HOUR, work)]
    async with tasks() as group, asyncio.timeout(5):
        group.create_task(run_jobs(stores.leases, "killed", jobs))
        await started.wait()
        advance(8)
        assert not await stores.leases.acquire("controller", "another", seconds=1)
        advance(2)
        assert await stores.leases.acquire("controller", "another", seconds=1)
        assert not await stores.leases.acquire("periodic", "another", seconds=1)
        advance(51)
        assert await stores.leases.acquire("periodic", "another", seconds=1)


class FlakyLeases(Leases):
    """Leases in a datastore that can be unavailable."""

    def __init__(self, stores: Stores) -> None:
        self._leases, self.is_unavailable = stores.leases, False

    async def acquire(self, name: str, holder: str, *, seconds: float) -> bool:
        if self.is_unavailable:
            raise Unavailable("the datastore is unavailable")
        return await self._leases.acquire(name, holder, seconds=seconds)

    async def release(self, name: str, holder: str) -> None:
        await self._leases.release(name, holder)


async def test_a_job_continues_during_a_short_outage_of_the_datastore(stores: Stores) -> None:
    leases = FlakyLeases(stores)
    replica = Replica(leases, "only")
    async with tasks() as jobs:
        assert await replica.renew(jobs)
        leases.is_unavailable = True
        assert await replica.renew(jobs)


async def test_a_job_ends_before_its_lease_expires(stores: Stores) -> None:
    leases = FlakyLeases(stores)
    replica = Replica(leases, "only", lease_seconds=0.03)
    async with tasks() as jobs:
        assert await replica.renew(jobs)
        leases.is_unavailable = True
        await asyncio.sleep(0.03)
        assert not await replica.renew(jobs)


class Clock:
    """A clock that advances by sleeping."""

    def __init__(self, start: datetime) -> None:
        self.moment, self.sleeps = start, list[float]()

    def now(self) -> datetime:
        return self.moment

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.moment += timedelta(seconds=seconds)
        await asyncio.sleep(0)


async def first_runs(
    schedule: Schedule, clock: Clock, count: int, *, fails: bool = False
) -> list[datetime]:
    """The times of the first runs of a periodic job."""
    ran: list[datetime] = []

    async def work() -> None:
        ran.append(clock.moment)
        if len(ran) == count:
            raise _End
        if fails:
            raise Unavailable("the datastore is unavailable")

    job = PeriodicJob("job", schedule, work)
    runner = JobRunner(UNUSED_LEASES, "only", [job], now=clock.now, sleep=clock.sleep)
    with pytest.raises(_End):
        await runner.run_periodic(job)
    return ran


async def test_a_periodic_job_runs_at_once_and_then_on_schedule(now: Now) -> None:
    start = now().replace(minute=10, second=0)
    assert await first_runs(parse_schedule("30 * * * *"), Clock(start), 3) == [
        start,
        start.replace(minute=30),
        start.replace(minute=30) + timedelta(hours=1),
    ]


async def test_a_failed_job_is_retried_after_five_minutes(now: Now) -> None:
    start = now()
    ran = await first_runs(HOUR, Clock(start), 3, fails=True)
    assert [moment - start for moment in ran] == [timedelta(minutes=5 * n) for n in range(3)]


async def test_a_clock_set_forward_is_noticed_within_a_minute(now: Now) -> None:
    clock = Clock(now())
    await first_runs(HOUR, clock, 2)
    assert max(clock.sleeps) <= 60


async def test_runs_are_counted() -> None:
    registry = CollectorRegistry()
    runner = JobRunner(UNUSED_LEASES, "only", [], metrics=JobMetrics(registry, "ops"))

    async def succeed() -> None: ...

    async def fail() -> None:
        raise Unavailable("the datastore is unavailable")

    assert await runner.run_once(PeriodicJob("job", HOUR, succeed))
    assert not await runner.run_once(PeriodicJob("job", HOUR, fail))
    labels = {"pipecd_component": "ops", "job": "job"}
    for result in ("success", "failure"):
        count = registry.get_sample_value("pipecd_job_runs_total", {**labels, "result": result})
        assert count == 1
    assert registry.get_sample_value("pipecd_job_last_success_timestamp_seconds", labels)


@pytest.mark.parametrize(
    ("disabled", "missing"),
    [
        pytest.param({}, set[str](), id="all jobs"),
        pytest.param(
            {"application": {"enabled": False}}, {"insight-applications"}, id="no applications"
        ),
        pytest.param(
            {"deployment": {"enabled": False}}, {"insight-deployments"}, id="no deployments"
        ),
    ],
)
async def test_every_job_has_its_own_lease(
    stores: Stores, bus: MemoryBus, disabled: dict[str, object], missing: set[str]
) -> None:
    spec = InsightCollectorSpec.model_validate(disabled)
    expected = {
        "orphan-commands",
        "stale-stats",
        "preview-outputs",
        "label-index",
        "deployment-history",
        "key-uses",
        "chains",
        "insight-applications",
        "insight-deployments",
    } - missing
    async with tasks() as jobs:
        runner = JobRunner(stores.leases, "first", background_jobs(stores, bus, spec))
        await runner.renew_leases(jobs)
        await asyncio.sleep(0)
        for name in expected:
            assert not await stores.leases.acquire(name, "second", seconds=1)
        for name in missing:
            assert await stores.leases.acquire(name, "second", seconds=1)
