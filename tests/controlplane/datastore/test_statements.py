# SPDX-License-Identifier: Apache-2.0
"""Single statements outside of a transaction: lookups and writes."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import psycopg
import pytest
from sqlalchemy import func, insert, literal_column, select, update

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.database import Database, Duplicate, OutcomeUnknown, Transaction
from pipecd.controlplane.datastore.engines import postgres as postgres_engine
from pipecd.controlplane.datastore.engines.postgres import (
    EXECUTE_CONNECTIONS,
    LOOKUP_CONNECTIONS,
    open_postgres,
    postgres_conninfo,
)
from pipecd.controlplane.datastore.expressions import Row, param
from pipecd.controlplane.datastore.schema import EXT_LOG_BLOCK, EXT_META
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake
from servers.databases import Postgres

TERMINATE_CONNECTIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pipecd'"
)


def insert_row(name: str, value: str = "v"):
    return insert(EXT_META).values(Name=name, Value=value)


def update_row(name: str, value: str):
    return update(EXT_META).where(EXT_META.c.Name == name).values(Value=value)


def select_row(name: str):
    return select(EXT_META.c.Value).where(EXT_META.c.Name == name)


async def lookup_value(database: Database, name: str) -> list[Row]:
    return list(await database.lookup(select_row(name)))


async def test_a_lookup_sees_earlier_writes(database: Database) -> None:
    assert await lookup_value(database, "a") == []
    assert await database.execute(insert_row("a", "old")) == 1
    assert await lookup_value(database, "a") == [("old",)]
    assert await database.execute(update_row("a", "new")) == 1
    assert await lookup_value(database, "a") == [("new",)]


async def test_an_update_without_a_match_changes_no_row(database: Database) -> None:
    assert await database.execute(update_row("a", "new")) == 0


async def test_an_existing_key_raises_duplicate(database: Database) -> None:
    await database.execute(insert_row("a"))
    for _ in range(2):
        with pytest.raises(Duplicate):
            await database.execute(insert_row("a"))
    assert await lookup_value(database, "a") == [("v",)]


async def test_values_of_every_type_are_stored_unchanged(database: Database) -> None:
    table = EXT_LOG_BLOCK
    text = "é\n'\\%s$1 " + "x" * 1_000_000
    row = {"DeploymentId": "d", "StageId": "s", "RetriedCount": 0, "BlockIndex": -(2**63)}
    await database.execute(insert(table).values(**row, Data=text))
    rows = await database.lookup(
        select(table.c.Data, table.c.BlockIndex, table.c.BlockIndex < 0, func.nullif(1, 1))
    )
    assert [(a, b, bool(c), d) for a, b, c, d in rows] == [(text, -(2**63), True, None)]


async def test_a_zero_byte_is_refused_before_it_is_sent(database: Database) -> None:
    with pytest.raises(UserMistake, match="zero byte"):
        await database.execute(insert_row("a\0b"))
    with pytest.raises(UserMistake, match="zero byte"):
        await lookup_value(database, "a\0b")


async def test_single_statements_and_transactions_see_each_other(database: Database) -> None:
    await database.write(lambda transaction: transaction.execute(insert_row("a")))
    assert await lookup_value(database, "a") == [("v",)]
    await database.execute(update_row("a", "new"))
    assert await database.read(lambda transaction: transaction.query(select_row("a"))) == [("new",)]


async def test_many_concurrent_statements_are_all_executed(database: Database) -> None:
    await asyncio.gather(*(database.execute(insert_row(f"n{i}")) for i in range(60)))
    rows = await asyncio.gather(*(lookup_value(database, f"n{i}") for i in range(60)))
    assert rows == [[("v",)]] * 60


async def test_a_closed_database_refuses_statements(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
) -> None:
    async with open_database() as database:
        await database.execute(insert_row("a"))
        await lookup_value(database, "a")
    with pytest.raises(Unavailable, match="the database is closed"):
        await database.execute(insert_row("x"))
    with pytest.raises(Unavailable, match="the database is closed"):
        await lookup_value(database, "x")


class TestAsynchronousConnections:
    """PostgreSQL runs single statements on the event loop."""

    @pytest.fixture
    def engine(self) -> str:
        return "postgres"

    async def test_a_lookup_is_retried_when_its_connection_is_lost(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(insert_row("a"))
        await lookup_value(database, "a")
        terminate_connections(postgres)
        assert await lookup_value(database, "a") == [("v",)]

    async def test_a_connection_that_is_lost_right_after_opening_is_replaced(
        self, postgres: Postgres, spec: DatastoreSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[psycopg.AsyncConnection[Any]] = []
        connect = postgres_engine.connect_async

        async def lost_at_first(conninfo: str) -> "psycopg.AsyncConnection[Any]":
            opened.append(await connect(conninfo))
            if len(opened) == 1:
                terminate_connections(postgres)
            return opened[-1]

        conninfo = postgres_conninfo(spec.config)
        async with open_postgres(conninfo, timeout=5) as database:
            monkeypatch.setattr(postgres_engine, "connect_async", lost_at_first)
            assert await lookup_value(database, "a") == []
        assert len(opened) == 2

    async def test_a_write_whose_connection_is_lost_has_an_unknown_outcome(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(insert_row("a"))
        for i in range(EXECUTE_CONNECTIONS):
            await database.execute(update_row("a", f"{i}"))
        terminate_connections(postgres)
        with pytest.raises(OutcomeUnknown):
            await database.execute(update_row("a", "new"))
        assert await database.execute(update_row("a", "newer")) == 1

    async def test_a_hanging_server_fails_statements_after_the_timeout(
        self, postgres: Postgres, spec: DatastoreSpec
    ) -> None:
        async with open_postgres(postgres_conninfo(spec.config), timeout=0.4) as database:
            await database.execute(insert_row("a"))
            postgres.signal(signal.SIGSTOP)
            try:
                hanging = [lookup_value(database, "a"), database.execute(update_row("a", "new"))]
                results = await asyncio.gather(*hanging, return_exceptions=True)
                assert [type(r) for r in results] == [StorageUnavailable] * 2
                assert "did not answer within 0.4 s" in str(results[0])
            finally:
                postgres.signal(signal.SIGCONT)
            await wait_for_rows(database, lambda rows: rows in ([("v",)], [("new",)]))

    async def test_writes_that_wait_for_a_lock_do_not_delay_lookups(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(insert_row("a"))
        with psycopg.connect(postgres.url("pipecd")) as other:
            other.execute("""UPDATE "ExtMeta" SET "Value" = 'theirs' WHERE "Name" = 'a'""")
            waiting = [
                asyncio.create_task(database.execute(update_row("a", f"ours {i}")))
                for i in range(EXECUTE_CONNECTIONS + 2)
            ]
            assert await lookup_value(database, "a") == [("v",)]
            assert not any(task.done() for task in waiting)
            other.commit()
            assert await asyncio.gather(*waiting) == [1] * (EXECUTE_CONNECTIONS + 2)

    async def test_a_started_statement_is_finished_after_its_caller_is_cancelled(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(insert_row("a"))
        with psycopg.connect(postgres.url("pipecd")) as other:
            other.execute("""UPDATE "ExtMeta" SET "Value" = 'theirs' WHERE "Name" = 'a'""")
            waiting = asyncio.create_task(database.execute(update_row("a", "ours")))
            await asyncio.to_thread(wait_for_a_lock, postgres)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            other.commit()
        await wait_for_rows(database, lambda rows: rows == [("ours",)])
        assert await database.execute(update_row("a", "again")) == 1

    async def test_many_statements_share_few_connections(
        self, postgres: Postgres, database: Database
    ) -> None:
        await asyncio.gather(*(database.execute(insert_row(f"n{i}")) for i in range(200)))
        await asyncio.gather(*(lookup_value(database, f"n{i}") for i in range(200)))
        with psycopg.connect(postgres.url("pipecd"), autocommit=True) as other:
            used = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pipecd'"
            (count,) = other.execute(used).fetchone() or (0,)
        assert 0 < count <= LOOKUP_CONNECTIONS + EXECUTE_CONNECTIONS

    async def test_only_single_statements_cache_their_plans(self, database: Database) -> None:
        mode = select(func.current_setting("plan_cache_mode"))
        assert await database.lookup(mode) == [("auto",)]
        assert await database.read(lambda t: t.query(mode)) == [("force_custom_plan",)]

    async def test_every_session_has_timeouts(self, database: Database) -> None:
        names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
        timeouts = select(*(func.current_setting(name) for name in names))
        expected = [("30s", "5s", "1min")]
        assert await database.lookup(timeouts) == expected
        assert await database.read(lambda t: t.query(timeouts)) == expected

    async def test_an_invalid_statement_does_not_affect_later_ones(
        self, database: Database
    ) -> None:
        wrong = update(EXT_META).values(Value=func.no_such_function(EXT_META.c.Name))
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedFunction):
                await database.execute(wrong)
        assert await database.execute(insert_row("a")) == 1

    async def test_a_stopped_server_raises_storage_unavailable(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(insert_row("a"))
        postgres.stop()
        try:
            with pytest.raises(StorageUnavailable):
                await lookup_value(database, "a")
            with pytest.raises((StorageUnavailable, OutcomeUnknown)):
                await database.execute(update_row("a", "new"))
        finally:
            postgres.start()
        await wait_for_rows(database, lambda rows: rows == [("v",)])


async def wait_for_rows(database: Database, is_expected: Callable[[list[Row]], bool]) -> None:
    """Waits until a lookup returns the expected rows, also while the server restarts."""
    async with asyncio.timeout(20):
        while True:
            with suppress(StorageUnavailable):
                if is_expected(await lookup_value(database, "a")):
                    return
            await asyncio.sleep(0.02)


def terminate_connections(server: Postgres) -> None:
    """Terminates all connections of the database under test on the server."""
    with psycopg.connect(server.url("pipecd"), autocommit=True) as connection:
        connection.execute(TERMINATE_CONNECTIONS)


def wait_for_a_lock(server: Postgres) -> None:
    """Waits until a connection of the database under test waits for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name = 'pipecd' AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        for _ in range(500):
            if connection.execute(waiting).fetchone() != (0,):
                return
            time.sleep(0.02)
    raise AssertionError("no connection waits for a lock")


