# SPDX-License-Identifier: Apache-2.0
"""Insights are collected incrementally and queried by metric, label and application."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from pipecd.controlplane.auth.subject import User
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.insight.chunks import decode_chunk
from pipecd.controlplane.insight.months import Month, decode_month, months_between
from pipecd.controlplane.insight.series import Metric, Resolution, TimeRange
from pipecd.controlplane.jobs.insights import (
    CHUNK_MILESTONE,
    MONTH_MILESTONE,
    ChunkWriter,
    MonthWriter,
    collect_applications,
    collect_deployments,
)
from pipecd.controlplane.usecases import UseCases
from pipecd.controlplane.usecases.insights import InsightQuery
from pipecd.model.clock import Now, to_unix
from pipecd.model.deployment import DeploymentStatus as Status
from pipecd.model.errors import NotFound, PipecdError, Unavailable, Unsupported, UserMistake
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.project_pb2 import (
    ProjectRBACPolicy,
    ProjectRBACResource,
    ProjectRBACRole,
)

BEGINNING = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOUR, DAY = 3600, 86400


# Both take keyword arguments too: fields of the deployment, and the size of chunks.
CompleteDeployment = Callable[..., Awaitable[str]]
Collect = Callable[..., Awaitable[None]]


@pytest.fixture
def complete(
    stores: Stores, new_deployment: Callable[[], Deployment], now: Now
) -> CompleteDeployment:
    """Stores a deployment that completed some seconds before now; returns its id."""

    async def add(ago: int = 0, status: Status = Status.SUCCESS, **fields: Any) -> str:
        one = new_deployment()
        at = to_unix(now()) - ago
        one.status, one.completed_at, one.created_at = int(status), at, at - 60  # pyright: ignore[reportAttributeAccessIssue]
        one.trigger.commit.created_at = at - 600
        one.running_commit_hash = "before"
        labels = fields.pop("labels", None)
        for name, value in fields.items():
            setattr(one, name, value)
        if labels is not None:
            one.labels.clear()
            one.labels.update(labels)
        await stores.deployments.add(one)
        return one.id

    return add


@pytest.fixture
def collect(stores: Stores, now: Now) -> Collect:
    """Collects the deployments that completed since the last run."""

    async def once(chunk_size: int = 1000) -> None:
        chunks, months = ChunkWriter(stores.files, chunk_size=chunk_size), MonthWriter(stores.files)
        await collect_deployments(stores, CHUNK_MILESTONE, chunks, now=now)
        await collect_deployments(stores, MONTH_MILESTONE, months, now=now)

    return once


async def block_of(stores: Stores, year: int, project: str = "shop") -> list[dict[str, Any]]:
    path = f"insights/{project}/completed-deployments/block_{year}/block_meta.json"
    return json.loads(await stores.files.get(path))["chunk_metadata"]


async def collected(stores: Stores) -> list[str]:
    """The ids in all chunks of the project, in the order of the files."""
    paths = await stores.files.list("insights/shop/completed-deployments/")
    chunks = [path for path in paths if "chunk_" in path]
    return [one.id for path in chunks for one in decode_chunk(await stores.files.get(path))]


async def test_chunks_fill_up_over_several_runs(
    stores: Stores, complete: CompleteDeployment, collect: Collect, advance: Callable[[float], None]
) -> None:
    ids = [await complete(ago) for ago in (30, 20, 10)]
    await collect(chunk_size=2)
    advance(HOUR)
    ids.append(await complete(5))
    await collect(chunk_size=2)
    assert await collected(stores) == ids
    first, second = await block_of(stores, 2026)
    assert (first["count"], first["completed"]) == (2, True)
    assert (second["count"], second["completed"]) == (2, True)
    assert second["min_timestamp"] == to_unix(BEGINNING) - 10
    milestone = json.loads(await stores.files.get(CHUNK_MILESTONE))
    assert milestone == {"deployment_completed_at_milestone": to_unix(BEGINNING) + HOUR}


async def test_running_again_counts_nothing_twice(
    stores: Stores, complete: CompleteDeployment, collect: Collect, cases: UseCases, admin: User
) -> None:
    await complete(ago=10)
    # It completed in the second of the milestone.
    await complete(ago=0)
    for _ in range(3):
        await collect(chunk_size=1)
    assert len(await collected(stores)) == 2
    assert [chunk["count"] for chunk in await block_of(stores, 2026)] == [1, 1]
    assert await values(cases, admin, Metric.LEAD_TIME) == [600.0]


async def test_a_completion_reported_late_is_counted(
    stores: Stores, complete: CompleteDeployment, collect: Collect, advance: Callable[[float], None]
) -> None:
    await complete(ago=10)
    await collect()
    advance(5 * HOUR)
    await collect()
    late = await complete(ago=5 * HOUR + 20)
    await collect()
    assert await collected(stores) == [(await collected(stores))[0], late]


async def test_no_deployment_is_lost_while_the_collector_is_down(
    stores: Stores, complete: CompleteDeployment, collect: Collect, advance: Callable[[float], None]
) -> None:
    await collect()
    for _ in range(5):
        advance(2 * DAY)
        await complete()
    await collect()
    assert len(await collected(stores)) == 5


async def test_years_are_in_utc(
    stores: Stores, complete: CompleteDeployment, collect: Collect
) -> None:
    new_year = to_unix(datetime(2026, 1, 1, tzinfo=UTC))
    since = to_unix(BEGINNING) - new_year
    await complete(ago=since + 1)
    await complete(ago=since)
    await collect()
    assert [len(await block_of(stores, year)) for year in (2025, 2026)] == [1, 1]


async def test_projects_have_files_of_their_own(
    stores: Stores, complete: CompleteDeployment, collect: Collect
) -> None:
    await complete(project_id="other")
    await complete()
    await collect()
    assert len(await block_of(stores, 2026, "other")) == 1
    assert len(await collected(stores)) == 1


class FullFiles:
    """A filestore that cannot write the files of one project."""

    def __init__(self, files: Any, project: str) -> None:
        self._files, self.project = files, project

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def put(self, path: str, content: bytes) -> None:
        if self.project and f"/{self.project}/" in path:
            raise Unavailable("the disk is full")
        await self._files.put(path, content)


async def test_the_milestone_stays_until_every_project_is_written(
    stores: Stores, complete: CompleteDeployment, now: Now, advance: Callable[[float], None]
) -> None:
    files = FullFiles(stores.files, "other")
    full = replace(stores, files=files)  # pyright: ignore[reportArgumentType]
    for project in ("shop", "other"):
        await complete(project_id=project)
    writer = ChunkWriter(files, chunk_size=10)  # pyright: ignore[reportArgumentType]
    with pytest.raises(Unavailable):
        await collect_deployments(full, CHUNK_MILESTONE, writer, now=now)
    with pytest.raises(NotFound):
        await stores.files.get(CHUNK_MILESTONE)
    files.project = ""
    advance(HOUR)
    await collect_deployments(full, CHUNK_MILESTONE, writer, now=now)
    assert len(await block_of(stores, 2026, "other")) == 1
    assert len(await collected(stores)) == 1


class PagedDeployments:
    """Yields the completed deployments in pages of two."""

    def __init__(self, deployments: Any) -> None:
        self._deployments = deployments

    async def iterate_completed(self, start: int, end: int) -> AsyncIterator[tuple[Any, ...]]:
        async for page in self._deployments.iterate_completed(start, end):
            for first in range(0, len(page), 2):
                yield page[first : first + 2]


class CountedFiles:
    """A filestore that counts how often each file is written."""

    def __init__(self, files: Any) -> None:
        self._files, self.writes = files, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    async def put(self, path: str, content: bytes) -> None:
        self.writes[path] += 1
        await self._files.put(path, content)


@pytest.mark.parametrize(
    ("max_kept", "most_writes"),
    [
        # With its first deployments, when the next month begins, and without settled deployments.
        pytest.param(1000, 3, id="each month fits in memory"),
        pytest.param(5, 9, id="a month is written in parts"),
    ],
)
async def test_the_first_collection_writes_a_month_few_times(
    stores: Stores,
    complete: CompleteDeployment,
    now: Now,
    max_kept: int,
    most_writes: int,
) -> None:
    for number in range(90):
        await complete(ago=number * DAY + 60)
    await complete(ago=30, project_id="other")
    await collect_deployments(stores, "milestone", MonthWriter(stores.files), now=now)
    once = await months_of(stores)
    for path in once:
        await stores.files.delete(path)
    files = CountedFiles(stores.files)
    paged = replace(
        stores,
        files=files,  # pyright: ignore[reportArgumentType]
        deployments=PagedDeployments(stores.deployments),  # pyright: ignore[reportArgumentType]
    )
    writer = MonthWriter(files, max_kept=max_kept)  # pyright: ignore[reportArgumentType]
    await collect_deployments(paged, MONTH_MILESTONE, writer, now=now)
    paged_months = await months_of(stores)
    assert {p: (m.totals, m.failing) for p, m in paged_months.items()} == {
        p: (m.totals, m.failing) for p, m in once.items()
    }
    writes = {path: files.writes[path] for path in once}
    assert max(writes.values()) <= most_writes, writes


async def months_of(stores: Stores) -> dict[str, Month]:
    paths = [path for path in await stores.files.list("insights/") if "/ext/" in path]
    return {path: decode_month(await stores.files.get(path)) for path in paths}


async def test_a_milestone_never_goes_back(
    stores: Stores, collect: Collect, advance: Callable[[float], None]
) -> None:
    await collect()
    advance(-HOUR)
    await collect()
    stored = json.loads(await stores.files.get(CHUNK_MILESTONE))
    assert stored == {"deployment_completed_at_milestone": to_unix(BEGINNING)}


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(CHUNK_MILESTONE, id="the milestone"),
        pytest.param(
            "insights/shop/completed-deployments/block_2026/block_meta.json", id="a block"
        ),
        pytest.param("insights/shop/completed-deployments/block_2026/chunk_0.json", id="a chunk"),
        pytest.param("insights/shop/ext/2026-01.json", id="a month"),
    ],
)
async def test_the_error_of_a_damaged_file_names_it(
    stores: Stores, complete: CompleteDeployment, collect: Collect, path: str
) -> None:
    await complete()
    await collect()
    await stores.files.put(path, b"{")
    with pytest.raises(PipecdError, match=path):
        await collect()


async def test_applications_are_collected(
    stores: Stores, cases: UseCases, admin: User, viewer: User, draft: Application, now: Now
) -> None:
    with pytest.raises(NotFound):
        await cases.insights.applications(by=viewer)
    ids: list[str] = []
    for name in ("on", "off", "gone"):
        draft.name = name
        ids.append(await cases.applications.add(draft, by=admin))
    await cases.applications.disable(ids[1], by=admin)
    await cases.applications.delete(ids[2], by=admin)
    assert await collect_applications(stores, now=now) == 1
    snapshot = await cases.insights.applications(by=viewer)
    assert {(one.id, one.kind, one.status) for one in snapshot.applications} == {
        (ids[0], "KUBERNETES", "ENABLED"),
        (ids[1], "KUBERNETES", "DISABLED"),
    }
    assert snapshot.updated_at == to_unix(BEGINNING)
    await cases.applications.delete(ids[0], by=admin)
    await cases.applications.delete(ids[1], by=admin)
    await collect_applications(stores, now=now)
    assert (await cases.insights.applications(by=viewer)).applications == ()


def today(resolution: Resolution = Resolution.DAILY) -> TimeRange:
    start = to_unix(BEGINNING.replace(hour=0, minute=0, second=0))
    return TimeRange(start, start + DAY - 1, resolution)


async def values(cases: UseCases, by: User, metric: Metric, **query: Any) -> list[float]:
    full = InsightQuery(query.pop("time_range", today()), **query)
    return [value for _, value in await cases.insights.series(metric, full, by=by)]


async def test_the_four_dora_metrics(
    cases: UseCases,
    viewer: User,
    complete: CompleteDeployment,
    collect: Collect,
    application: Application,
) -> None:
    prod = {"env": "prod"}
    await complete(ago=2 * HOUR, status=Status.FAILURE)
    await complete(ago=HOUR, status=Status.SUCCESS)
    await complete(ago=1800, status=Status.CANCELLED)
    await complete(ago=900, status=Status.SUCCESS, labels=prod, application_id="b")
    await collect()
    expected = {
        Metric.DEPLOYMENT_FREQUENCY: ([4.0], [1.0], [3.0]),
        Metric.CHANGE_FAILURE_RATE: ([0.25], [0.0], [1 / 3]),
        Metric.LEAD_TIME: ([600.0], [600.0], [600.0]),
        Metric.TIME_TO_RESTORE: ([3600.0], [0.0], [3600.0]),
    }
    for metric, (all_deployments, with_label, of_application) in expected.items():
        assert await values(cases, viewer, metric) == all_deployments
        assert await values(cases, viewer, metric, labels=prod) == with_label
        assert await values(cases, viewer, metric, application=application.id) == of_application
        monthly = today(Resolution.MONTHLY)
        assert await values(cases, viewer, metric, time_range=monthly) == all_deployments


async def test_a_series_without_collected_data_is_zero(cases: UseCases, viewer: User) -> None:
    week = TimeRange(today().start - 6 * DAY, today().end)
    for metric in set(Metric) - {Metric.APPLICATIONS_COUNT}:
        assert await values(cases, viewer, metric, time_range=week) == [0.0] * 7
        assert await values(cases, viewer, metric, application="never seen") == [0.0]


async def test_a_failure_of_last_month_is_restored_in_this_one(
    cases: UseCases, viewer: User, complete: CompleteDeployment, collect: Collect
) -> None:
    await complete(ago=3 * DAY, status=Status.FAILURE)
    await collect()
    await complete(ago=10)
    await collect()
    assert await values(cases, viewer, Metric.TIME_TO_RESTORE) == [3 * DAY - 10.0]


@pytest.mark.parametrize(
    "time_range",
    [
        pytest.param(TimeRange(10, 9), id="that ends before it begins"),
        pytest.param(TimeRange(10, 10 + 731 * DAY + 1), id="of more than two years"),
        pytest.param(TimeRange(2**62, 2**62 + 5), id="far in the future"),
    ],
)
async def test_an_invalid_range_is_rejected(
    cases: UseCases, viewer: User, time_range: TimeRange
) -> None:
    with pytest.raises(UserMistake):
        await values(cases, viewer, Metric.DEPLOYMENT_FREQUENCY, time_range=time_range)


async def test_a_range_may_span_two_years_with_a_leap_day(cases: UseCases, viewer: User) -> None:
    time_range = TimeRange(
        to_unix(datetime(2023, 3, 2, tzinfo=UTC)), to_unix(datetime(2025, 3, 2, tzinfo=UTC)) - 1
    )
    assert len(await values(cases, viewer, Metric.LEAD_TIME, time_range=time_range)) == 731
    assert len(months_between(time_range.start, time_range.end)) == 25


async def test_the_number_of_applications_over_time_is_unsupported(
    cases: UseCases, viewer: User
) -> None:
    with pytest.raises(Unsupported):
        await values(cases, viewer, Metric.APPLICATIONS_COUNT)


async def test_a_role_with_labels_sees_only_deployments_with_them(
    cases: UseCases,
    admin: User,
    stores: Stores,
    complete: CompleteDeployment,
    collect: Collect,
    now: Now,
) -> None:
    role = ProjectRBACRole(
        name="dev-only",
        policies=[
            ProjectRBACPolicy(
                resources=[
                    ProjectRBACResource(type=ProjectRBACResource.INSIGHT, labels={"env": "dev"})
                ],
                actions=[ProjectRBACPolicy.GET],
            )
        ],
    )
    await cases.projects.change(lambda project: project.rbac_roles.append(role), by=admin)
    dev = User("shop", "dora", ("dev-only",))
    await complete(ago=20, labels={"env": "dev"})
    await complete(ago=10, labels={"env": "prod"})
    await collect()
    await collect_applications(stores, now=now)
    assert await values(cases, admin, Metric.DEPLOYMENT_FREQUENCY) == [2.0]
    assert await values(cases, dev, Metric.DEPLOYMENT_FREQUENCY) == [1.0]
    assert len((await cases.insights.applications(by=dev)).applications) == 1
