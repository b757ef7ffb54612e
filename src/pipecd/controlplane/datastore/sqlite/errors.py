# SPDX-License-Identifier: Apache-2.0
"""What SQLite complains about, said so that a person knows what to do."""

import sqlite3
from pathlib import Path

from pipecd.controlplane.datastore.database import Duplicate
from pipecd.model.errors import PipecdError, StorageUnavailable, UserMistake

DUPLICATES = frozenset({sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE})


class Locked(StorageUnavailable):
    """Another process writes to the file."""


def while_opening(error: Exception, path: Path) -> Exception:
    """The error of a start: whoever started the program can mend most of them."""
    if isinstance(error, OSError):
        return _not_writable(path, error.strerror or str(error))
    if not isinstance(error, sqlite3.Error):
        return error
    match _primary_code(error):
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return _not_writable(path, str(error))
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return UserMistake(
                f"the database {path} is damaged or is no SQLite file: {error}",
                hint="restore it from a backup, or move it away to begin with an empty one",
            )
        case _:
            return while_running(error, path)


def while_running(error: sqlite3.Error, path: Path) -> Exception:
    """The error of a request: its sender is not to blame, except for an incomplete document."""
    match _primary_code(error):
        case sqlite3.SQLITE_CONSTRAINT:
            return _refused_row(error)
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Locked(
                f"the database {path} is locked by another process",
                hint="end the other process, or try again later",
            )
        case sqlite3.SQLITE_FULL:
            return StorageUnavailable(
                f"the disk that holds the database {path} is full", hint="free some space on it"
            )
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return StorageUnavailable(
                f"the database {path} is damaged: {error}", hint="restore it from a backup"
            )
        case (
            sqlite3.SQLITE_IOERR
            | sqlite3.SQLITE_READONLY
            | sqlite3.SQLITE_CANTOPEN
            | sqlite3.SQLITE_PERM
        ):
            return StorageUnavailable(
                f"the database {path} cannot be read or written: {error}",
                hint="look at the disk and the rights of its files",
            )
        case _:
            return error


def _refused_row(error: sqlite3.Error) -> Exception:
    if error.sqlite_errorcode in DUPLICATES:
        return Duplicate(str(error))
    if error.sqlite_errorcode == sqlite3.SQLITE_CONSTRAINT_NOTNULL:
        column = str(error).rpartition(": ")[2]
        return UserMistake(f"the document cannot be stored because {column} is missing")
    return error


def in_use(path: Path, owner: str) -> PipecdError:
    """The refusal to share the file with a second server."""
    by = f"process {owner}" if owner else "another process"
    return StorageUnavailable(
        f"the database {path} is in use by {by}",
        hint="stop that process; several servers need MySQL or PostgreSQL instead of SQLite",
    )


def _not_writable(path: Path, reason: str) -> UserMistake:
    return UserMistake(
        f"the database {path} cannot be created or written: {reason}",
        hint=f"make the directory {path.parent} writable for this user, or choose another path",
    )


def _primary_code(error: sqlite3.Error) -> int | None:
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
