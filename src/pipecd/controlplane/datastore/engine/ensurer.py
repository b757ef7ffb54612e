# SPDX-License-Identifier: Apache-2.0
"""What a database lacks of the tables, columns and indexes, as statements."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Dialect, insert, select

from pipecd.controlplane.datastore.database import Writing
from pipecd.controlplane.datastore.schema import (
    EXT_META,
    METADATA,
    SCHEMA_VERSION,
    add_column,
    create_indexes,
    create_table,
)
from pipecd.model.errors import UserMistake

VERSION_ROW = "schema_version"


@dataclass(frozen=True)
class Found:
    """The columns and the indexes of the tables that exist, all in lower case."""

    columns: Mapping[str, frozenset[str]]
    indexes: Mapping[str, frozenset[str]]


def missing(found: Found, dialect: Dialect) -> Iterator[str]:
    """The statements that add what is not there; nothing that is there is touched."""
    for table in METADATA.sorted_tables:
        name = table.name.lower()
        columns = found.columns.get(name)
        if columns is None:
            yield create_table(table, dialect)
        else:
            for column in table.c:
                if column.name.lower() not in columns:
                    yield add_column(column, dialect)
        indexes = found.indexes.get(name, frozenset())
        for index, create in create_indexes(table, dialect):
            if index.lower() not in indexes:
                yield create


def ensure_version(writing: Writing, name: str) -> None:
    """Marks the database with our version, or refuses one that a newer program has written."""
    wanted = select(EXT_META.c.Value).where(EXT_META.c.Name == VERSION_ROW)
    found = writing.rows(wanted)
    if not found:
        writing.run(insert(EXT_META).values(Name=VERSION_ROW, Value=str(SCHEMA_VERSION)))
    elif int(found[0][0]) > SCHEMA_VERSION:
        raise UserMistake(
            f"the database {name} was written by a newer version of this program",
            hint="run that version, or restore a backup made before the upgrade",
        )
