# SPDX-License-Identifier: Apache-2.0
"""The making of the tables: under one lock, adding only what is missing."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pymysql
from sqlalchemy import Dialect

from pipecd.controlplane.datastore.engine.ensurer import Found, missing
from pipecd.controlplane.datastore.mysql.errors import number_of
from pipecd.controlplane.datastore.mysql.link import MySqlLink
from pipecd.controlplane.datastore.schema import METADATA, modify_column
from pipecd.model.errors import Unavailable

LOCK_SECONDS = 60
# Indexes that upstream once had and drops where it finds them.
OBSOLETE = {"application": ("application_piped_id", "application_deleted_created_at_asc")}
COLUMNS = "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s"
INDEXES = "SELECT TABLE_NAME, INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s"
# Columns that an early upstream computed without a default, so that a zero was refused as null.
WITHOUT_DEFAULT = (
    "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s "
    "AND (TABLE_NAME, COLUMN_NAME) IN (('Deployment', 'DeploymentChainId'), ('Event', 'Status')) "
    "AND GENERATION_EXPRESSION NOT LIKE '%%ifnull%%'"
)
# A table, a column, an index that exists already, one to drop that does not.
DONE_BY_ANOTHER = frozenset({1050, 1060, 1061, 1091})


def is_mariadb(link: MySqlLink) -> bool:
    return "mariadb" in str(link.rows("SELECT VERSION()", ())[0][0]).lower()


@contextmanager
def only_one(link: MySqlLink, database: str) -> Iterator[None]:
    """Lets one process at a time prepare a database."""
    # The names of locks are shared by all databases of a server, and short.
    name = f"pipecd.schema.{database}"[:64]
    if link.rows("SELECT GET_LOCK(%s, %s)", (name, LOCK_SECONDS))[0][0] != 1:
        raise Unavailable(
            f"another process has been preparing the database for {LOCK_SECONDS} s",
            hint="wait until it is done, or look why it takes so long",
        )
    try:
        yield
    finally:
        link.rows("SELECT RELEASE_LOCK(%s)", (name,))


def ensure_tables(link: MySqlLink, database: str, dialect: Dialect) -> None:
    found = _found(link, database)
    outdated = link.rows(WITHOUT_DEFAULT, (database,))
    for statement in (
        *missing(found, dialect),
        *(modify_column(cast("Any", METADATA.tables[t].c[c]), dialect) for t, c in outdated),
        *_obsolete(found),
    ):
        try:
            link.statement(statement)
        except pymysql.Error as e:
            # Upstream's own upkeep may do the same at the same time, and knows no lock.
            if number_of(e) not in DONE_BY_ANOTHER and "duplicate column" not in str(e).lower():
                raise


def _found(link: MySqlLink, database: str) -> Found:
    return Found(_by_table(link, COLUMNS, database), _by_table(link, INDEXES, database))


def _by_table(link: MySqlLink, question: str, database: str) -> dict[str, frozenset[str]]:
    names: dict[str, set[str]] = defaultdict(set)
    for table, name in link.rows(question, (database,)):
        names[str(table).lower()].add(str(name).lower())
    return {table: frozenset(found) for table, found in names.items()}


def _obsolete(found: Found) -> Iterator[str]:
    for table, indexes in OBSOLETE.items():
        for index in indexes:
            if index in found.indexes.get(table, frozenset()):
                yield f"DROP INDEX {index} ON Application"
