# SPDX-License-Identifier: Apache-2.0
"""Reads and updates per second of each datastore engine, through the stores of the control plane.

Always measures SQLite; MariaDB, PostgreSQL and Dolt if their programs are installed.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.deployments import DeploymentFilter
from pipecd.controlplane.datastore.documents import PageRequest
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stage_logs import StageRun
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.ids import new_id
from pipecd.proto.model.deployment_pb2 import Deployment
from pipecd.proto.model.logblock_pb2 import LogBlock
from rig.engines import NotInstalled, engine
from rig.seed import PROJECT, deployment


async def per_second(
    name: str, clients: int, seconds: float, call: Callable[[int], Awaitable[object]]
) -> None:
    """Prints how many calls per second so many concurrent clients complete."""
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
        document = deployment(new_id(), "piped")
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
        await stores.deployments.add(deployment(new_id(), "piped"))

    async def page(_: int) -> None:
        filters = DeploymentFilter(PROJECT, labels={"env": "dev"})
        await stores.deployments.list(filters, PageRequest(size=30))

    async def running(_: int) -> None:
        await stores.deployments.list_not_completed("no such piped")

    async def log(number: int) -> None:
        block = LogBlock(index=next(counter), log="a line of a log", created_at=1)
        await stores.stage_logs.append(StageRun(ids[number], "stage-0"), [block])

    for clients in (1, 50):
        await per_second("read one deployment", clients, seconds, read)
        await per_second("read, change, write a deployment", clients, seconds, change)
        await per_second("add a deployment", clients, seconds, add)
        await per_second("page of 30 by label", clients, seconds, page)
        await per_second("not completed, no match", clients, seconds, running)
        await per_second("append a line to a stage log", clients, seconds, log)


async def measure_engine(spec: DatastoreSpec, options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as directory:
        files = await LocalFiles.open(Path(directory))
        async with open_datastore(spec) as database:
            stores = create_stores(database, files, MemoryCache())
            await measure(stores, options.documents, options.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--engines", default="sqlite,mariadb,postgres,dolt")
    options = parser.parse_args()
    for name in options.engines.split(","):
        print(f"-- {name}", flush=True)
        try:
            with engine(name) as datastore:
                asyncio.run(measure_engine(datastore, options))
        except NotInstalled as e:
            print(e)


if __name__ == "__main__":
    main()
