# SPDX-License-Identifier: Apache-2.0
"""Totals by day follow the chunks and months, whatever stops the collector or writes beside it."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.filestore import Files
from pipecd.controlplane.insight.days import YearDays
from pipecd.controlplane.insight.series import Metric, Resolution, TimeRange
from pipecd.controlplane.jobs.insight_days import TOTALS_MILESTONE, DayTotalsWriter
from pipecd.controlplane.jobs.insights import (
    CHUNK_MILESTONE,
    MONTH_MILESTONE,
    ChunkWriter,
    MonthWriter,
    collect_deployments,
)
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.insights import InsightQuery
from pipecd.model.clock import Now, to_unix
from pipecd.model.deployment import DeploymentStatus as Status
from pipecd.model.errors import Unavailable
from pipecd.proto.model.deployment_pb2 import Deployment

HOUR, DAY = 3600, 86400
YEAR_TOTALS = "insights/shop/ext-days/2026.json"
MONTH_TOTALS = "insights/shop/ext-days/2026-01.json"
METRICS = (
    Metric.DEPLOYMENT_FREQUENCY,
    Metric.CHANGE_FAILURE_RATE,
    Metric.LEAD_TIME,
    Metric.TIME_TO_RESTORE,
)

Add = Callable[..., Awaitable[None]]
Charts = dict[str, Any]
Check = Callable[[], Awaitable[Charts]]


@pytest.fixture
def add(stores: Stores, new_deployment: Callable[[], Deployment], now: Now) -> Add:
    """Stores deployments that completed in the last days, some of them failed."""

    async def several(count: int) -> None:
        for number in range(count):
            one = new_deployment()
            completed = to_unix(now()) - number * 4 * HOUR
            status = Status.FAILURE if number % 3 == 1 else Status.SUCCESS
            one.status = int(status)  # pyright: ignore[reportAttributeAccessIssue]
            one.completed_at, one.created_at = completed, completed - 60
            one.trigger.commit.created_at, one.running_commit_hash = completed - 600, "before"
            one.labels["env"] = "prod" if number % 2 else "dev"
            await stores.deployments.add(one)

    return several


async def collect(stores: Stores, now: Now, files: Files, *, with_totals: bool = True) -> None:
    """One run of the collector of a new process; without totals as upstream's or an earlier one."""
    chunks, months = ChunkWriter(files, chunk_size=2), MonthWriter(files)
    totals = DayTotalsWriter(files, chunks_per_step=2)
    if with_totals:
        await totals.discard_outdated()
    await collect_deployments(stores, CHUNK_MILESTONE, chunks, now=now)
    await collect_deployments(stores, MONTH_MILESTONE, months, now=now)
    if with_totals:
        await totals.update()


async def charts(cases: UseCases, by: User, now: Now) -> Charts:
    """All metrics of a fortnight that begins and ends within a day, by application and label."""
    end = to_unix(now())
    fortnight = TimeRange(end - 14 * DAY, end)
    found: Charts = {}
    for name, query in {
        "all": InsightQuery(fortnight),
        "label": InsightQuery(fortnight, labels={"env": "prod"}),
        "other": InsightQuery(fortnight, application="another"),
        "months": InsightQuery(TimeRange(end - 40 * DAY, end, Resolution.MONTHLY)),
    }.items():
        found[name] = await cases.insights.ratios(METRICS, query, by=by)
    return found


async def totals_of(stores: Stores) -> dict[str, bytes]:
    """The files of totals."""
    paths = [path for path in await stores.files.list("insights/") if "/ext-days/" in path]
    return {path: await stores.files.get(path) for path in paths}


@pytest.fixture
def check_charts(stores: Stores, cases: UseCases, admin: User, now: Now) -> Check:
    """Compares the charts with those from chunks and months alone; the totals stay."""

    async def check() -> Charts:
        found, totals = await charts(cases, admin, now), await totals_of(stores)
        for path in totals:
            await stores.files.delete(path)
        assert found == await charts(cases, admin, now)
        for path, content in totals.items():
            await stores.files.put(path, content)
        return found

    return check


async def test_charts_are_the_same_with_totals(
    stores: Stores, check_charts: Check, add: Add, now: Now
) -> None:
    await add(21)
    await collect(stores, now, stores.files)
    assert set(await totals_of(stores)) >= {YEAR_TOTALS, MONTH_TOTALS}
    found = await check_charts()
    assert sum(r.whole for r in found["all"][Metric.DEPLOYMENT_FREQUENCY].values()) == 21


class ReadFiles:
    """A filestore that remembers what was read."""

    def __init__(self, files: Files) -> None:
        self._files, self.read = files, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def get(self, path: str) -> bytes:
        self.read.append(path)
        return await self._files.get(path)


