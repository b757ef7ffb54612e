# SPDX-License-Identifier: Apache-2.0
"""What only databases on servers do: replicas, outages, collisions."""

import asyncio
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, LiteralString, TypeVar, cast

import psycopg
import pymysql
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
from servers.databases import MariaDb, Postgres

Make = Callable[..., Application]
T = TypeVar("T")


@pytest.fixture(params=["mariadb", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def server(engine: str, request: pytest.FixtureRequest) -> MariaDb | Postgres:
    return request.getfixturevalue(engine)


@contextmanager
def sql(server: MariaDb | Postgres, database: str = "pipecd") -> Iterator[Callable[..., list[Any]]]:
    """Runs statements as an administrator does."""
    if isinstance(server, Postgres):
        with psycopg.connect(server.url(database), autocommit=True) as connection:

            def ask(text: str) -> list[Any]:
                cursor = connection.execute(cast("LiteralString", text))
                return cursor.fetchall() if cursor.description else []

            yield ask
    else:
        place: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "root"}
        with pymysql.connect(**place, database=database, autocommit=True) as connection:

            def ask(text: str) -> list[Any]:
                cursor = connection.cursor()
                cursor.execute(text)
                return list(cursor.fetchall())

            yield ask


@contextmanager
def empty_database(server: MariaDb | Postgres, name: str) -> Iterator[DatastoreSpec]:
    """A database without a single table."""
    administration = "postgres" if isinstance(server, Postgres) else "mysql"
    with sql(server, administration) as ask:
        ask(f"CREATE DATABASE {name}")
    try:
        yield spec_of(server, name)
    finally:
        with sql(server, administration) as ask:
            ask(f"DROP DATABASE {name}")


def spec_of(server: MariaDb | Postgres, name: str, user: str = "") -> DatastoreSpec:
    if isinstance(server, Postgres):
        url = server.url(name).replace("postgres@", f"{user or 'postgres'}@")
        return DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=url))
    url = f"{user or 'root'}@tcp(127.0.0.1:{server.port})/{name}"
    return DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))


def with_timeout(spec: DatastoreSpec, seconds: float) -> AbstractAsyncContextManager[Database]:
    if spec.type == "MYSQL":
        return open_mysql(mysql_address(spec.config), timeout=seconds)
    return open_postgres(postgres_conninfo(spec.config), timeout=seconds)


def add(name: str, value: str = "v") -> Callable[[Transaction], int]:
    statement = insert(EXT_META).values(Name=name, Value=value)
    return lambda transaction: transaction.execute(statement)


def value_of(name: str) -> Callable[[Transaction], str]:
    wanted = select(EXT_META.c.Value).where(EXT_META.c.Name == name)
    return lambda transaction: transaction.query(wanted)[0][0]


