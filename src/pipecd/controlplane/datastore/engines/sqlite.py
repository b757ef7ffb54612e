# SPDX-License-Identifier: Apache-2.0
"""The datastore in one SQLite file: one writer, a few readers, nothing to install."""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Insert, Update, delete
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect
from sqlalchemy.dialects.sqlite.base import SQLiteCompiler
from sqlalchemy.pool import QueuePool

from pipecd.controlplane.datastore.database import Database, Duplicate, Transaction, ensure_version
from pipecd.controlplane.datastore.expressions import NO_VALUES, AnySelect, Row, Values
from pipecd.controlplane.datastore.labelled_applications import fill_labelled_applications
from pipecd.controlplane.datastore.ranges import (
    ASSUMED_ROWS,
    DISTINCT_VALUES,
    OTHER_DISTINCT_VALUES,
)
from pipecd.controlplane.datastore.schema import EXT_LEASE, definitions
from pipecd.model.errors import PipecdError, StorageUnavailable, UserMistake
from pipecd.observe.operations import ObservedOperation, OperationObserver


class SqliteCompiler(SQLiteCompiler):
    """Compiles the hint of an index, which SQLAlchemy does not for SQLite."""

    def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
        del table
        return text


# Parameters by position: SQLite searches for each named one, which makes long lists slow.
DIALECT = sqlite_dialect(paramstyle="qmark")
DIALECT.statement_compiler = SqliteCompiler
READERS = 3
BUSY_SECONDS = 5.0
PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # With a write-ahead log, commits survive a killed process; after a power failure the last
    # transactions may be lost, but the file is not damaged.
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA temp_store = MEMORY",
    # In KiB for each of the connections, in addition to what the system caches of the file anyway.
    "PRAGMA cache_size = -2000",
    "PRAGMA journal_size_limit = 67108864",
)
WRITE_PRAGMA = "PRAGMA wal_autocheckpoint = 4000"
READ_PRAGMA = "PRAGMA query_only = ON"
LOOP_PRAGMA = "PRAGMA wal_autocheckpoint = 0"
# One statement in so many runs on a thread, where it may checkpoint the write-ahead log.
CHECKPOINT_AFTER = 256

DUPLICATES = frozenset({sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE})


@asynccontextmanager
async def open_sqlite(
    path: Path, *, busy_seconds: float = BUSY_SECONDS, observers: Sequence[OperationObserver] = ()
) -> AsyncIterator["SqliteDatabase"]:
    """Opens the file, creating it and its tables if they are missing, and closes it at the end."""
    lock = await asyncio.to_thread(_lock_file, path)
    try:
        database = SqliteDatabase(path, busy_seconds=busy_seconds, observers=observers)
        try:
            await asyncio.to_thread(database.prepare)
            yield database
        finally:
            await database.close()
    finally:
        os.close(lock)


class DatabaseLocked(StorageUnavailable):
    """Another connection writes to the file."""


class SqliteDatabase(Database):
    """A SQLite file that only this process uses.

    Single statements run on the event loop, unless they would have to wait for a lock.
    """

    BEGIN_WRITE = ("BEGIN IMMEDIATE",)

    def __init__(
        self,
        path: Path,
        *,
        busy_seconds: float = BUSY_SECONDS,
        observers: Sequence[OperationObserver] = (),
    ) -> None:
        self._path = path
        super().__init__(
            _pool(path, WRITE_PRAGMA, 1, busy_seconds),
            DIALECT,
            readers=READERS,
            writers=1,
            observers=observers,
        )
        self._read_pool = _pool(path, READ_PRAGMA, READERS, busy_seconds)
        # Runs single statements on the event loop; it waits neither for locks nor for checkpoints.
        self._on_loop: Transaction | None = None
        self._executed = 0

    def prepare(self) -> None:
        """Creates missing tables and indexes."""

        def work(transaction: Transaction) -> None:
            transaction.run_sql(*definitions(DIALECT))
            ensure_version(transaction, str(self._path))
            fill_labelled_applications(transaction)
            _set_statistics(transaction.connection)
            # No other process has the file open, so any stored lease is stale.
            transaction.execute(delete(EXT_LEASE))

        try:
            self._transaction(work)
        except sqlite3.Error as e:
            raise explain_open(e, self._path) from e
        connection = _connect(self._path, LOOP_PRAGMA, 0)
        self._on_loop = Transaction(connection, self._dialect, self.explain)

    async def lookup(self, statement: AnySelect, values: Values = NO_VALUES) -> Sequence[Row]:
        # Reading a row takes less time than waking a thread.
        self._check_open()
        if self._on_loop is not None:
            with suppress(DatabaseLocked), ObservedOperation(self._observers, "datastore", "read"):
                return self._on_loop.query(statement, values)
        return await self.query(statement, values)

    async def execute(self, statement: Insert | Update, values: Values = NO_VALUES) -> int:
        self._check_open()
        self._executed += 1
        # Every so often the statement runs on the write thread, which checkpoints.
        if self._on_loop is not None and self._executed % CHECKPOINT_AFTER:
            with suppress(DatabaseLocked), ObservedOperation(self._observers, "datastore", "write"):
                return self._on_loop.execute(statement, values)
        return await super().execute(statement, values)

    async def close(self) -> None:
        self._closed = True
        if self._on_loop is not None:
            await asyncio.to_thread(self._on_loop.connection.close)
        # The pool of the writer is disposed last: its connection checkpoints when it closes.
        await super().close()

    def explain(self, error: Exception) -> Exception:
        return explain(error, self._path) if isinstance(error, sqlite3.Error) else error

    def abort(self, driver_connection: Any) -> None:
        driver_connection.interrupt()


