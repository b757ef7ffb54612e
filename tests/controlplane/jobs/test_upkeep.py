# SPDX-License-Identifier: Apache-2.0
"""Upkeep runs each job on exactly one replica."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from pipecd.config.controlplane import InsightCollectorSpec
from pipecd.controlplane.bus.memory import MemoryBus
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.jobs import upkeep
from pipecd.controlplane.jobs.metrics import JobMetrics
from pipecd.controlplane.jobs.schedule import Every, parse_schedule
from pipecd.controlplane.jobs.upkeep import Job, Pace, Upkeep, attempt, periodic
from pipecd.model.clock import Now
from pipecd.model.errors import Unavailable

HOUR = Every(timedelta(hours=1))


class Replica:
    """A replica whose one job says when it runs."""

    def __init__(self, leases: object, name: str) -> None:
        self.is_working, self.began = False, asyncio.Event()
        self.upkeep = Upkeep(leases, name, [Job("job", self._run)])  # pyright: ignore[reportArgumentType]

    async def _run(self) -> None:
        self.is_working = True
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.is_working = False

    async def beat(self, jobs: asyncio.TaskGroup) -> bool:
        await self.upkeep.beat(jobs)
        await asyncio.sleep(0)
        return self.is_working


@asynccontextmanager
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that ends what still runs at its end."""
    with pytest.raises(ExceptionGroup) as ended:
        async with asyncio.TaskGroup() as group:
            yield group
            raise _End
    assert ended.group_contains(_End)


class _End(Exception):
    """The end of a test."""


async def test_of_two_replicas_one_works(stores: Stores) -> None:
    first, second = Replica(stores.leases, "first"), Replica(stores.leases, "second")
    async with tasks() as jobs:
        for _ in range(3):
            assert [await first.beat(jobs), await second.beat(jobs)] == [True, False]


async def test_the_other_takes_over_when_one_has_died(
    stores: Stores, advance: Callable[[float], None]
) -> None:
    first, second = Replica(stores.leases, "first"), Replica(stores.leases, "second")
    async with tasks() as jobs:
        assert await first.beat(jobs)
        advance(59)
        assert not await second.beat(jobs)
        advance(2)
        assert await second.beat(jobs)
        # The first was only asleep; it finds that its place is taken and stops.
        assert not await first.beat(jobs)
        assert second.is_working


async def test_a_replica_that_ends_leaves_its_jobs_to_the_others(stores: Stores) -> None:
    first, second = Replica(stores.leases, "first"), Replica(stores.leases, "second")
    running = asyncio.ensure_future(first.upkeep.run())
    async with asyncio.timeout(5):
        await first.began.wait()
    running.cancel()
    await asyncio.wait({running})
    assert not first.is_working
    async with tasks() as jobs:
        assert await second.beat(jobs)


class Away(Leases):
    """Leases of a store that can be away."""

    def __init__(self, stores: Stores) -> None:
        self._leases, self.is_away = stores.leases, False

    async def acquire(self, name: str, holder: str, *, seconds: float) -> bool:
        if self.is_away:
            raise Unavailable("the store is away")
        return await self._leases.acquire(name, holder, seconds=seconds)

    async def release(self, name: str, holder: str) -> None:
        await self._leases.release(name, holder)


async def test_a_job_survives_a_short_absence_of_the_store(stores: Stores) -> None:
    leases = Away(stores)
    replica = Replica(leases, "only")
    async with tasks() as jobs:
        assert await replica.beat(jobs)
        leases.is_away = True
        assert await replica.beat(jobs)


async def test_a_job_ends_before_its_lease_runs_out(stores: Stores) -> None:
    leases = Away(stores)
    replica = Replica(leases, "only")
    replica.upkeep = Upkeep(leases, "only", [Job("job", replica._run)], term=0.03)
    async with tasks() as jobs:
        assert await replica.beat(jobs)
        leases.is_away = True
        await asyncio.sleep(0.03)
        assert not await replica.beat(jobs)


class Clock:
    """A clock that moves when somebody waits for it."""

    def __init__(self, start: datetime) -> None:
        self.moment, self.naps = start, list[float]()

    def now(self) -> datetime:
        return self.moment

    async def nap(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.moment += timedelta(seconds=seconds)
        await asyncio.sleep(0)


async def first_runs(
    job_schedule: object, clock: Clock, count: int, *, fails: bool = False
) -> list[datetime]:
    """When a periodic job ran."""
    ran: list[datetime] = []

    async def work() -> None:
        ran.append(clock.moment)
        if len(ran) == count:
            raise _End
        if fails:
            raise Unavailable("the store is away")

    job = periodic("job", job_schedule, work, Pace(now=clock.now, nap=clock.nap))  # pyright: ignore[reportArgumentType]
    with pytest.raises(_End):
        await job.run()
    return ran


async def test_a_job_works_at_once_and_then_on_schedule(now: Now) -> None:
    start = now().replace(minute=10, second=0)
    assert await first_runs(parse_schedule("30 * * * *"), Clock(start), 3) == [
        start,
        start.replace(minute=30),
        start.replace(minute=30) + timedelta(hours=1),
    ]


async def test_a_job_that_failed_is_tried_again_soon(now: Now) -> None:
    start = now()
    ran = await first_runs(HOUR, Clock(start), 3, fails=True)
    assert [moment - start for moment in ran] == [timedelta(minutes=5 * n) for n in range(3)]


async def test_a_clock_that_is_set_forward_is_noticed_within_a_minute(now: Now) -> None:
    clock = Clock(now())
    await first_runs(HOUR, clock, 2)
    assert max(clock.naps) <= 60


async def test_runs_are_counted() -> None:
    registry = CollectorRegistry()
    metrics = JobMetrics(registry, "ops")

    async def fine() -> None: ...

    async def away() -> None:
        raise Unavailable("the store is away")

    assert await attempt("job", fine, metrics)
    assert not await attempt("job", away, metrics)
    labels = {"pipecd_component": "ops", "job": "job"}
    for result in ("success", "failure"):
        counted = registry.get_sample_value("pipecd_job_runs_total", {**labels, "result": result})
        assert counted == 1
    assert registry.get_sample_value("pipecd_job_last_success_timestamp_seconds", labels)


@pytest.mark.parametrize(
    ("switched_off", "missing"),
    [
        pytest.param({}, set[str](), id="all of them"),
        pytest.param(
            {"application": {"enabled": False}}, {"insight-applications"}, id="no applications"
        ),
        pytest.param(
            {"deployment": {"enabled": False}}, {"insight-deployments"}, id="no deployments"
        ),
    ],
)
async def test_every_job_is_under_its_own_lease(
    stores: Stores, bus: MemoryBus, switched_off: dict[str, object], missing: set[str]
) -> None:
    spec = InsightCollectorSpec.model_validate(switched_off)
    every = {
        "orphan-commands",
        "stale-stats",
        "preview-outputs",
        "key-uses",
        "chains",
        "insight-applications",
        "insight-deployments",
    } - missing
    async with tasks() as jobs:
        await upkeep(stores, bus, "first", spec).beat(jobs)
        await asyncio.sleep(0)
        for name in every:
            assert not await stores.leases.acquire(name, "second", seconds=1)
        for name in missing:
            assert await stores.leases.acquire(name, "second", seconds=1)
