# SPDX-License-Identifier: Apache-2.0
"""Connections to the file, and the statements that run on them."""

import sqlite3
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from sqlalchemy import Delete, Insert, Update
from sqlalchemy.dialects.sqlite import dialect as sqlite_dialect

from pipecd.controlplane.datastore.database import NOTHING, AnySelect, Row, Values
from pipecd.controlplane.datastore.engine.statement import AnyStatement, Statements
from pipecd.controlplane.datastore.sqlite.errors import while_running

# Parameters by position: SQLite looks for named ones one by one, which long lists would feel.
STATEMENTS = Statements(sqlite_dialect(paramstyle="qmark"))

PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    # With a write-ahead log this survives a killed process; only a power cut may cost the last
    # transactions, and never the file.
    "PRAGMA synchronous = NORMAL",
    "PRAGMA foreign_keys = OFF",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",
    "PRAGMA journal_size_limit = 67108864",
)


class Purpose(Enum):
    """What a connection is for, as the settings that only it has."""

    # The log is moved into the file after so many pages; it takes the time of a few syncs.
    WRITE = "PRAGMA wal_autocheckpoint = 4000"
    READ = "PRAGMA query_only = ON"
    # The event loop never waits for a disk to have everything.
    AT_HAND = "PRAGMA wal_autocheckpoint = 0"


def connect(path: Path, purpose: Purpose, *, busy_seconds: float) -> sqlite3.Connection:
    """A connection that leaves the beginning and end of transactions to us."""
    connection = sqlite3.connect(
        path,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )
    try:
        for pragma in (*PRAGMAS, purpose.value):
            connection.execute(pragma)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class Transaction:
    """Runs statements of SQLAlchemy Core on a connection of the standard library."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path

    def rows(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        try:
            return self._execute(statement, values).fetchall()
        except sqlite3.Error as e:
            raise while_running(e, self._path) from e

    def run(self, statement: Insert | Update | Delete, values: Values = NOTHING) -> int:
        try:
            return self._execute(statement, values).rowcount
        except sqlite3.Error as e:
            raise while_running(e, self._path) from e

    def run_many(self, statement: Insert | Update | Delete, values: Sequence[Values]) -> None:
        ready = STATEMENTS.ready(statement)
        try:
            self._connection.executemany(ready.text, [ready.arguments(v) for v in values])
        except sqlite3.Error as e:
            raise while_running(e, self._path) from e

    def _execute(self, statement: AnyStatement, values: Values) -> sqlite3.Cursor:
        ready = STATEMENTS.ready(statement)
        return self._connection.execute(ready.text, ready.arguments(values))