ADD = insert(EXT_META).values(Name=param("name"), Value=param("value"))
UPDATE = update(EXT_META).where(EXT_META.c.Name == param("name")).values(Value=param("value"))
LOOKUP = select(EXT_META.c.Value).where(EXT_META.c.Name == param("name"))


async def stored(database: Database, name: str) -> str:
    ((value,),) = await database.lookup(LOOKUP, {"name": name})
    return value


async def test_concurrent_inserts_each_get_their_own_result(database: Database) -> None:
    await database.execute(ADD, {"name": "taken", "value": "first"})
    names = [f"n{i}" if i % 5 else "taken" for i in range(20)]
    results = await asyncio.gather(
        *(database.execute(ADD, {"name": name, "value": name}) for name in names),
        return_exceptions=True,
    )
    assert [
        isinstance(t, Duplicate) if n == "taken" else t == 1
        for n, t in zip(names, results, strict=True)
    ] == [True] * 20
    assert await stored(database, "taken") == "first"
    assert await stored(database, "n19") == "n19"


async def test_more_lookups_than_connections_are_all_answered(database: Database) -> None:
    await database.execute(ADD, {"name": "one", "value": "0"})
    lookups = [database.lookup(LOOKUP, {"name": "one" if i % 2 else "none"}) for i in range(300)]
    assert [len(rows) for rows in await asyncio.gather(*lookups)] == [i % 2 for i in range(300)]