def _pool(path: Path, pragma: str, connections: int, busy_seconds: float) -> QueuePool:
    connect: Any = partial(_connect, path, pragma, busy_seconds)
    return QueuePool(
        connect,
        pool_size=connections,
        max_overflow=0,
        reset_on_return=None,
    )


def _connect(path: Path, pragma: str, busy_seconds: float) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(
            path,
            timeout=busy_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            for statement in (*PRAGMAS, pragma):
                connection.execute(statement)
        except sqlite3.Error:
            connection.close()
            raise
    except sqlite3.Error as e:
        raise explain_open(e, path) from e
    return connection


def _lock_file(path: Path) -> int:
    """Creates the database with mode 0600 and locks it for this process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as e:
        raise _not_writable(path, e.strerror or str(e)) from e
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        owner = os.read(lock, 20).decode(errors="replace").strip()
        os.close(lock)
        by = f"process {owner}" if owner else "another process"
        raise StorageUnavailable(
            f"the database {path} is in use by {by}",
            hint="stop that process; several servers need MySQL or PostgreSQL instead of SQLite",
        ) from e
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _set_statistics(connection: sqlite3.Connection) -> None:
    """Replaces the statistics of SQLite's query planner.

    Those that it gathers while an installation is small make the lists of a large one slow.
    """
    # ANALYZE creates the table sqlite_stat1, which CREATE TABLE cannot.
    connection.execute('ANALYZE "ExtMeta"')
    connection.execute("DELETE FROM sqlite_stat1")
    indexes = connection.execute("SELECT tbl_name, name FROM sqlite_master WHERE type = 'index'")
    for table, index in indexes.fetchall():
        columns = connection.execute("SELECT name FROM pragma_index_info(?)", (index,)).fetchall()
        # The number of rows, then the rows per value of the first column, the first two, and so on.
        shared = [ASSUMED_ROWS]
        for (name,) in columns:
            distinct = DISTINCT_VALUES.get(name, OTHER_DISTINCT_VALUES)
            shared.append(max(1, shared[-1] // distinct))
        if index.startswith("sqlite_autoindex_"):
            shared[-1] = 1
        connection.execute(
            "INSERT INTO sqlite_stat1 (tbl, idx, stat) VALUES (?, ?, ?)",
            (table, index, " ".join(map(str, shared))),
        )
    connection.execute("ANALYZE sqlite_schema")


def explain_open(error: sqlite3.Error, path: Path) -> Exception:
    """Translates an error at startup, which the operator can fix in most cases."""
    match _primary_code(error):
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return _not_writable(path, str(error))
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return UserMistake(
                f"the database {path} is damaged or not a SQLite file: {error}",
                hint="restore it from a backup, or move it away to begin with an empty one",
            )
        case _:
            return explain(error, path)


def explain(error: sqlite3.Error, path: Path) -> Exception:
    """Translates an error of a statement; returns an unexpected one as it is."""
    match _primary_code(error):
        case sqlite3.SQLITE_CONSTRAINT:
            return _explain_constraint(error)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return DatabaseLocked(
                f"the database {path} is locked by another process",
                hint="end the other process, or try again later",
            )
        case sqlite3.SQLITE_FULL:
            return StorageUnavailable(
                f"the disk that holds the database {path} is full", hint="free some space on it"
            )
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StorageUnavailable(
                f"the database {path} is damaged: {error}", hint="restore it from a backup"
            )
        case (
            sqlite3.SQLITE_IOERR
            | sqlite3.SQLITE_READONLY
            | sqlite3.SQLITE_CANTOPEN
            | sqlite3.SQLITE_PERM
        ):
            return StorageUnavailable(
                f"the database {path} cannot be read or written: {error}",
                hint="check the disk and the permissions of its files",
            )
        case _:
            return error


def _explain_constraint(error: sqlite3.Error) -> Exception:
    if error.sqlite_errorcode in DUPLICATES:
        return Duplicate(str(error))
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
        column = str(error).rpartition(": ")[2]
        return UserMistake(f"the document cannot be stored because {column} is missing")
    return error


def _not_writable(path: Path, reason: str) -> PipecdError:
    return UserMistake(
        f"the database {path} cannot be created or written: {reason}",
        hint=f"make the directory {path.parent} writable for this user, or choose another path",
    )


def _primary_code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
