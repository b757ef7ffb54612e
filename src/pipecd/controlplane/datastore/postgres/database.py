# SPDX-License-Identifier: Apache-2.0
"""The `Database` on PostgreSQL."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from sqlalchemy.dialects.postgresql.base import PGDialect

from pipecd.controlplane.datastore.database import NOTHING, AnySelect, Lone, Row, Values
from pipecd.controlplane.datastore.engine.ensurer import Found, ensure_version, missing
from pipecd.controlplane.datastore.engine.link import Begin
from pipecd.controlplane.datastore.engine.opening import in_the_end
from pipecd.controlplane.datastore.engine.pool import Pool
from pipecd.controlplane.datastore.engine.pooled import (
    PATIENCE,
    PooledDatabase,
    Transaction,
)
from pipecd.controlplane.datastore.engine.statement import Statements
from pipecd.controlplane.datastore.postgres.address import shown
from pipecd.controlplane.datastore.postgres.line import Line
from pipecd.controlplane.datastore.postgres.lines import Lines
from pipecd.controlplane.datastore.postgres.link import PostgresLink, connect
from pipecd.model.errors import UserMistake

STATEMENTS = Statements(PGDialect(paramstyle="format"))
# As the server itself wants them; the driver translates the others.
PLAIN_STATEMENTS = Statements(PGDialect(paramstyle="numeric_dollar"))

# What a single statement asks for is found by the same index, whatever the values are.
KEEP_PLANS = "SET plan_cache_mode = auto"
# A change may wait for a lock, and must not hold up those who only look.
GLANCES, CHANGES = 1, 4

# Locks of this kind are numbers; this one says "pipecd" in ASCII.
SCHEMA_LOCK = int.from_bytes(b"pipecd")
COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_schema = current_schema()"
)
INDEXES = "SELECT tablename, indexname FROM pg_indexes WHERE schemaname = current_schema()"


@asynccontextmanager
async def open_postgres(
    conninfo: str, *, patience: float = PATIENCE
) -> AsyncIterator["PostgresDatabase"]:
    """Connects, adds the tables that are missing, and closes everything at the end."""
    await in_the_end(lambda: prepare(conninfo))
    database = PostgresDatabase(conninfo, patience=patience)
    try:
        yield database
    finally:
        await database.close()


class PostgresDatabase(PooledDatabase):
    """Transactions on threads, single statements on the event loop."""

    def __init__(self, conninfo: str, *, patience: float = PATIENCE) -> None:
        super().__init__(Pool(lambda: connect(conninfo)), STATEMENTS, patience=patience)
        self._lines: Pool[Line] = Pool(lambda: Line(connect(conninfo, KEEP_PLANS)))
        self._glances = Lines(self._lines, GLANCES, patience=patience)
        self._changes = Lines(self._lines, CHANGES, patience=patience)

    async def glance(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        ready = PLAIN_STATEMENTS.ready(statement)
        return await self._glances.rows(ready.text, ready.arguments(values))

    async def change(self, statement: Lone, values: Values = NOTHING) -> int:
        ready = PLAIN_STATEMENTS.ready(statement)
        return await self._changes.run(ready.text, ready.arguments(values))

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                await self._glances.close()
                await self._changes.close()
        self._lines.abort_stuck(0)
        self._lines.close()
        await super().close()


def prepare(conninfo: str) -> None:
    """Makes the database ready in one transaction, one process at a time."""
    link = connect(conninfo)
    try:
        _check_encoding(link, conninfo)
        # Another process may be making large indexes meanwhile.
        link.statement("SET lock_timeout = 0")
        link.statement("SET statement_timeout = 0")
        link.begin(Begin.WRITE)
        link.rows("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        for statement in missing(_found(link), STATEMENTS.dialect):
            link.statement(statement)
        ensure_version(Transaction(link, STATEMENTS), shown(conninfo))
        link.commit()
    finally:
        link.close()


def _check_encoding(link: PostgresLink, conninfo: str) -> None:
    encoding = link.rows("SHOW server_encoding", ())[0][0]
    if encoding != "UTF8":
        raise UserMistake(
            f"the database {shown(conninfo)} has the encoding {encoding}, which cannot hold "
            "every text",
            hint="create it with ENCODING 'UTF8' TEMPLATE template0",
        )


def _found(link: PostgresLink) -> Found:
    return Found(_by_table(link, COLUMNS), _by_table(link, INDEXES))


def _by_table(link: PostgresLink, question: str) -> dict[str, frozenset[str]]:
    names: dict[str, set[str]] = defaultdict(set)
    for table, name in link.rows(question, ()):
        names[str(table).lower()].add(str(name).lower())
    return {table: frozenset(found) for table, found in names.items()}
