# SPDX-License-Identifier: Apache-2.0
"""Writes rows in bulk: without indexes, which are created again afterwards.

A million documents take minutes this way and the better part of an hour by the stores.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, Protocol, cast

import psycopg
import pymysql

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.engines.mysql import connect, mysql_address
from pipecd.controlplane.datastore.open import open_datastore

Row = Sequence[str | bytes]
_INDEXES = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
_PG_INDEXES = """\
SELECT i.indexname, i.indexdef FROM pg_indexes i
WHERE i.schemaname = current_schema()
  AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conname = i.indexname)"""
_MYSQL_INDEXES = """\
SELECT TABLE_NAME, INDEX_NAME, COLUMN_NAME, COLLATION FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = DATABASE() AND INDEX_NAME <> 'PRIMARY'
  AND TABLE_NAME IN ('Application', 'Deployment', 'ExtLabel')
ORDER BY TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX"""


class BulkWriter(Protocol):
    """Adds rows to a table of the datastore."""

    def write(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None: ...


async def create_tables(datastore: DatastoreSpec) -> None:
    async with open_datastore(datastore):
        pass


@contextmanager
def bulk_writer(datastore: DatastoreSpec) -> Iterator[BulkWriter]:
    """Opens a database with tables; its indexes exist again at the end."""
    if datastore.type == "SQLITE":
        path = datastore.config.path
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            # Otherwise everything is written twice; a run that is cut off fills a new file.
            connection.execute("PRAGMA journal_mode = OFF")
            indexes = connection.execute(_INDEXES).fetchall()
            for name, _ in indexes:
                connection.execute(f'DROP INDEX "{name}"')
            connection.execute("BEGIN")
            yield _SqliteWriter(connection)
            connection.execute("COMMIT")
            for _, statement in indexes:
                connection.execute(statement)
            connection.execute("PRAGMA journal_mode = WAL")
        return
    if datastore.type == "MYSQL":
        with closing(connect(mysql_address(datastore.config))) as connection:
            cursor = connection.cursor()
            # An index is created after a longer time than the driver waits for an answer.
            cast("Any", connection)._read_timeout = None
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 0")
            cursor.execute("SET unique_checks = 0")
            cursor.execute(_MYSQL_INDEXES)
            indexes = _by_table(cursor.fetchall())
            for table, columns in indexes.items():
                dropped = ", ".join(f"DROP INDEX {name}" for name in columns)
                cursor.execute(f"ALTER TABLE {table} {dropped}")
            yield _MysqlWriter(connection)
            for table, columns in indexes.items():
                created = ", ".join(f"ADD INDEX {name} ({of})" for name, of in columns.items())
                cursor.execute(f"ALTER TABLE {table} {created}")
            cursor.execute("ANALYZE TABLE " + ", ".join(indexes))
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
        return
    with psycopg.connect(datastore.config.url) as connection:
        indexes = connection.execute(_PG_INDEXES).fetchall()
        for name, _ in indexes:
            connection.execute(f'DROP INDEX "{name}"'.encode())
        yield _PostgresWriter(connection)
        for _, statement in indexes:
            connection.execute(statement.encode())


def _by_table(rows: Sequence[Any]) -> dict[str, dict[str, str]]:
    """The columns of each index, by table."""
    columns: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for table, index, column, order in rows:
        columns[table][index].append(f"{column} DESC" if order == "D" else column)
    return {table: {i: ", ".join(of) for i, of in by.items()} for table, by in columns.items()}


class _SqliteWriter:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def write(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        names, marks = ", ".join(f'"{c}"' for c in columns), ", ".join("?" for _ in columns)
        statement = f'INSERT INTO "{table}" ({names}) VALUES ({marks})'
        self._connection.executemany(statement, rows)


class _PostgresWriter:
    def __init__(self, connection: "psycopg.Connection[tuple[str, str]]") -> None:
        self._connection = connection

    def write(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        names = ", ".join(f'"{c}"' for c in columns)
        statement = f'COPY "{table}" ({names}) FROM STDIN'
        with self._connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            for row in rows:
                copy.write_row(row)


class _MysqlWriter:
    def __init__(self, connection: "pymysql.Connection[Any]") -> None:
        self._connection = connection

    def write(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        names, marks = ", ".join(columns), ", ".join("%s" for _ in columns)
        statement = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        self._connection.begin()
        self._connection.cursor().executemany(statement, rows)
        self._connection.commit()