async def test_a_second_run_reads_neither_chunks_nor_months_again(
    stores: Stores, add: Add, now: Now
) -> None:
    await add(6)
    await collect(stores, now, stores.files)
    files = ReadFiles(stores.files)
    writer = DayTotalsWriter(files)  # pyright: ignore[reportArgumentType]
    await writer.update()
    files.read.clear()
    await writer.update()
    assert not [path for path in files.read if "chunk_" in path or "ext-days/" in path]
    assert not [path for path in files.read if "/ext/" in path]


class StoppedFiles:
    """A filestore whose process stops before a certain write."""

    def __init__(self, files: Files, writes: int) -> None:
        self._files, self.left = files, writes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def _count(self) -> None:
        if self.left == 0:
            raise Unavailable("the process has stopped")
        self.left -= 1

    async def put(self, path: str, content: bytes) -> None:
        self._count()
        await self._files.put(path, content)

    async def delete(self, path: str) -> None:
        self._count()
        await self._files.delete(path)


async def test_a_collector_that_stops_at_any_write_leaves_correct_charts(
    stores: Stores, check_charts: Check, add: Add, now: Now, advance: Callable[[float], None]
) -> None:
    await add(5)
    await collect(stores, now, stores.files)
    stops, writes = 0, 0
    while True:
        advance(DAY)
        await add(3)
        files = StoppedFiles(stores.files, writes)
        try:
            await collect(stores, now, files)  # pyright: ignore[reportArgumentType]
        except Unavailable:
            stops += 1
        else:
            break
        await check_charts()
        await collect(stores, now, stores.files)
        await check_charts()
        totals = await totals_of(stores)
        for path in totals:
            await stores.files.delete(path)
        await DayTotalsWriter(stores.files).update()
        assert await totals_of(stores) == totals
        writes += 1
    assert stops >= 8


async def test_what_upstream_or_an_earlier_release_collected_is_counted(
    stores: Stores, check_charts: Check, add: Add, now: Now, advance: Callable[[float], None]
) -> None:
    await add(7)
    await collect(stores, now, stores.files, with_totals=False)
    assert await totals_of(stores) == {}
    await collect(stores, now, stores.files)
    await check_charts()
    # Back to the earlier release and forth again.
    advance(2 * DAY)
    await add(4)
    for path in (MONTH_TOTALS, YEAR_TOTALS):
        kept = await stores.files.get(path)
        await collect(stores, now, stores.files, with_totals=False)
        await stores.files.put(path, kept)
    await collect(stores, now, stores.files)
    await check_charts()
    milestones = [await stores.files.get(path) for path in (TOTALS_MILESTONE, MONTH_MILESTONE)]
    assert milestones[0] == milestones[1]


async def test_a_block_restored_from_a_backup_is_counted_anew(
    stores: Stores, check_charts: Check, add: Add, now: Now, advance: Callable[[float], None]
) -> None:
    await add(3)
    await collect(stores, now, stores.files)
    paths = await stores.files.list("insights/shop/completed-deployments/")
    backup = {path: await stores.files.get(path) for path in paths}
    advance(2 * DAY)
    await add(6)
    await collect(stores, now, stores.files)
    for path in await stores.files.list("insights/shop/completed-deployments/"):
        await stores.files.delete(path)
    for path, content in backup.items():
        await stores.files.put(path, content)
    await check_charts()
    await DayTotalsWriter(stores.files).update()
    await check_charts()
    assert len(YearDays.decode((await totals_of(stores))[YEAR_TOTALS]).chunks) == 1


@pytest.mark.parametrize("path", [YEAR_TOTALS, MONTH_TOTALS])
@pytest.mark.parametrize("content", [b"{", b'{"version":2}'])
async def test_unusable_totals_are_ignored_and_written_again(
    stores: Stores,
    cases: UseCases,
    admin: User,
    add: Add,
    now: Now,
    path: str,
    content: bytes,
) -> None:
    await add(6)
    await collect(stores, now, stores.files)
    expected, totals = await charts(cases, admin, now), await totals_of(stores)
    await stores.files.put(path, content)
    assert await charts(cases, admin, now) == expected
    await collect(stores, now, stores.files)
    assert await totals_of(stores) == totals
    assert await charts(cases, admin, now) == expected


async def test_the_deployments_behind_a_period_are_the_latest_of_all(
    stores: Stores, cases: UseCases, admin: User, add: Add, now: Now
) -> None:
    await add(9)
    await collect(stores, now, stores.files)
    end = to_unix(now())
    query = InsightQuery(TimeRange(end - 14 * DAY, end))
    found = await cases.insights.behind(query, limit=3, by=admin)
    assert found.count == 9
    ago = [end - one.completed_at for one in found.latest]
    assert ago == [0, 4 * HOUR, 8 * HOUR]
    # The failure 4 hours ago has been restored by the last success.
    assert found.restored[(found.latest[0].application, end)] == 4 * HOUR
