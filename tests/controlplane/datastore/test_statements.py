# SPDX-License-Identifier: Apache-2.0
"""Single statements, which need no transaction: a glance at few rows, a change by itself."""

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

CUT = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pipecd'"


def adding(name: str, value: str = "v"):
    return insert(EXT_META).values(Name=name, Value=value)


def renaming(name: str, value: str):
    return update(EXT_META).where(EXT_META.c.Name == name).values(Value=value)


def value_of(name: str):
    return select(EXT_META.c.Value).where(EXT_META.c.Name == name)


async def seen(database: Database, name: str) -> list[Row]:
    return list(await database.lookup(value_of(name)))


async def test_a_glance_sees_what_was_changed(database: Database) -> None:
    assert await seen(database, "a") == []
    assert await database.execute(adding("a", "old")) == 1
    assert await seen(database, "a") == [("old",)]
    assert await database.execute(renaming("a", "new")) == 1
    assert await seen(database, "a") == [("new",)]


async def test_a_change_that_fits_no_row_changes_none(database: Database) -> None:
    assert await database.execute(renaming("a", "new")) == 0


async def test_a_key_that_is_taken_is_a_duplicate(database: Database) -> None:
    await database.execute(adding("a"))
    for _ in range(2):
        with pytest.raises(Duplicate):
            await database.execute(adding("a"))
    assert await seen(database, "a") == [("v",)]


async def test_values_of_every_kind_come_back_as_they_went(database: Database) -> None:
    table = EXT_LOG_BLOCK
    text = "é\n'\\%s$1 " + "x" * 1_000_000
    row = {"DeploymentId": "d", "StageId": "s", "RetriedCount": 0, "BlockIndex": -(2**63)}
    await database.execute(insert(table).values(**row, Data=text))
    found = await database.lookup(
        select(table.c.Data, table.c.BlockIndex, table.c.BlockIndex < 0, func.nullif(1, 1))
    )
    assert [(a, b, bool(c), d) for a, b, c, d in found] == [(text, -(2**63), True, None)]


async def test_a_zero_byte_is_refused_before_it_is_sent(database: Database) -> None:
    with pytest.raises(UserMistake, match="zero byte"):
        await database.execute(adding("a\0b"))
    with pytest.raises(UserMistake, match="zero byte"):
        await seen(database, "a\0b")


async def test_single_statements_and_transactions_see_each_other(database: Database) -> None:
    await database.write(lambda transaction: transaction.execute(adding("a")))
    assert await seen(database, "a") == [("v",)]
    await database.execute(renaming("a", "new"))
    assert await database.read(lambda transaction: transaction.query(value_of("a"))) == [("new",)]


async def test_many_at_once_are_all_done(database: Database) -> None:
    await asyncio.gather(*(database.execute(adding(f"n{i}")) for i in range(60)))
    found = await asyncio.gather(*(seen(database, f"n{i}") for i in range(60)))
    assert found == [[("v",)]] * 60


async def test_nothing_is_accepted_after_the_end(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
) -> None:
    async with open_database() as database:
        await database.execute(adding("a"))
        await seen(database, "a")
    with pytest.raises(Unavailable, match="the database is closed"):
        await database.execute(adding("x"))
    with pytest.raises(Unavailable, match="the database is closed"):
        await seen(database, "x")


