# SPDX-License-Identifier: Apache-2.0
"""Single statements, of which an engine may put several into one transaction."""

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy import insert, literal_column, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, Writing, given
from pipecd.controlplane.datastore.schema import EXT_META

ADD = insert(EXT_META).values(Name=given("name"), Value=given("value"))
CHANGE = update(EXT_META).where(EXT_META.c.Name == given("name")).values(Value=given("value"))
LOOK = select(EXT_META.c.Value).where(EXT_META.c.Name == given("name"))


async def value_of(database: Database, name: str) -> str:
    ((value,),) = await database.glance(LOOK, {"name": name})
    return value


async def test_those_that_come_together_are_each_told_how_they_ended(database: Database) -> None:
    await database.change(ADD, {"name": "taken", "value": "first"})
    names = [f"n{i}" if i % 5 else "taken" for i in range(20)]
    told = await asyncio.gather(
        *(database.change(ADD, {"name": name, "value": name}) for name in names),
        return_exceptions=True,
    )
    assert [
        isinstance(t, Duplicate) if n == "taken" else t == 1
        for n, t in zip(names, told, strict=True)
    ] == [True] * 20
    assert await value_of(database, "taken") == "first"
    assert await value_of(database, "n19") == "n19"


async def test_more_than_go_at_once_are_all_answered(database: Database) -> None:
    await database.change(ADD, {"name": "one", "value": "0"})
    looks = [database.glance(LOOK, {"name": "one" if i % 2 else "none"}) for i in range(300)]
    assert [len(rows) for rows in await asyncio.gather(*looks)] == [i % 2 for i in range(300)]


@pytest.mark.usefixtures("row_locks")
async def test_changes_of_one_row_that_come_together_are_all_made(database: Database) -> None:
    await database.change(ADD, {"name": "one", "value": ""})
    changes = [database.change(CHANGE, {"name": "one", "value": str(i)}) for i in range(50)]
    assert await asyncio.gather(*changes) == [1] * 50
    assert await value_of(database, "one") in {str(i) for i in range(50)}


async def test_a_statement_that_cannot_be_run_fails_alone_and_every_time(
    database: Database,
) -> None:
    await database.change(ADD, {"name": "one", "value": "v"})
    wrong = select(literal_column("no_such_column")).where(EXT_META.c.Name == given("name"))
    for _ in range(2):
        told = await asyncio.gather(
            database.glance(wrong, {"name": "one"}),
            database.glance(LOOK, {"name": "one"}),
            return_exceptions=True,
        )
        assert isinstance(told[0], Exception)
        assert "no_such_column" in str(told[0])
        assert told[1] == [("v",)]


@pytest.mark.parametrize("engine", ["postgres"])
async def test_what_nobody_waits_for_any_more_is_not_begun(database: Database) -> None:
    given_up = asyncio.create_task(database.change(ADD, {"name": "one", "value": "v"}))
    kept = asyncio.create_task(database.change(ADD, {"name": "two", "value": "v"}))
    await asyncio.sleep(0)
    given_up.cancel()
    assert await kept == 1
    assert await database.glance(LOOK, {"name": "one"}) == []


@pytest.mark.parametrize("engine", ["mariadb", "postgres"])
async def test_one_that_waits_for_a_lock_holds_up_nobody_else(database: Database) -> None:
    for name in ("held", "free"):
        await database.change(ADD, {"name": name, "value": "0"})
    holding, let_go = asyncio.Event(), asyncio.Event()
    hold = asyncio.create_task(database.write(holder(holding, let_go)))
    await holding.wait()
    waits = asyncio.create_task(database.change(CHANGE, {"name": "held", "value": "2"}))
    await asyncio.sleep(0.02)
    assert await database.change(CHANGE, {"name": "free", "value": "1"}) == 1
    assert await value_of(database, "held") == "0"
    assert not waits.done()
    let_go.set()
    await hold
    assert await waits == 1
    assert await value_of(database, "held") == "2"


def holder(holding: asyncio.Event, let_go: asyncio.Event) -> Callable[[Writing], None]:
    """Work that keeps a row until it is told to let go of it."""
    loop = asyncio.get_running_loop()

    def work(writing: Writing) -> None:
        writing.run(CHANGE, {"name": "held", "value": "1"})
        loop.call_soon_threadsafe(holding.set)
        asyncio.run_coroutine_threadsafe(let_go.wait(), loop).result(10)

    return work