async def in_the_end(call: Callable[[], Awaitable[T]]) -> T:
    """The answer of a server that is about to come back."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await call()
            except Unavailable:
                await asyncio.sleep(0.02)


async def open_and_close(spec: DatastoreSpec) -> None:
    async with open_datastore(spec):
        pass


async def test_replicas_that_start_at_once_make_the_tables_once(
    server: MariaDb | Postgres,
) -> None:
    with empty_database(server, "fresh") as spec:
        await asyncio.gather(*(open_and_close(spec) for _ in range(6)))
        async with open_datastore(spec) as database:
            count = select(func.count()).select_from(EXT_META)
            assert await database.read(lambda t: t.query(count)[0][0]) >= 1


async def test_what_is_missing_is_added_and_the_rest_left_alone(
    server: MariaDb | Postgres,
) -> None:
    with empty_database(server, "damaged") as spec:
        await open_and_close(spec)
        quote = '"' if isinstance(server, Postgres) else "`"
        table = f"{quote}Deployment{quote}"
        with sql(server, "damaged") as ask:
            of = "" if quote == '"' else " ON Deployment"
            ask(f"DROP INDEX deployment_completed_at_id_asc{of}")
            ask(f"ALTER TABLE {table} DROP COLUMN {quote}DeploymentTraceCommitHash{quote}")
            ask(f"DROP TABLE {quote}ExtLabel{quote}")
        await open_and_close(spec)
        with sql(server, "damaged") as ask:
            ask(f"SELECT {quote}DeploymentTraceCommitHash{quote} FROM {table}")
            ask(f"SELECT * FROM {quote}ExtLabel{quote}")
            found = ask(
                "SELECT indexname FROM pg_indexes" if quote == '"' else f"SHOW INDEX FROM {table}"
            )
            assert "deployment_completed_at_id_asc" in str(found)


async def test_a_database_that_is_ready_needs_no_right_to_change_it(
    server: MariaDb | Postgres, spec: DatastoreSpec
) -> None:
    await open_and_close(spec)
    with sql(server) as ask:
        if isinstance(server, Postgres):
            ask("DROP ROLE IF EXISTS plain")
            ask("CREATE ROLE plain LOGIN")
            ask("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO plain")
        else:
            ask("DROP USER IF EXISTS plain")
            ask("CREATE USER plain")
            ask("GRANT SELECT, INSERT, UPDATE, DELETE ON pipecd.* TO plain")
    async with open_datastore(spec_of(server, "pipecd", "plain")) as database:
        await database.write(add("x"))
    if isinstance(server, Postgres):
        with sql(server) as ask:
            ask("DROP OWNED BY plain")


async def test_a_database_of_a_newer_version_is_left_alone(
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


async def test_a_database_that_does_not_exist_is_told(server: MariaDb | Postgres) -> None:
    with pytest.raises(UserMistake, match=r"nowhere on 127.*is denied"):
        await open_and_close(spec_of(server, "nowhere"))


async def test_a_server_that_is_not_there_is_told(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "WAIT_SECONDS", 0.1)
    url = {
        "mariadb": "root:secret@tcp(127.0.0.1:1)/x",
        "postgres": "postgres://u:secret@127.0.0.1:1/x",
    }
    type = {"mariadb": "MYSQL", "postgres": "POSTGRESQL"}[engine]
    spec = DatastoreSpec(type=type, config=DatastoreConfig(url=url[engine]))
    with pytest.raises(Unavailable, match=r"x on 127.0.0.1:1 cannot be reached") as told:
        await open_and_close(spec)
    assert "secret" not in str(told.value)


async def test_a_server_that_starts_later_is_waited_for(
    server: MariaDb | Postgres, spec: DatastoreSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(server_engine, "WAIT_SECONDS", 30)
    server.stop()
    started = asyncio.ensure_future(asyncio.to_thread(server.start))
    await open_and_close(spec)
    await started


async def test_an_outage_fails_calls_and_loses_nothing(
    server: MariaDb | Postgres,
    open_stores: Callable[[], AbstractAsyncContextManager[Stores]],
    application: Make,
) -> None:
    async with open_stores() as stores:
        kept = application()
        await stores.applications.add(kept)
        server.stop()
        began = time.monotonic()
        for _ in range(20):
            with pytest.raises(Unavailable):
                await stores.applications.get(kept.id)
            with pytest.raises(Unavailable):
                await stores.applications.add(application())
        assert time.monotonic() - began < 5
        await asyncio.to_thread(server.start)
        assert await in_the_end(lambda: stores.applications.get(kept.id)) == kept
        await stores.applications.add(application())


async def test_what_was_answered_before_a_kill_is_there_after_it(
    server: MariaDb | Postgres,
    open_stores: Callable[[], AbstractAsyncContextManager[Stores]],
    application: Make,
) -> None:
    answered: list[str] = []
    enough = asyncio.Event()

    async def write(stores: Stores) -> None:
        for _ in range(1000):
            document = application()
            await stores.applications.add(document)
            answered.append(document.id)
            if len(answered) >= 100:
                enough.set()

    async with open_stores() as stores:
        writers = [asyncio.create_task(write(stores)) for _ in range(8)]
        await enough.wait()
        await asyncio.to_thread(server.stop)
        results = await asyncio.gather(*writers, return_exceptions=True)
        assert {type(r) for r in results} == {StorageUnavailable}
        await asyncio.to_thread(server.start)
    async with open_stores() as stores:
        found = await stores.applications.get_many(tuple(answered))
    assert set(found) == set(answered)


async def test_a_connection_that_was_cut_is_replaced_unseen(
    server: MariaDb | Postgres, database: Database
) -> None:
    await database.write(add("a"))
    await database.read(value_of("a"))
    with sql(server) as ask:
        if isinstance(server, Postgres):
            ask(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'pipecd'"
            )
        else:
            for row in ask("SHOW PROCESSLIST"):
                if row[3] == "pipecd" and row[4] == "Sleep":
                    ask(f"KILL {row[0]}")
    assert await database.read(value_of("a")) == "v"
    await database.write(add("b"))


async def test_a_server_that_hangs_is_not_waited_for(
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
        assert await in_the_end(lambda: database.read(value_of("before"))) == "v"
        await database.write(add("after"))


async def test_a_deadlock_is_solved_by_doing_it_again(database: Database) -> None:
    for name in ("a", "b"):
        await database.write(add(name, "0"))
    both = threading.Barrier(2)

    def transfer(first: str, second: str) -> Callable[[Transaction], None]:
        tries = 0

        def work(transaction: Transaction) -> None:
            nonlocal tries
            tries += 1
            change(transaction, first)
            if tries == 1:
                both.wait(10)
            change(transaction, second)

        return work

    def change(transaction: Transaction, name: str) -> None:
        row = EXT_META.c.Name == name
        (value,) = transaction.query(select(EXT_META.c.Value).where(row).with_for_update())[0]
        transaction.execute(update(EXT_META).where(row).values(Value=f"{int(value) + 1}"))

    await asyncio.gather(database.write(transfer("a", "b")), database.write(transfer("b", "a")))
    assert [await database.read(value_of(name)) for name in ("a", "b")] == ["2", "2"]


async def test_work_that_was_overtaken_is_done_again(database: Database) -> None:
    await database.write(add("x"))
    tries = 0

    def overtaken(transaction: Transaction) -> int:
        nonlocal tries
        tries += 1
        return add("x" if tries == 1 else "y")(transaction)

    assert await database.write(overtaken) == 1
    with pytest.raises(Duplicate):
        await database.write(add("x"))


async def test_several_questions_see_one_state(database: Database) -> None:
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


async def test_half_of_a_failed_work_is_undone(database: Database) -> None:
    def half(transaction: Transaction) -> None:
        add("half")(transaction)
        raise LookupError("the other half")

    with pytest.raises(LookupError):
        await database.write(half)
    count = select(func.count()).select_from(EXT_META).where(EXT_META.c.Name == "half")
    assert await database.read(lambda t: t.query(count)[0][0]) == 0


async def test_more_callers_than_connections_are_all_served(
    server: MariaDb | Postgres, database: Database
) -> None:
    await database.write(add("x"))
    await asyncio.gather(*(database.read(value_of("x")) for _ in range(300)))
    await asyncio.gather(*(database.write(add(f"n{i}")) for i in range(100)))
    with sql(server) as ask:
        used = (
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pipecd'"
            if isinstance(server, Postgres)
            else "SELECT count(*) - 1 FROM information_schema.PROCESSLIST WHERE DB = 'pipecd'"
        )
        assert ask(used)[0][0] <= 12


async def test_nothing_is_accepted_after_the_end(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
) -> None:
    async with open_database() as database:
        pass
    with pytest.raises(Unavailable, match="the database is closed"):
        await database.write(add("x"))


async def test_every_table_is_there(server: MariaDb | Postgres, spec: DatastoreSpec) -> None:
    await open_and_close(spec)
    listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    with sql(server) as ask:
        names = listed if isinstance(server, Postgres) else "SHOW TABLES"
        assert {name for (name,) in ask(names)} == set(METADATA.tables)
