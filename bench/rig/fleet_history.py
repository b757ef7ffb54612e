# SPDX-License-Identifier: Apache-2.0
"""Pages of the console and insights with a long history."""

import asyncio
import json
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.insight.chunks import (
    Block,
    add_deployments,
    block_path,
    chunk_path,
    encode_block,
    encode_chunk,
    year_of,
)
from pipecd.controlplane.insight.deployments import CompletedDeployment, sorted_labels
from pipecd.controlplane.insight.dora import CompletedOutcome
from pipecd.controlplane.insight.months import add_outcomes, encode_month, month_path
from pipecd.controlplane.jobs.insight_days import DayTotalsWriter
from pipecd.model.deployment import DeploymentStatus
from pipecd.model.errors import AlreadyExists
from pipecd.proto.model.piped_pb2 import Piped
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from pipecd.secrets.keys import hash_key
from rig.control_plane import run_control_plane
from rig.cpu_time import Taken, cpu_clock
from rig.history import (
    BEGINNING,
    LARGE,
    PIPEDS,
    PastDeployment,
    Scale,
    history_of,
    id_of,
    labels_of,
)

REPEATS = 3
PASSWORD = "a password of the bench"
PAGES = (
    "/overview",
    "/applications",
    "/applications?labels[0]=team:t7",
    "/applications?q=app-43&sort=updated&dir=desc",
    "/applications?page=150",
    "/applications/add",
    "/applications/drift",
    "/deployments",
    "/deployments?status=RUNNING",
    "/deployments?labels[0]=env:prod",
    "/deployments?q=payment+of+the+login+of+the",
    "/deployments?q=zq",
    "/search?q=app-43",
    "/search?q=login",
    "/chains",
    "/deployment-traces",
    "/events",
    f"/applications/{id_of('application', 4321)}",
    f"/applications/{id_of('application', 4321)}/settings",
    f"/deployments/{id_of('deployment', 4321)}",
    "/settings/piped",
    f"/settings/piped/{id_of('piped', 21)}",
)
INSIGHTS = (
    "/insights?range=1y",
    f"/insights?range=1y&app={id_of('application', 4321)}",
    "/insights?range=1y&labels[0]=env:prod",
    "/insights?range=1y&labels[0]=team:t7",
    "/insights.csv?range=1y",
)
# A page that reads nothing, for what a request costs at least.
NOTHING = "/favicon.ico"


@dataclass(frozen=True)
class PageTimes:
    """What each page and each page of insights took, and an empty page, by their paths."""

    pages: Mapping[str, Taken]
    insights: Mapping[str, Taken]
    nothing: Taken


def measure_pages(datastore: DatastoreSpec, files: Path) -> PageTimes:
    """Measures the median of each page on a control plane of its own."""
    asyncio.run(_add_project(datastore, files))
    with run_control_plane(datastore, files=files) as server:
        base = f"http://{server.address('port')}"
        with httpx2.Client(base_url=base, timeout=60, follow_redirects=True) as client:
            signed_in = client.post(
                "/auth/login/static",
                data={"project": LARGE, "username": "admin", "password": PASSWORD},
                headers={"Origin": base},
            )
            signed_in.raise_for_status()
            clock = cpu_clock(datastore, server.process.pid)
            pages, insights = (
                {path: _medians(client, path, clock) for path in paths}
                for paths in (PAGES, INSIGHTS)
            )
            return PageTimes(pages, insights, _medians(client, NOTHING, clock))


def _medians(client: httpx2.Client, path: str, cpu_clock: Callable[[], float]) -> Taken:
    """The medians of a page, without the first call."""
    taken: list[Taken] = []
    for _ in range(REPEATS + 1):
        cpu, began = cpu_clock(), time.perf_counter()
        response = client.get(path)
        clock = time.perf_counter() - began
        taken.append(Taken((cpu_clock() - cpu) * 1000, clock * 1000))
        if response.status_code != 200 or "/login" in str(response.url):
            raise RuntimeError(f"{path}: {response.status_code} at {response.url}")
    return Taken(*(statistics.median(values) for values in zip(*taken[1:], strict=True)))


async def _add_project(datastore: DatastoreSpec, files: Path) -> None:
    async with open_datastore(datastore) as database:
        stores = create_stores(database, await LocalFiles.open(files), MemoryCache())
        admin = ProjectStaticUser(username="admin", password_hash=hash_key(PASSWORD))
        try:
            await stores.projects.add(Project(id=LARGE, desc="d", static_admin=admin))
        except AlreadyExists:
            # Of an earlier run, or of `lists.py`, whose admin has no password.
            await stores.projects.update(LARGE, lambda p: p.static_admin.CopyFrom(admin))
        for number in range(PIPEDS):
            piped = Piped(
                id=id_of("piped", number),
                name=f"piped-{number}",
                desc="One of many.",
                project_id=LARGE,
                status=Piped.ONLINE,
                started_at=BEGINNING,
            )
            with suppress(AlreadyExists):
                await stores.pipeds.add(piped)


def seconds_to_parse(files: Path) -> float:
    """Returns what reading and parsing the totals of a year takes at least."""
    began = time.perf_counter()
    for path in files.joinpath("insights", LARGE, "ext-days").iterdir():
        # The totals of a year are several documents, one in each line.
        for line in path.read_bytes().splitlines():
            json.loads(line)
    return time.perf_counter() - began


async def write_insights(scale: Scale, directory: Path) -> None:
    """Writes the insight files of the last year, as the collector does."""
    files = await LocalFiles.open(directory)
    history = [
        (number, one)
        for number, one in enumerate(history_of(scale))
        if DeploymentStatus(one.status).is_completed and scale.project(one.application) == LARGE
    ]
    history.sort(key=lambda entry: entry[1].at)
    for year in sorted({year_of(one.at) for _, one in history}):
        new = [_completed(number, one) for number, one in history if year_of(one.at) == year]
        block, chunks = add_deployments(Block(year), {}, new)
        for meta in block.chunks:
            await files.put(chunk_path(LARGE, year, meta), encode_chunk(meta, chunks[meta.index]))
        await files.put(block_path(LARGE, year), encode_block(block))
    outcomes = [_outcome(number, one) for number, one in history]
    for name, month in add_outcomes({}, outcomes, forget_before=int(time.time())).items():
        await files.put(month_path(LARGE, name), encode_month(month))
    await DayTotalsWriter(files).update()


def _completed(number: int, one: PastDeployment) -> CompletedDeployment:
    return CompletedDeployment(
        id_of("deployment", number),
        id_of("application", one.application),
        sorted_labels(labels_of(one.application)),
        one.at - 60,
        one.at,
        DeploymentStatus(one.status),
    )


def _outcome(number: int, one: PastDeployment) -> CompletedOutcome:
    is_success = one.status == DeploymentStatus.SUCCESS
    return CompletedOutcome(
        id_of("deployment", number),
        id_of("application", one.application),
        sorted_labels(labels_of(one.application)),
        one.at,
        is_success,
        600 if is_success else None,
    )
