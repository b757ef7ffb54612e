# SPDX-License-Identifier: Apache-2.0
"""Opens the datastore with the engine that the configuration names."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pipecd.config.controlplane import DatastoreSpec
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite
from pipecd.model.errors import NoDriver, UserMistake
from pipecd.observe.operations import OperationObserver


def open_datastore(
    spec: DatastoreSpec, *, observers: Sequence[OperationObserver] = ()
) -> AbstractAsyncContextManager[Database]:
    """Opens the database of the configuration; the end of the context closes it."""
    # The drivers of servers are optional dependencies.
    match spec.type:
        case "SQLITE":
            return open_sqlite(Path(spec.config.path), observers=observers)
        case "MYSQL":
            try:
                from pipecd.controlplane.datastore.engines import mysql  # noqa: PLC0415
            except ModuleNotFoundError as e:
                raise NoDriver("MySQL", extra="mysql") from e
            return mysql.open_mysql(mysql.mysql_address(spec.config), observers=observers)
        case "POSTGRESQL":
            try:
                from pipecd.controlplane.datastore.engines import postgres  # noqa: PLC0415
            except ModuleNotFoundError as e:
                raise NoDriver("PostgreSQL", extra="postgres") from e
            return postgres.open_postgres(
                postgres.postgres_conninfo(spec.config), observers=observers
            )
        case _:
            raise UserMistake(
                f"datastore type {spec.type!r} is unknown",
                hint="use SQLITE, MYSQL or POSTGRESQL",
            )


def notify_address(spec: DatastoreSpec) -> str:
    """The PostgreSQL database on which replicas notify each other; empty for other engines."""
    if spec.type != "POSTGRESQL":
        return ""
    from pipecd.controlplane.datastore.engines.postgres import postgres_conninfo  # noqa: PLC0415

    return postgres_conninfo(spec.config)
