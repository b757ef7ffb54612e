# SPDX-License-Identifier: Apache-2.0
"""Pages of the console and insights with a long history."""

import asyncio
import random
import statistics
import time
from pathlib import Path

import httpx2

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.insight.chunks import Block, add_deployments, decode_results, encode_chunk
from pipecd.controlplane.insight.deployments import CompletedDeployment, completed_deployment
from pipecd.controlplane.insight.series import SeriesFilter, TimeRange, count_failures, merge_ratios
from pipecd.proto.model.project_pb2 import Project, ProjectStaticUser
from pipecd.secrets.keys import hash_key
from rig.control_plane import run_control_plane
from rig.history import LARGE, YEAR, id_of, labels_of
from rig.seed import CREATED_AT, deployment

REPEATS = 3
PASSWORD = "a password of the bench"
PAGES = (
    "/overview",
    "/applications",
    "/applications?label=team:t7",
    "/deployments",
    "/deployments?status=RUNNING",
    "/deployments?label=env:prod",
    f"/applications/{id_of('application', 4321)}",
    f"/deployments/{id_of('deployment', 4321)}",
    "/settings/piped",
)


def measure_pages(datastore: DatastoreSpec) -> tuple[float, str]:
    """Returns the median milliseconds of the slowest page, and its path."""
    asyncio.run(_add_project(datastore))
    timings: list[tuple[float, str]] = []
    with run_control_plane(datastore) as server:
        base = f"http://{server.address('port')}"
        with httpx2.Client(base_url=base, timeout=60, follow_redirects=True) as client:
            signed_in = client.post(
                "/auth/login/static",
                data={"project": LARGE, "username": "admin", "password": PASSWORD},
                headers={"Origin": base},
            )
            signed_in.raise_for_status()
            for path in PAGES:
                taken: list[float] = []
                for _ in range(REPEATS + 1):
                    began = time.perf_counter()
                    response = client.get(path)
                    taken.append(time.perf_counter() - began)
                    if response.status_code != 200 or "/login" in str(response.url):
                        raise RuntimeError(f"{path}: {response.status_code} at {response.url}")
                timings.append((statistics.median(taken[1:]) * 1000, path))
    return max(timings)


async def _add_project(datastore: DatastoreSpec) -> None:
    files = await LocalFiles.open(Path(datastore.config.path).with_name("project-files"))
    async with open_datastore(datastore) as database:
        stores = create_stores(database, files, MemoryCache())
        admin = ProjectStaticUser(username="admin", password_hash=hash_key(PASSWORD))
        await stores.projects.add(Project(id=LARGE, desc="d", static_admin=admin))


async def measure_insights(deployments: int, directory: Path) -> float:
    """Returns the seconds for the deployments and failures of a year, from upstream's chunks."""
    paths = await asyncio.to_thread(_write_chunks, deployments, directory)
    everything = SeriesFilter(TimeRange(CREATED_AT, CREATED_AT + YEAR))
    began = time.perf_counter()
    merge_ratios(count_failures(decode_results(path.read_bytes()), everything) for path in paths)
    return time.perf_counter() - began


def _write_chunks(count: int, directory: Path) -> list[Path]:
    """Writes the chunks of a year, as the insight collector does."""
    chance, paths, size = random.Random(3), list[Path](), 1000
    template = deployment("a", "p")
    template.status, template.completed_at = 4, 1  # type: ignore[assignment]
    for start in range(0, count, size):
        new: list[CompletedDeployment] = []
        for number in range(start, min(start + size, count)):
            template.id = id_of("deployment", number)
            template.application_id = id_of("application", number % 10_000)
            template.labels.clear()
            template.labels.update(labels_of(number % 10_000))
            template.completed_at = CREATED_AT + YEAR * number // count + chance.randrange(60)
            if (completed := completed_deployment(template)) is not None:
                new.append(completed)
        block, chunks = add_deployments(Block(2026), {}, new)
        for meta in block.chunks:
            paths.append(directory / f"chunk-{start}-{meta.index}.json")
            paths[-1].write_bytes(encode_chunk(meta, chunks[meta.index]))
    return paths
