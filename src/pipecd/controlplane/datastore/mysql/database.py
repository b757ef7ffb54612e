# SPDX-License-Identifier: Apache-2.0
"""The `Database` on MySQL or MariaDB."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from sqlalchemy.dialects.mysql.base import MySQLDialect

from pipecd.controlplane.datastore.engine.ensurer import ensure_version
from pipecd.controlplane.datastore.engine.link import Begin, Link
from pipecd.controlplane.datastore.engine.opening import in_the_end
from pipecd.controlplane.datastore.engine.pool import Pool
from pipecd.controlplane.datastore.engine.pooled import (
    PATIENCE,
    PooledDatabase,
    Transaction,
)
from pipecd.controlplane.datastore.engine.statement import Statements
from pipecd.controlplane.datastore.mysql.address import MySqlAddress
from pipecd.controlplane.datastore.mysql.labels import (
    LABELLED,
    SLACK,
    LabelWatch,
    index_part,
    mark_name,
    mark_of,
    next_part,
    set_mark,
)
from pipecd.controlplane.datastore.mysql.link import MySqlLink, connect
from pipecd.controlplane.datastore.mysql.tables import ensure_tables, is_mariadb, only_one


@asynccontextmanager
async def open_mysql(
    address: MySqlAddress, *, patience: float = PATIENCE
) -> AsyncIterator["MySqlDatabase"]:
    """Connects, adds the tables that are missing, and closes everything at the end."""
    statements = await in_the_end(lambda: prepare(address))
    pool: Pool[Link] = Pool(partial(connect, address))
    database = MySqlDatabase(pool, statements, patience=patience)
    try:
        yield database
    finally:
        await database.close()


class MySqlDatabase(PooledDatabase):
    """A database that upstream may be using too."""

    # Upstream's indexes hold one column each that lists are filtered by.
    weighs = True

    def __init__(
        self, pool: Pool[Link], statements: Statements, *, patience: float = PATIENCE
    ) -> None:
        super().__init__(pool, statements, patience=patience)
        self._labels = LabelWatch(self)

    async def catch_up(self, table: str, project: str) -> None:
        await self._labels.catch_up(table, project)


def prepare(address: MySqlAddress) -> Statements:
    """Makes the database ready; the statements are those of the server that was found."""
    link = connect(address)
    try:
        statements = Statements(MySQLDialect(paramstyle="format", is_mariadb=is_mariadb(link)))
        with only_one(link, address.database):
            ensure_tables(link, address.database, statements.dialect)
            transaction = Transaction(link, statements)
            ensure_version(transaction, address.name)
            for table in LABELLED:
                _fill_label_index(link, transaction, table)
    finally:
        link.close()
    return statements


def _fill_label_index(link: MySqlLink, transaction: Transaction, table: str) -> None:
    """Goes through a table once, in parts; what others write meanwhile is looked at later."""
    name = mark_name(table)
    if mark_of(transaction, name) is not None:
        return
    began = int(time.time())
    after = b""
    while ids := next_part(transaction, table, after):
        link.begin(Begin.WRITE)
        index_part(transaction, table, ids)
        link.commit()
        after = ids[-1]
    set_mark(transaction, name, began - SLACK)
