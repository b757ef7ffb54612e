# SPDX-License-Identifier: Apache-2.0
"""Opening and closing the file: its lock, its connections, its tables."""

import fcntl
import os
import sqlite3
from collections import deque
from pathlib import Path

from sqlalchemy import delete

from pipecd.controlplane.datastore.engine.ensurer import ensure_version
from pipecd.controlplane.datastore.schema import EXT_LEASE, definitions
from pipecd.controlplane.datastore.sqlite.connection import (
    STATEMENTS,
    Purpose,
    Transaction,
    connect,
)
from pipecd.controlplane.datastore.sqlite.errors import in_use, while_opening
from pipecd.controlplane.datastore.sqlite.statistics import tell_statistics


class SqliteFiles:
    """The open connections to one file, and the lock that keeps other servers away."""

    def __init__(self, path: Path, *, readers: int, busy_seconds: float) -> None:
        self.path = path
        self._lock = -1
        opened: list[sqlite3.Connection] = []
        try:
            self._lock = _lock(path)
            opened.append(connect(path, Purpose.WRITE, busy_seconds=busy_seconds))
            _ensure_schema(opened[0], path)
            opened.append(connect(path, Purpose.AT_HAND, busy_seconds=0))
            for _ in range(readers):
                opened.append(connect(path, Purpose.READ, busy_seconds=busy_seconds))
        except Exception as e:
            for connection in opened:
                connection.close()
            if self._lock >= 0:
                os.close(self._lock)
            raise while_opening(e, path) from e
        self.writer = opened[0]
        # For the event loop alone, which waits for nobody.
        self.at_hand = opened[1]
        self.readers = deque(opened[2:])

    def close(self) -> None:
        for reader in (self.at_hand, *self.readers):
            reader.close()
        # The last connection to close moves the write-ahead log into the file.
        self.writer.close()
        os.close(self._lock)


def _lock(path: Path) -> int:
    """Creates the file for its owner only and takes the lock of the server that uses it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    lock = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        owner = os.read(lock, 20).decode(errors="replace").strip()
        os.close(lock)
        raise in_use(path, owner) from e
    os.truncate(lock, 0)
    os.write(lock, f"{os.getpid()}\n".encode())
    return lock


def _ensure_schema(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for definition in definitions(STATEMENTS.dialect):
            connection.execute(definition)
        transaction = Transaction(connection, path)
        ensure_version(transaction, str(path))
        tell_statistics(connection)
        # Whoever held a lease is gone, because nobody else may have the file open.
        transaction.run(delete(EXT_LEASE))
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
