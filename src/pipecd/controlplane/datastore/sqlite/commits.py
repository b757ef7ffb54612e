# SPDX-License-Identifier: Apache-2.0
"""Pieces of work that are committed together, each with a verdict of its own."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from pipecd.controlplane.datastore.database import Writing
from pipecd.controlplane.datastore.engine.lane import Batch, Job, Outcome
from pipecd.controlplane.datastore.engine.statement import Alone
from pipecd.controlplane.datastore.sqlite.connection import Transaction
from pipecd.controlplane.datastore.sqlite.errors import while_running


class _TransactionLost(Exception):
    """The whole transaction is undone, not only the statement that failed."""


def commit(connection: sqlite3.Connection, path: Path, batch: Batch[Writing]) -> Sequence[Outcome]:
    """How each of them ended; what succeeded is stored."""
    if len(batch) > 1:
        try:
            return _commit_together(connection, path, batch)
        except _TransactionLost:
            # It happens seldom; each then gets its own transaction and verdict.
            pass
    return [_commit_alone(connection, path, job) for job in batch]


def roll_back(connection: sqlite3.Connection) -> None:
    """Ends a transaction that is still open."""
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _commit_together(
    connection: sqlite3.Connection, path: Path, batch: Batch[Writing]
) -> Sequence[Outcome]:
    """One transaction for all, unless one of them fails after it has changed something."""
    transaction = Transaction(connection, path)
    outcomes: list[Outcome] = []
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as e:
        return [Outcome(error=while_running(e, path)) for _ in batch]
    try:
        for job in batch:
            before = connection.total_changes
            outcome = job.attempt(transaction)
            if outcome.error is not None and (
                connection.total_changes != before or not connection.in_transaction
            ):
                raise _TransactionLost
            outcomes.append(outcome)
        connection.execute("COMMIT")
    except sqlite3.Error as e:
        raise _TransactionLost from e
    finally:
        roll_back(connection)
    return outcomes


def _commit_alone(connection: sqlite3.Connection, path: Path, job: Job[Writing]) -> Outcome:
    try:
        if not isinstance(job.work, Alone):
            connection.execute("BEGIN IMMEDIATE")
        outcome = job.attempt(Transaction(connection, path))
        if outcome.error is None and connection.in_transaction:
            connection.execute("COMMIT")
    except sqlite3.Error as e:
        return Outcome(error=while_running(e, path))
    finally:
        roll_back(connection)
    return outcome