class TestOnTheEventLoop:
    """PostgreSQL is asked without threads."""

    @pytest.fixture
    def engine(self) -> str:
        return "postgres"

    async def test_a_glance_outlives_its_connection(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(adding("a"))
        await seen(database, "a")
        cut(postgres)
        assert await seen(database, "a") == [("v",)]

    async def test_a_connection_that_breaks_when_it_is_opened_is_replaced(
        self, postgres: Postgres, spec: DatastoreSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[psycopg.AsyncConnection[Any]] = []
        connect = postgres_engine.connect_async

        async def broken_at_first(conninfo: str) -> "psycopg.AsyncConnection[Any]":
            opened.append(await connect(conninfo))
            if len(opened) == 1:
                cut(postgres)
            return opened[-1]

        conninfo = postgres_conninfo(spec.config)
        async with open_postgres(conninfo, timeout=5) as database:
            monkeypatch.setattr(postgres_engine, "connect_async", broken_at_first)
            assert await seen(database, "a") == []
        assert len(opened) == 2

    async def test_a_change_whose_connection_broke_is_in_doubt_once(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(adding("a"))
        for i in range(EXECUTE_CONNECTIONS):
            await database.execute(renaming("a", f"{i}"))
        cut(postgres)
        with pytest.raises(OutcomeUnknown):
            await database.execute(renaming("a", "new"))
        assert await database.execute(renaming("a", "newer")) == 1

    async def test_a_server_that_hangs_is_not_waited_for(
        self, postgres: Postgres, spec: DatastoreSpec
    ) -> None:
        async with open_postgres(postgres_conninfo(spec.config), timeout=0.4) as database:
            await database.execute(adding("a"))
            postgres.signal(signal.SIGSTOP)
            try:
                hanging = [seen(database, "a"), database.execute(renaming("a", "new"))]
                results = await asyncio.gather(*hanging, return_exceptions=True)
                assert [type(r) for r in results] == [StorageUnavailable] * 2
                assert "did not answer within 0.4 s" in str(results[0])
            finally:
                postgres.signal(signal.SIGCONT)
            await in_the_end(database, lambda rows: rows in ([("v",)], [("new",)]))

    async def test_whoever_waits_for_a_lock_does_not_hold_up_those_who_look(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(adding("a"))
        with psycopg.connect(postgres.url("pipecd")) as other:
            other.execute("""UPDATE "ExtMeta" SET "Value" = 'theirs' WHERE "Name" = 'a'""")
            waiting = [
                asyncio.create_task(database.execute(renaming("a", f"ours {i}")))
                for i in range(EXECUTE_CONNECTIONS + 2)
            ]
            assert await seen(database, "a") == [("v",)]
            assert not any(task.done() for task in waiting)
            other.commit()
            assert await asyncio.gather(*waiting) == [1] * (EXECUTE_CONNECTIONS + 2)

    async def test_what_was_begun_is_finished_when_nobody_waits_any_more(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(adding("a"))
        with psycopg.connect(postgres.url("pipecd")) as other:
            other.execute("""UPDATE "ExtMeta" SET "Value" = 'theirs' WHERE "Name" = 'a'""")
            waiting = asyncio.create_task(database.execute(renaming("a", "ours")))
            await asyncio.to_thread(wait_for_a_lock, postgres)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            other.commit()
        await in_the_end(database, lambda rows: rows == [("ours",)])
        assert await database.execute(renaming("a", "again")) == 1

    async def test_it_takes_few_connections(self, postgres: Postgres, database: Database) -> None:
        await asyncio.gather(*(database.execute(adding(f"n{i}")) for i in range(200)))
        await asyncio.gather(*(seen(database, f"n{i}") for i in range(200)))
        with psycopg.connect(postgres.url("pipecd"), autocommit=True) as other:
            used = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pipecd'"
            (count,) = other.execute(used).fetchone() or (0,)
        assert 0 < count <= LOOKUP_CONNECTIONS + EXECUTE_CONNECTIONS

    async def test_only_the_plans_of_single_statements_are_kept(self, database: Database) -> None:
        mode = select(func.current_setting("plan_cache_mode"))
        assert await database.lookup(mode) == [("auto",)]
        assert await database.read(lambda t: t.query(mode)) == [("force_custom_plan",)]

    async def test_a_statement_that_the_server_does_not_understand_harms_no_other(
        self, database: Database
    ) -> None:
        wrong = update(EXT_META).values(Value=func.no_such_function(EXT_META.c.Name))
        for _ in range(2):
            with pytest.raises(psycopg.errors.UndefinedFunction):
                await database.execute(wrong)
        assert await database.execute(adding("a")) == 1

    async def test_a_server_that_is_away_is_told_so(
        self, postgres: Postgres, database: Database
    ) -> None:
        await database.execute(adding("a"))
        postgres.stop()
        try:
            with pytest.raises(StorageUnavailable):
                await seen(database, "a")
            with pytest.raises((StorageUnavailable, OutcomeUnknown)):
                await database.execute(renaming("a", "new"))
        finally:
            postgres.start()
        await in_the_end(database, lambda rows: rows == [("v",)])


async def in_the_end(database: Database, fits: Callable[[list[Row]], bool]) -> None:
    """Waits until a glance finds what it should, also while the server is coming back."""
    async with asyncio.timeout(20):
        while True:
            with suppress(StorageUnavailable):
                if fits(await seen(database, "a")):
                    return
            await asyncio.sleep(0.02)


def cut(server: Postgres) -> None:
    """Ends every connection of ours on the side of the server."""
    with psycopg.connect(server.url("pipecd"), autocommit=True) as connection:
        connection.execute(CUT)


def wait_for_a_lock(server: Postgres) -> None:
    """Until a connection of ours waits for a lock."""
    asked = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE application_name = 'pipecd' AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        for _ in range(500):
            if connection.execute(asked).fetchone() != (0,):
                return
            time.sleep(0.02)
    raise AssertionError("nobody waits for a lock")


ADD = insert(EXT_META).values(Name=param("name"), Value=param("value"))
CHANGE = update(EXT_META).where(EXT_META.c.Name == param("name")).values(Value=param("value"))
LOOK = select(EXT_META.c.Value).where(EXT_META.c.Name == param("name"))


async def stored(database: Database, name: str) -> str:
    ((value,),) = await database.lookup(LOOK, {"name": name})
    return value


async def test_those_that_come_together_are_each_told_how_they_ended(database: Database) -> None:
    await database.execute(ADD, {"name": "taken", "value": "first"})
    names = [f"n{i}" if i % 5 else "taken" for i in range(20)]
    told = await asyncio.gather(
        *(database.execute(ADD, {"name": name, "value": name}) for name in names),
        return_exceptions=True,
    )
    assert [
        isinstance(t, Duplicate) if n == "taken" else t == 1
        for n, t in zip(names, told, strict=True)
    ] == [True] * 20
    assert await stored(database, "taken") == "first"
    assert await stored(database, "n19") == "n19"


async def test_more_than_go_at_once_are_all_answered(database: Database) -> None:
    await database.execute(ADD, {"name": "one", "value": "0"})
    looks = [database.lookup(LOOK, {"name": "one" if i % 2 else "none"}) for i in range(300)]
    assert [len(rows) for rows in await asyncio.gather(*looks)] == [i % 2 for i in range(300)]


@pytest.mark.usefixtures("row_locks")
async def test_changes_of_one_row_that_come_together_are_all_made(database: Database) -> None:
    await database.execute(ADD, {"name": "one", "value": ""})
    changes = [database.execute(CHANGE, {"name": "one", "value": str(i)}) for i in range(50)]
    assert await asyncio.gather(*changes) == [1] * 50
    assert await stored(database, "one") in {str(i) for i in range(50)}


async def test_a_statement_that_cannot_be_run_fails_alone_and_every_time(
    database: Database,
) -> None:
    await database.execute(ADD, {"name": "one", "value": "v"})
    wrong = select(literal_column("no_such_column")).where(EXT_META.c.Name == param("name"))
    for _ in range(2):
        told = await asyncio.gather(
            database.lookup(wrong, {"name": "one"}),
            database.lookup(LOOK, {"name": "one"}),
            return_exceptions=True,
        )
        assert isinstance(told[0], Exception)
        assert "no_such_column" in str(told[0])
        assert told[1] == [("v",)]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_what_nobody_waits_for_any_more_is_not_begun(database: Database) -> None:
    given_up = asyncio.create_task(database.execute(ADD, {"name": "one", "value": "v"}))
    kept = asyncio.create_task(database.execute(ADD, {"name": "two", "value": "v"}))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await kept == 1
    assert await database.lookup(LOOK, {"name": "one"}) == []


@pytest.mark.parametrize("engine", ["mariadb", "postgres"])
async def test_one_that_waits_for_a_lock_holds_up_nobody_else(database: Database) -> None:
    for name in ("held", "free"):
        await database.execute(ADD, {"name": name, "value": "0"})
    holding, let_go = asyncio.Event(), asyncio.Event()
    hold = asyncio.create_task(database.write(holder(holding, let_go)))
    await holding.wait()
    waits = asyncio.create_task(database.execute(CHANGE, {"name": "held", "value": "2"}))
    await asyncio.sleep(0.02)
    assert await database.execute(CHANGE, {"name": "free", "value": "1"}) == 1
    assert await stored(database, "held") == "0"
    assert not waits.done()
    let_go.set()
    await hold
    assert await waits == 1
    assert await stored(database, "held") == "2"


def holder(holding: asyncio.Event, let_go: asyncio.Event) -> Callable[[Transaction], None]:
    """Work that keeps a row until it is told to let go of it."""
    loop = asyncio.get_running_loop()

    def work(transaction: Transaction) -> None:
        transaction.execute(CHANGE, {"name": "held", "value": "1"})
        loop.call_soon_threadsafe(holding.set)
        asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result(10)

    return work
