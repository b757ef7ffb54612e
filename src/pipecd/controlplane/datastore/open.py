# SPDX-License-Identifier: Apache-2.0
"""The one place where the kind of database is chosen."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.sqlite.database import open_sqlite
from pipecd.model.errors import NoDriver, UserMistake


def open_datastore(spec: DatastoreSpec) -> AbstractAsyncContextManager[Database]:
    """The database of the configuration, with its tables; closed at the end of the context."""
    match spec.type:
        case "SQLITE":
            return open_sqlite(Path(spec.config.path))
        case "MYSQL":
            return _open_mysql(spec)
        case "POSTGRESQL":
            return _open_postgres(spec)
        case _:
            raise UserMistake(
                f"datastore type {spec.type!r} is unknown",
                hint="use SQLITE, MYSQL or POSTGRESQL",
            )


def notify_address(spec: DatastoreSpec) -> str:
    """Where processes on this database can tell each other of changes; empty when they cannot."""
    if spec.type != "POSTGRESQL":
        return ""
    from pipecd.controlplane.datastore.postgres.address import postgres_conninfo  # noqa: PLC0415

    return postgres_conninfo(spec.config)


def _open_mysql(spec: DatastoreSpec) -> AbstractAsyncContextManager[Database]:
    # The drivers of servers are installed only by those who use them.
    try:
        from pipecd.controlplane.datastore.mysql.address import mysql_address  # noqa: PLC0415
        from pipecd.controlplane.datastore.mysql.database import open_mysql  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("MySQL", extra="mysql") from e
    return open_mysql(mysql_address(spec.config))


def _open_postgres(spec: DatastoreSpec) -> AbstractAsyncContextManager[Database]:
    try:
        from pipecd.controlplane.datastore.postgres.address import postgres_conninfo  # noqa: PLC0415
        from pipecd.controlplane.datastore.postgres.database import open_postgres  # noqa: PLC0415
    except ModuleNotFoundError as e:
        raise NoDriver("PostgreSQL", extra="postgres") from e
    return open_postgres(postgres_conninfo(spec.config))