@pytest.mark.usefixtures("row_locks")
async def test_concurrent_updates_of_one_row_all_succeed(database: Database) -> None:
    await database.execute(ADD, {"name": "one", "value": ""})
    changes = [database.execute(UPDATE, {"name": "one", "value": str(i)}) for i in range(50)]
    assert await asyncio.gather(*changes) == [1] * 50
    assert await stored(database, "one") in {str(i) for i in range(50)}


async def test_an_invalid_statement_fails_each_time_without_affecting_others(
    database: Database,
) -> None:
    await database.execute(ADD, {"name": "one", "value": "v"})
    wrong = select(literal_column("no_such_column")).where(EXT_META.c.Name == param("name"))
    for _ in range(2):
        results = await asyncio.gather(
            database.lookup(wrong, {"name": "one"}),
            database.lookup(LOOKUP, {"name": "one"}),
            return_exceptions=True,
        )
        assert isinstance(results[0], Exception)
        assert "no_such_column" in str(results[0])
        assert results[1] == [("v",)]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_a_statement_cancelled_before_it_starts_is_not_executed(database: Database) -> None:
    cancelled = asyncio.create_task(database.execute(ADD, {"name": "one", "value": "v"}))
    other = asyncio.create_task(database.execute(ADD, {"name": "two", "value": "v"}))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await other == 1
    assert await database.lookup(LOOKUP, {"name": "one"}) == []


@pytest.mark.parametrize("engine", ["mariadb", "postgres"])
async def test_a_write_that_waits_for_a_lock_does_not_delay_other_writes(
    database: Database,
) -> None:
    for name in ("held", "free"):
        await database.execute(ADD, {"name": name, "value": "0"})
    locked, release = asyncio.Event(), asyncio.Event()
    hold = asyncio.create_task(database.write(lock_row(locked, release)))
    await locked.wait()
    waits = asyncio.create_task(database.execute(UPDATE, {"name": "held", "value": "2"}))
    await asyncio.sleep(0.02)
    assert await database.execute(UPDATE, {"name": "free", "value": "1"}) == 1
    assert await stored(database, "held") == "0"
    assert not waits.done()
    release.set()
    await hold
    assert await waits == 1
    assert await stored(database, "held") == "2"


def lock_row(locked: asyncio.Event, release: asyncio.Event) -> Callable[[Transaction], None]:
    """Work that locks a row until `release` is set."""
    loop = asyncio.get_running_loop()

    def work(transaction: Transaction) -> None:
        transaction.execute(UPDATE, {"name": "held", "value": "1"})
        loop.call_soon_threadsafe(locked.set)
        asyncio.run_coroutine_threadsafe(release.wait(), loop).result(10)

    return work
