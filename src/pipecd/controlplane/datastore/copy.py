# SPDX-License-Identifier: Apache-2.0
"""Copies the rows of one database to another, which may be of another engine.

A row of the new database says that the copy is not finished: servers refuse such a database, and
the next copy begins again.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Column, Table, func, insert, select, tuple_

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.expressions import Row, Value, Values, param
from pipecd.controlplane.datastore.meta import add_meta, read_meta, remove_meta
from pipecd.controlplane.datastore.schema import (
    EXT_DEPLOYMENT_SEGMENT,
    EXT_LEASE,
    EXT_META,
    METADATA,
    PROJECT,
)
from pipecd.model.count import counted
from pipecd.model.errors import Conflict, UserMistake

BATCH = 200
UNFINISHED_COPY_ROW = "unfinished_copy"
# The schema version is that of the database itself, leases are those of running processes, and the
# history is packed again by a job.
_NOT_COPIED = (EXT_META, EXT_LEASE, EXT_DEPLOYMENT_SEGMENT)


async def is_unfinished_copy(database: Database) -> bool:
    """Whether a copy to the database was begun and has not ended."""
    return await database.read(lambda t: read_meta(t, UNFINISHED_COPY_ROW)) is not None


async def refuse_unfinished_copy(database: Database) -> None:
    """Raises UserMistake if a copy to the database was begun and has not ended."""
    if await is_unfinished_copy(database):
        raise UserMistake(
            "the database has the rows of a copy that is not finished",
            hint="run pipecd copy-stores again, and start the server when it has ended",
        )


async def refuse_running_servers(database: Database, which: str, now: datetime) -> None:
    """Raises Conflict if a process has a lease of the database."""
    expires = EXT_LEASE.c.ExpiresAtMillis
    held = select(EXT_LEASE.c.Holder, expires).where(expires > param("now")).limit(1)
    millis = int(now.timestamp() * 1000)
    for holder, expires_at in await database.query(held, {"now": millis}):
        seconds = (expires_at - millis) // 1000 + 1
        raise Conflict(
            f"a server uses the {which} database: {holder}",
            hint=f"stop all servers; after one was killed, wait {seconds} seconds",
        )


async def refuse_without_projects(database: Database) -> None:
    """Raises UserMistake if the database is not that of an installation."""
    if not await _has_rows(PROJECT, database):
        raise UserMistake(
            "the old database has no projects",
            hint="check spec.datastore of the configuration of --from-config-file",
        )


async def refuse_rows(database: Database) -> None:
    """Raises UserMistake if a table has rows."""
    for table in copied_tables():
        if await _has_rows(table, database):
            raise UserMistake(
                f"the new database has rows already, in the table {table.name}",
                hint="a copy needs an empty database: create another one, or drop and create it",
            )


async def begin_copy(target: Database) -> None:
    """Marks the database as an unfinished copy and removes the rows of an earlier one."""
    await target.write(lambda transaction: add_meta(transaction, UNFINISHED_COPY_ROW, ""))
    for table in (*copied_tables(), EXT_DEPLOYMENT_SEGMENT):
        await target.clear(table)


async def finish_copy(target: Database) -> None:
    """Lets servers use the database."""
    await target.write(lambda transaction: remove_meta(transaction, UNFINISHED_COPY_ROW))


async def copy_rows(source: Database, target: Database) -> int:
    """Copies all rows and returns their number; nothing else may change either database."""
    return sum([await _copy_table(table, source, target) for table in copied_tables()])


def copied_tables() -> Iterator[Table]:
    return (table for table in METADATA.sorted_tables if table not in _NOT_COPIED)


async def _copy_table(table: Table, source: Database, target: Database) -> int:
    # The other columns are computed from the document.
    columns = [column for column in table.columns if column.computed is None]
    add = insert(table).values({column.name: param(_name(column)) for column in columns})
    copied, last = 0, None
    while rows := await _page(table, columns, source, last):
        values = [_values(columns, row) for row in rows]
        await target.write(lambda transaction, v=values: transaction.execute_many(add, v))
        last = values[-1]
        copied += len(rows)
    for database, which in ((source, "old"), (target, "new")):
        [(stored,)] = await database.query(select(func.count()).select_from(table))
        if stored != copied:
            raise Conflict(
                f"{counted(copied, 'row was', 'rows were')} copied of the table {table.name}, "
                f"and the {which} database has {stored}",
                hint="stop everything that uses the databases, and copy again",
            )
    return copied


async def _has_rows(table: Table, database: Database) -> bool:
    return bool(await database.query(select(*table.primary_key).limit(1)))


async def _page(
    table: Table, columns: Sequence[Column[Any]], source: Database, last: Values | None
) -> Sequence[Row]:
    """The rows after that one, in the order of the primary key."""
    key = list(table.primary_key)
    page = select(*columns).order_by(*key).limit(BATCH)
    if last is None:
        return await source.query(page)
    after = tuple_(*(param(_name(column)) for column in key))
    values = {_name(column): last[_name(column)] for column in key}
    return await source.query(page.where(tuple_(*key) > after), values)


def _values(columns: Sequence[Column[Any]], row: Row) -> dict[str, Value]:
    return {_name(c): _converted(c, value) for c, value in zip(columns, row, strict=True)}


def _converted(column: Column[Any], value: Any) -> Value:
    """The value as every engine accepts it; SQLite and MySQL have numbers for booleans."""
    return bool(value) if isinstance(column.type, Boolean) else value


def _name(column: Column[Any]) -> str:
    # SQLAlchemy reserves the names of columns as parameters of an insert.
    return f"value_{column.name}"
