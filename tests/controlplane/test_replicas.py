# SPDX-License-Identifier: Apache-2.0
"""Two servers on one database are one control plane."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import psycopg
import pymysql
import pytest
from structlog.testing import capture_logs

from pipecd.config.controlplane import (
    ControlPlaneSpec,
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from pipecd.controlplane.app import ControlPlane, ServerSettings, control_plane
from pipecd.controlplane.auth.subject import Person
from pipecd.controlplane.bus.signal import Signal, Topic
from pipecd.controlplane.usecases.people.projects import StaticAdmin
from pipecd.model.errors import Unauthenticated
from pipecd.proto.model.apikey_pb2 import APIKey
from servers.databases import MariaDb, Postgres, Redis


@pytest.fixture(params=["postgres", "mariadb"])
def datastore(request: pytest.FixtureRequest) -> Iterator[DatastoreSpec]:
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE replicas")
            yield DatastoreSpec(
                type="POSTGRESQL", config=DatastoreConfig(url=server.url("replicas"))
            )
            connection.execute("DROP DATABASE replicas")
    else:
        mariadb: MariaDb = request.getfixturevalue("mariadb")
        with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as other:
            other.cursor().execute("CREATE DATABASE replicas")
            url = f"root@tcp(127.0.0.1:{mariadb.port})/replicas"
            yield DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))
            other.cursor().execute("DROP DATABASE replicas")


def settings(datastore: DatastoreSpec, files: Path, cache_address: str) -> ServerSettings:
    filestore = FilestoreSpec(type="LOCAL", config=FilestoreConfig(path=str(files)))
    spec = ControlPlaneSpec(address="", state_key="s", datastore=datastore, filestore=filestore)
    return ServerSettings(
        spec,
        b"k" * 32,
        host="127.0.0.1",
        port=0,
        grace_period=1,
        cache_address=cache_address,
    )


@pytest.fixture
async def replicas(
    datastore: DatastoreSpec, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[ControlPlane, ControlPlane]]:
    """Two servers: on PostgreSQL without anything else, on MariaDB with a Redis."""
    address = ""
    if datastore.type == "MYSQL":
        redis: Redis = request.getfixturevalue("redis")
        address = f"127.0.0.1:{redis.port}"
    chosen = settings(datastore, tmp_path / "files", address)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(control_plane(chosen))
        second = await stack.enter_async_context(control_plane(chosen))
        yield first, second


async def connected(one: ControlPlane, two: ControlPlane) -> None:
    """Waits until signals flow from one to the other."""
    probe = Signal(Topic.REPOSITORY, "probe", "p")
    async with two.bus.subscribe() as signals, asyncio.timeout(10):
        hearing = asyncio.create_task(_until(signals, probe))
        while not hearing.done():
            await one.bus.publish(probe)
            await asyncio.wait({hearing}, timeout=0.02)


async def _until(signals: AsyncIterator[Signal], wanted: Signal) -> None:
    async for signal in signals:
        if signal == wanted:
            return


async def test_a_key_that_one_disables_stops_working_at_the_other(
    replicas: tuple[ControlPlane, ControlPlane],
) -> None:
    one, two = replicas
    await connected(one, two)
    await one.cases.projects.add("demo", "", StaticAdmin("admin", "hello"))
    admin = Person(project="demo", name="admin", roles=("Admin",))
    key = await one.cases.api_keys.generate("ci", APIKey.READ_WRITE, by=admin)
    caller = await two.cases.credentials.api_key(key)
    assert caller.project == "demo"
    await one.cases.api_keys.disable(caller.key_id, by=admin)
    async with asyncio.timeout(1):
        while True:
            try:
                await two.cases.credentials.api_key(key)
            except Unauthenticated:
                break
            await asyncio.sleep(0.01)


async def test_mysql_without_a_redis_says_that_only_one_server_may_run(
    mariadb: MariaDb, tmp_path: Path
) -> None:
    with pymysql.connect(host="127.0.0.1", port=mariadb.port, user="root") as connection:
        connection.cursor().execute("CREATE DATABASE alone")
        url = f"root@tcp(127.0.0.1:{mariadb.port})/alone"
        spec = DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))
        with capture_logs() as logs:
            async with control_plane(settings(spec, tmp_path, "")):
                pass
        connection.cursor().execute("DROP DATABASE alone")
    told = [entry for entry in logs if "several replicas need a redis" in entry["event"]]
    assert [entry["hint"] for entry in told] == [
        "give all of them the same --cache-address, or run only one"
    ]
