# SPDX-License-Identifier: Apache-2.0
"""A complete copy of a SQLite database, also while a server has it open."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from pipecd.model.errors import StorageUnavailable, UserMistake

_BUSY_SECONDS = 30.0


def back_up(database: Path, copy: Path) -> int:
    """Copies the database as of one moment, checks the copy, and returns its size in bytes.

    In a database with a write-ahead log a reader blocks no writer, and sees one moment: the server
    continues meanwhile. A copy that was interrupted is removed.
    """
    if not database.is_file():
        raise UserMistake(
            f"there is no database {database}", hint="check spec.datastore.config.path"
        )
    partial = copy.with_name(f".{copy.name}.partial")
    try:
        # The copy contains keys and hashes: only its owner may read it, from the beginning.
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as e:
        raise UserMistake(
            f"cannot write {partial}: {e.strerror}",
            hint="choose a directory that exists, and remove the rest of another backup",
        ) from e
    try:
        _copy(database, partial)
        # A link fails if the name is taken meanwhile; a rename would replace that file.
        os.link(partial, copy)
    except FileExistsError as e:
        raise UserMistake(f"{copy} exists already", hint="choose another --output-file") from e
    except (sqlite3.Error, OSError) as e:
        raise StorageUnavailable(f"the database {database} cannot be copied: {e}") from e
    finally:
        partial.unlink(missing_ok=True)
    return copy.stat().st_size


def _copy(database: Path, partial: Path) -> None:
    with (
        closing(sqlite3.connect(database, timeout=_BUSY_SECONDS)) as source,
        closing(sqlite3.connect(partial)) as target,
    ):
        source.execute("PRAGMA query_only = ON")
        source.backup(target)
        [(result,)] = target.execute("PRAGMA quick_check(1)").fetchall()
        if result != "ok":
            raise sqlite3.DatabaseError(str(result))
        # One file without a write-ahead log beside it.
        target.execute("PRAGMA journal_mode = DELETE")
    with partial.open("rb") as file:
        os.fsync(file.fileno())
