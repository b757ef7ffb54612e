# SPDX-License-Identifier: Apache-2.0
"""Databases on servers: concurrent replicas, outages, deadlocks and timeouts."""

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import pytest
from sqlalchemy import func, insert, select, update

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction
from pipecd.controlplane.datastore.engines import server as server_engine
from pipecd.controlplane.datastore.engines.mysql import mysql_address, open_mysql
from pipecd.controlplane.datastore.engines.postgres import open_postgres, postgres_conninfo
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.schema import EXT_META, METADATA
from pipecd.controlplane.datastore.stores import Stores
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake
from pipecd.proto.model.application_pb2 import Application
from servers.databases import MariaDb, Postgres, empty_database, spec_of, sql

Make = Callable[..., Application]
T = TypeVar("T")


@pytest.fixture(params=["mariadb", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def server(engine: str, request: pytest.FixtureRequest) -> MariaDb | Postgres:
    return request.getfixturevalue(engine)


def with_timeout(spec: DatastoreSpec, seconds: float) -> AbstractAsyncContextManager[Database]:
    if spec.type == "MYSQL":
        return open_mysql(mysql_address(spec.config), timeout=seconds)
    return open_postgres(postgres_conninfo(spec.config), timeout=seconds)


def add(name: str, value: str = "v") -> Callable[[Transaction], int]:
    statement = insert(EXT_META).values(Name=name, Value=value)
    return lambda transaction: transaction.execute(statement)


def value_of(name: str) -> Callable[[Transaction], str]:
    statement = select(EXT_META.c.Value).where(EXT_META.c.Name == name)
    return lambda transaction: transaction.query(statement)[0][0]


async def retry_until_available(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats the call until the server is available again."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.02)


async def open_and_close(spec: DatastoreSpec) -> None:
    async with open_datastore(spec):
        pass


async def test_replicas_that_start_concurrently_create_the_tables_once(
    server: MariaDb | Postgres,
) -> None:
    with empty_database(server, "fresh") as spec:
        await asyncio.gather(*(open_and_close(spec) for _ in range(6)))
        async with open_datastore(spec) as database:
            count = select(func.count()).select_from(EXT_META)
            assert await database.read(lambda t: t.query(count)[0][0]) >= 1


async def test_missing_columns_indexes_and_tables_are_created(
    server: MariaDb | Postgres,
) -> None:
    with empty_database(server, "damaged") as spec:
        await open_and_close(spec)
        quote = '"' if isinstance(server, Postgres) else "`"
        table = f"{quote}Deployment{quote}"
        with sql(server, "damaged") as run:
            of = "" if quote == '"' else " ON Deployment"
            run(f"DROP INDEX deployment_completed_at_id_asc{of}")
            run(f"ALTER TABLE {table} DROP COLUMN {quote}DeploymentTraceCommitHash{quote}")
            run(f"DROP TABLE {quote}ExtLabel{quote}")
        await open_and_close(spec)
        with sql(server, "damaged") as run:
            run(f"SELECT {quote}DeploymentTraceCommitHash{quote} FROM {table}")
            run(f"SELECT * FROM {quote}ExtLabel{quote}")
            indexes = run(
                "SELECT indexname FROM pg_indexes" if quote == '"' else f"SHOW INDEX FROM {table}"
            )
            assert "deployment_completed_at_id_asc" in str(indexes)


async def test_a_database_with_all_tables_needs_no_privilege_to_create_them(
    server: MariaDb | Postgres, spec: DatastoreSpec
) -> None:
    await open_and_close(spec)
    with sql(server) as run:
        if isinstance(server, Postgres):
            run("DROP ROLE IF EXISTS plain")
            run("CREATE ROLE plain LOGIN")
            run("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO plain")
        else:
            run("DROP USER IF EXISTS plain")
            run("CREATE USER plain")
            run("GRANT SELECT, INSERT, UPDATE, DELETE ON pipecd.* TO plain")
    async with open_datastore(spec_of(server, "pipecd", "plain")) as database:
        await database.write(add("x"))
    if isinstance(server, Postgres):
        with sql(server) as run:
            run("DROP OWNED BY plain")


async def test_a_database_of_a_newer_version_is_refused(
    spec: DatastoreSpec, open_database: Callable[[], AbstractAsyncContextManager[Database]]
) -> None:
    newer = update(EXT_META).where(EXT_META.c.Name == "schema_version")
    async with open_database() as database:
        await database.write(lambda t: t.execute(newer.values(Value="999")))
        try:
            with pytest.raises(UserMistake, match=r"pipecd on 127.*newer version"):
                await open_and_close(spec)
        finally:
            await database.write(lambda t: t.execute(newer.values(Value="1")))


async def test_a_database_that_does_not_exist_is_reported(server: MariaDb | Postgres) -> None:
    with pytest.raises(UserMistake, match=r"nowhere on 127.*is denied"):
        await open_and_close(spec_of(server, "nowhere"))


async def test_an_unreachable_server_is_reported_without_the_password(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "WAIT_SECONDS", 0.1)
    url = {
        "mariadb": "root:secret@tcp(127.0.0.1:1)/x",
        "postgres": "postgres://u:secret@127.0.0.1:1/x",
    }
    type = {"mariadb": "MYSQL", "postgres": "POSTGRESQL"}[engine]
    spec = DatastoreSpec(type=type, config=DatastoreConfig(url=url[engine]))
    with pytest.raises(Unavailable, match=r"x on 127.0.0.1:1 cannot be reached") as raised:
        await open_and_close(spec)
    assert "secret" not in str(raised.value)


async def test_opening_waits_for_a_server_that_starts_later(
    server: MariaDb | Postgres, spec: DatastoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(server_engine, "WAIT_SECONDS", 30)
    server.stop()
    started = asyncio.ensure_future(asyncio.to_thread(server.start))
    await open_and_close(spec)
    await started


async def test_calls_fail_during_an_outage_and_succeed_after_it(
    server: MariaDb | Postgres,
    open_stores: Callable[[], AbstractAsyncContextManager[Stores]],
    application: Make,
) -> None:
    async with open_stores() as stores:
        document = application()
        await stores.applications.add(document)
        server.stop()
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(Unavailable):
                await stores.applications.get(document.id)
            with pytest.raises(Unavailable):
                await stores.applications.add(application())
        assert time.monotonic() - began < 5
        await asyncio.to_thread(server.start)
        assert await retry_until_available(lambda: stores.applications.get(document.id)) == document
        await stores.applications.add(application())


async def test_confirmed_writes_survive_a_killed_server(
    server: MariaDb | Postgres,
    open_stores: Callable[[], AbstractAsyncContextManager[Stores]],
    application: Make,
) -> None:
    confirmed: list[str] = []
    enough = asyncio.Event()

    async def write(stores: Stores) -> None:
        for _ in range(1000):
            document = application()
            await stores.applications.add(document)
            confirmed.append(document.id)
            if len(confirmed) >= 100:
                enough.set()

    async with open_stores() as stores:
        writers = [asyncio.create_task(write(stores)) for _ in range(8)]
        await enough.wait()
        await asyncio.to_thread(server.stop)
        results = await asyncio.gather(*writers, return_exceptions=True)
        assert {type(r) for r in results} == {StorageUnavailable}
        await asyncio.to_thread(server.start)
    async with open_stores() as stores:
        indexes = await stores.applications.get_many(tuple(confirmed))
    assert set(indexes) == set(confirmed)


async def test_a_terminated_connection_is_replaced_without_an_error(
    server: MariaDb | Postgres, database: Database
) -> None:
    await database.write(add("a"))
    await database.read(value_of("a"))
    with sql(server) as run:
        if isinstance(server, Postgres):
            run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'pipecd'"
            )
        else:
            for row in run("SHOW PROCESSLIST"):
                if row[3] == "pipecd" and row[4] == "Sleep":
                    run(f"KILL {row[0]}")
    assert await database.read(value_of("a")) == "v"
    await database.write(add("b"))


async def test_a_hanging_server_fails_calls_after_the_timeout(
    server: MariaDb | Postgres, spec: DatastoreSpec
) -> None:
    async with with_timeout(spec, 0.4) as database:
        await database.write(add("before"))
        server.signal(signal.SIGSTOP)
        try:
            hanging = [database.read(value_of("before")), database.write(add("during"))]
            results = await asyncio.gather(*hanging, return_exceptions=True)
            assert [type(r) for r in results] == [StorageUnavailable] * 2
            assert "did not answer within 0.4 s" in str(results[0])
        finally:
            server.signal(signal.SIGCONT)
        assert await retry_until_available(lambda: database.read(value_of("before"))) == "v"
        await database.write(add("after"))


async def test_a_deadlock_is_retried(database: Database) -> None:
    for name in ("a", "b"):
        await database.write(add(name, "0"))
    both = threading.Barrier(2)

    def transfer(first: str, second: str) -> Callable[[Transaction], None]:
        attempts = 0

        def work(transaction: Transaction) -> None:
            nonlocal attempts
            attempts += 1
            change(transaction, first)
            if attempts == 1:
                both.wait(10)
            change(transaction, second)

        return work

    def change(transaction: Transaction, name: str) -> None:
        row = EXT_META.c.Name == name
        (value,) = transaction.query(select(EXT_META.c.Value).where(row).with_for_update())[0]
        transaction.execute(update(EXT_META).where(row).values(Value=f"{int(value) + 1}"))

    await asyncio.gather(database.write(transfer("a", "b")), database.write(transfer("b", "a")))
    assert [await database.read(value_of(name)) for name in ("a", "b")] == ["2", "2"]


async def test_work_that_hits_a_duplicate_is_retried(database: Database) -> None:
    await database.write(add("x"))
    attempts = 0

    def racing(transaction: Transaction) -> int:
        nonlocal attempts
        attempts += 1
        return add("x" if attempts == 1 else "y")(transaction)

    assert await database.write(racing) == 1
    with pytest.raises(Duplicate):
        await database.write(add("x"))


async def test_queries_of_one_read_see_the_same_snapshot(database: Database) -> None:
    await database.write(add("x", "old"))
    loop = asyncio.get_running_loop()
    renew = update(EXT_META).where(EXT_META.c.Name == "x").values(Value="new")

    def twice(transaction: Transaction) -> tuple[str, str]:
        first = value_of("x")(transaction)
        written = asyncio.run_coroutine_threadsafe(database.write(lambda t: t.execute(renew)), loop)
        written.result(timeout=10)
        return first, value_of("x")(transaction)

    assert await database.read(twice) == ("old", "old")
    assert await database.read(value_of("x")) == "new"


async def test_work_that_raises_is_rolled_back(database: Database) -> None:
    def half(transaction: Transaction) -> None:
        add("half")(transaction)
        raise LookupError("the other half")

    with pytest.raises(LookupError):
        await database.write(half)
    count = select(func.count()).select_from(EXT_META).where(EXT_META.c.Name == "half")
    assert await database.read(lambda t: t.query(count)[0][0]) == 0


async def test_more_callers_than_connections_are_all_served_within_the_pool(
    server: MariaDb | Postgres, database: Database
) -> None:
    await database.write(add("x"))
    await asyncio.gather(*(database.read(value_of("x")) for _ in range(300)))
    await asyncio.gather(*(database.write(add(f"n{i}")) for i in range(100)))
    with sql(server) as run:
        used = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pipecd'"
            if isinstance(server, Postgres)
            else "SELECT count(*) - 1 FROM information_schema.PROCESSLIST WHERE DB = 'pipecd'"
        )
        assert run(used)[0][0] <= 12


async def test_a_closed_database_refuses_work(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
) -> None:
    async with open_database() as database:
        pass
    with pytest.raises(Unavailable, match="the database is closed"):
        await database.write(add("x"))


async def test_opening_creates_every_table(server: MariaDb | Postgres, spec: DatastoreSpec) -> None:
    await open_and_close(spec)
    listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    with sql(server) as run:
        names = listed if isinstance(server, Postgres) else "SHOW TABLES"
        assert {name for (name,) in run(names)} == set(METADATA.tables)
