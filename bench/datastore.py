# SPDX-License-Identifier: Apache-2.0
"""How many reads and updates each store does in a second, asked as the servers ask it.

SQLite always; MariaDB, PostgreSQL and Dolt when their programs are installed.
"""

import argparse
import asyncio
import importlib
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from pipecd.config.controlplane.storage import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.assemble import assemble_stores
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.controlplane.stores import Stores
from pipecd.controlplane.stores.deployments import DeploymentFilter
from pipecd.controlplane.stores.documents import PageRequest
from pipecd.controlplane.stores.stagelogs import StageRun
from pipecd.model.ids import new_id
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import (
    Commit,
    Deployment,
    DeploymentTrigger,
    PipelineStage,
)
from pipecd.proto.model.logblock_pb2 import LogBlock

PROJECT = "bench"

# The servers are those of the tests.
sys.path.append(str(Path(__file__).parents[1] / "tests"))
databases: Any = importlib.import_module("servers.databases")
programs: Any = importlib.import_module("servers.programs")


def deployment() -> Deployment:
    """A deployment of five stages, as most of them are."""
    now = int(time.time())
    repo = ApplicationGitRepository(id="repo", remote="git@example.com:o/r.git", branch="main")
    commit = Commit(hash="c" * 40, message="change", author="dev", branch="main", created_at=now)
    stages = [
        PipelineStage(id=f"stage-{i}", name="K8S_SYNC", created_at=now, updated_at=now)
        for i in range(5)
    ]
    return Deployment(
        id=new_id(),
        application_id=new_id(),
        application_name="web",
        piped_id="piped",
        project_id=PROJECT,
        git_path=ApplicationGitPath(repo=repo, path="apps/web", config_filename="app.pipecd.yaml"),
        trigger=DeploymentTrigger(commit=commit, timestamp=now),
        labels={"env": "dev"},
        stages=stages,
        status=4,  # type: ignore[arg-type]
    )


async def per_second(
    name: str, clients: int, seconds: float, call: Callable[[int], Awaitable[object]]
) -> None:
    """Prints how many calls so many clients get answered in a second."""
    done = 0
    end = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await call(number)
            done += 1

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(client(number))
    rate = done / (time.perf_counter() - begin)
    print(f"{name:<34} {clients:>4} clients {rate:>10,.0f} /s")


async def measure(stores: Stores, documents: int, seconds: float) -> None:
    ids: list[str] = []
    for _ in range(documents):
        document = deployment()
        ids.append(document.id)
        await stores.deployments.add(document)
    counter = iter(range(10**9))

    async def read(_: int) -> None:
        await stores.deployments.get(ids[next(counter) % len(ids)])

    async def change(_: int) -> None:
        def reason(document: Deployment) -> None:
            document.status_reason = f"change {next(counter)}"

        await stores.deployments.update(ids[next(counter) % len(ids)], reason)

    async def add(_: int) -> None:
        await stores.deployments.add(deployment())

    async def page(_: int) -> None:
        wanted = DeploymentFilter(PROJECT, labels={"env": "dev"})
        await stores.deployments.listed(wanted, PageRequest(size=30))

    async def running(_: int) -> None:
        await stores.deployments.not_completed_of("piped")

    async def log(number: int) -> None:
        block = LogBlock(index=next(counter), log="a line of a log", created_at=1)
        await stores.stage_logs.append(StageRun(ids[number], "stage-0"), [block])

    for clients in (1, 50):
        await per_second("read one deployment", clients, seconds, read)
        await per_second("read, change, write a deployment", clients, seconds, change)
        await per_second("add a deployment", clients, seconds, add)
        await per_second("page of 30 by label", clients, seconds, page)
        await per_second("not completed, none found", clients, seconds, running)
        await per_second("append a line to a stage log", clients, seconds, log)


def sqlite(directory: str) -> DatastoreSpec:
    path = str(Path(directory) / "pipecd.db")
    return DatastoreSpec(type="SQLITE", config=DatastoreConfig(path=path))


def mysql(server: Any) -> DatastoreSpec:
    with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as connection:
        connection.cursor().execute("CREATE DATABASE bench")
    url = f"root@tcp(127.0.0.1:{server.port})/bench"
    return DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))


def postgresql(server: Any) -> DatastoreSpec:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE bench")
    return DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=server.url("bench")))


async def measure_engine(name: str, spec: DatastoreSpec, options: argparse.Namespace) -> None:
    print(f"-- {name}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        async with open_datastore(spec) as database:
            stores = assemble_stores(database, files, MemoryCache())
            await measure(stores, options.documents, options.seconds)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--engines", default="sqlite,mariadb,postgres,dolt")
    options = parser.parse_args()
    wanted = options.engines.split(",")
    if "sqlite" in wanted:
        with tempfile.TemporaryDirectory() as directory:
            await measure_engine("sqlite", sqlite(directory), options)
    for name, kind, spec in (
        ("mariadb", databases.MariaDb, mysql),
        ("postgres", databases.Postgres, postgresql),
        ("dolt", databases.Dolt, mysql),
    ):
        if name not in wanted:
            continue
        try:
            server = kind()
        except programs.NotInstalled as e:
            print(f"-- {name}: {e}")
            continue
        try:
            await measure_engine(name, spec(server), options)
        finally:
            server.close()


if __name__ == "__main__":
    asyncio.run(main())
