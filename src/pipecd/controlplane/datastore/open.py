# SPDX-License-Identifier: Apache-2.0
"""The one place where the kind of database is chosen."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from pipecd.config.controlplane.storage import DatastoreSpec
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.sqlite.database import open_sqlite
from pipecd.model.errors import UserMistake


def open_datastore(spec: DatastoreSpec) -> AbstractAsyncContextManager[Database]:
    """The database of the configuration, with its tables; closed at the end of the context."""
    match spec.type:
        case "SQLITE":
            return open_sqlite(Path(spec.config.path))
        case _:
            raise UserMistake(
                f"datastore type {spec.type!r} is not built in yet", hint="use SQLITE"
            )
