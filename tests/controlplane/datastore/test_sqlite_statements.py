# SPDX-License-Identifier: Apache-2.0
"""SQLite: single statements on the event loop, and when they move to the write thread."""

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from sqlalchemy import func, insert, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.controlplane.datastore.schema import EXT_META

# The schema version and the watermark of the label index.
INITIAL_ROWS = 2


def insert_row(name: str, value: str = "v"):
    return insert(EXT_META).values(Name=name, Value=value)


async def count(database: Database) -> int:
    """The number of rows without those of a new database."""
    rows = await database.lookup(select(func.count()).select_from(EXT_META))
    return rows[0][0] - INITIAL_ROWS


async def test_a_write_that_waits_for_another_process_does_not_block_the_event_loop(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            # If the event loop were blocked, the timeout would expire.
            async with asyncio.timeout(1):
                changes = [
                    asyncio.create_task(database.execute(insert_row(str(i)))) for i in range(3)
                ]
                await asyncio.sleep(0)
                assert await count(database) == 0
            other.execute("ROLLBACK")
        assert await asyncio.gather(*changes) == [1, 1, 1]
        assert await count(database) == 3


async def test_a_write_that_waits_for_a_transaction_does_not_block_the_event_loop(
    tmp_path: Path,
) -> None:
    loop, started, proceed = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def work(transaction: Transaction) -> None:
        transaction.execute(insert_row("long"))
        loop.call_soon_threadsafe(started.set)
        assert proceed.wait(30)

    async with open_sqlite(tmp_path / "pipecd.db") as database:
        long = asyncio.create_task(database.write(work))
        await started.wait()
        async with asyncio.timeout(1):
            change = asyncio.create_task(database.execute(insert_row("short")))
            await asyncio.sleep(0)
            assert await count(database) == 0
        proceed.set()
        await long
        assert await change == 1
        assert await count(database) == 2


async def test_the_write_ahead_log_does_not_grow_with_the_number_of_writes(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    value = "x" * 50_000
    async with open_sqlite(path) as database:
        for i in range(1200):
            await database.execute(insert_row(str(i), value))
        assert await count(database) == 1200
        assert path.with_name("pipecd.db-wal").stat().st_size < 40_000_000


async def test_closing_finishes_pending_statements(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        await asyncio.gather(*(database.execute(insert_row(str(i))) for i in range(40)))
        changes = [asyncio.create_task(database.execute(insert_row(str(i)))) for i in range(40, 80)]
        await asyncio.sleep(0)
    assert await asyncio.gather(*changes) == [1] * 40
    async with open_sqlite(path) as database:
        assert await count(database) == 80
