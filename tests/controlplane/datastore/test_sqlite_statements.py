# SPDX-License-Identifier: Apache-2.0
"""Single statements on the event loop, and what is left to the thread that writes."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from sqlalchemy import func, insert, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.schema import EXT_META


def adding(name: str, value: str = "v"):
    return insert(EXT_META).values(Name=name, Value=value)


async def count(database: Database) -> int:
    """How many rows were added; the version of the schema is there from the beginning."""
    return (await database.lookup(select(func.count()).select_from(EXT_META)))[0][0] - 1


async def test_a_change_waits_for_another_program_without_holding_up_the_event_loop(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            # Whoever waits on the event loop notices late that time is up.
            async with asyncio.timeout(1):
                changes = [asyncio.create_task(database.execute(adding(str(i)))) for i in range(3)]
                await asyncio.sleep(0)
                assert await count(database) == 0
            other.execute("ROLLBACK")
        assert await asyncio.gather(*changes) == [1, 1, 1]
        assert await count(database) == 3


async def test_a_change_waits_for_a_long_transaction_without_holding_up_the_event_loop(
    tmp_path: Path,
) -> None:
    loop, begun, go_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def work(transaction: Transaction) -> None:
        transaction.execute(adding("long"))
        loop.call_soon_threadsafe(begun.set)
        assert go_on.wait(30)

    async with open_sqlite(tmp_path / "pipecd.db") as database:
        long = asyncio.create_task(database.write(work))
        await begun.wait()
        async with asyncio.timeout(1):
            change = asyncio.create_task(database.execute(adding("short")))
            await asyncio.sleep(0)
            assert await count(database) == 0
        go_on.set()
        await long
        assert await change == 1
        assert await count(database) == 2


async def test_the_log_does_not_grow_with_the_number_of_changes(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    value = "x" * 50_000
    async with open_sqlite(path) as database:
        for i in range(1200):
            await database.execute(adding(str(i), value))
        assert await count(database) == 1200
        assert path.with_name("pipecd.db-wal").stat().st_size < 40_000_000


async def test_changes_that_were_accepted_are_finished_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        # So many that the next ones wait for company.
        await asyncio.gather(*(database.execute(adding(str(i))) for i in range(40)))
        changes = [asyncio.create_task(database.execute(adding(str(i)))) for i in range(40, 80)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*changes) == [1] * 40
    async with open_sqlite(path) as database:
        assert await count(database) == 80
