# SPDX-License-Identifier: Apache-2.0
"""The `Database` on one SQLite file: reads on a few threads, writes on one with group commit.

What is one statement, a glance or a change, is done on the event loop: it takes less than waking a
thread does.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from pipecd.controlplane.datastore.database import (
    NOTHING,
    AnySelect,
    Lone,
    Reading,
    Row,
    Values,
    Writing,
)
from pipecd.controlplane.datastore.engine.lane import Batch, Job, Lane, Outcome
from pipecd.controlplane.datastore.engine.link import closed
from pipecd.controlplane.datastore.engine.statement import Alone, AskedTwice, OneQuestion
from pipecd.controlplane.datastore.sqlite.changes import Changes
from pipecd.controlplane.datastore.sqlite.commits import commit, roll_back
from pipecd.controlplane.datastore.sqlite.connection import Transaction
from pipecd.controlplane.datastore.sqlite.errors import Locked, while_running
from pipecd.controlplane.datastore.sqlite.files import SqliteFiles

T = TypeVar("T")

READERS = 3
MOST_READS_AT_ONCE = 16
READ_PATIENCE = 0.002
MOST_WRITES_AT_ONCE = 128
BUSY_SECONDS = 5.0


@asynccontextmanager
async def open_sqlite(
    path: Path, *, busy_seconds: float = BUSY_SECONDS
) -> AsyncIterator["SqliteDatabase"]:
    """Opens the file, creating it and its tables when they are missing; closes it cleanly."""
    opening = partial(SqliteFiles, path, readers=READERS, busy_seconds=busy_seconds)
    database = SqliteDatabase(await asyncio.to_thread(opening))
    try:
        yield database
    finally:
        await database.close()


class SqliteDatabase:
    """A file of which this process is the only server."""

    weighs = False

    def __init__(self, files: SqliteFiles) -> None:
        self._files = files
        self._closed = False
        self._at_hand = Transaction(files.at_hand, files.path)
        self._reads: Lane[Reading] = Lane(
            "sqlite-read",
            self._read_batch,
            threads=READERS,
            most_at_once=MOST_READS_AT_ONCE,
            patience=READ_PATIENCE,
        )
        self._writes: Lane[Writing] = Lane(
            "sqlite-write",
            partial(commit, files.writer, files.path),
            threads=1,
            most_at_once=MOST_WRITES_AT_ONCE,
        )
        self._changes = Changes(files.at_hand, files.path, self._writes)

    async def glance(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        if self._closed:
            raise closed()
        try:
            return self._at_hand.rows(statement, values)
        except Locked:
            return await self.read(lambda reading: reading.rows(statement, values))

    async def change(self, statement: Lone, values: Values = NOTHING) -> int:
        if self._closed:
            raise closed()
        return await self._changes.run(Alone(statement, values))

    async def read(self, work: Callable[[Reading], T]) -> T:
        return await self._reads.do(work)

    async def write(self, work: Callable[[Writing], T]) -> T:
        return await self._writes.do(work)

    async def catch_up(self, table: str, project: str) -> None:
        """Nothing to do: nobody else writes to the file."""

    async def close(self) -> None:
        """Finishes what was accepted; later work is refused."""
        self._closed = True
        self._changes.close()
        await self._writes.close()
        await self._reads.close()
        await asyncio.to_thread(self._files.close)

    def _read_batch(self, batch: Batch[Reading]) -> Sequence[Outcome]:
        connection = self._files.readers.pop()
        try:
            return [_read(connection, self._files.path, job) for job in batch]
        finally:
            self._files.readers.append(connection)


def _read(connection: sqlite3.Connection, path: Path, job: Job[Reading]) -> Outcome:
    transaction = Transaction(connection, path)
    outcome = job.attempt(OneQuestion(transaction))
    if not isinstance(outcome.error, AskedTwice):
        return outcome
    try:
        connection.execute("BEGIN")
        return job.attempt(transaction)
    except sqlite3.Error as e:
        return Outcome(error=while_running(e, path))
    finally:
        roll_back(connection)
