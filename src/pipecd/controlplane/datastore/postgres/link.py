# SPDX-License-Identifier: Apache-2.0
"""A connection to PostgreSQL by the psycopg driver."""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, LiteralString, TypeVar, cast

import psycopg
from psycopg.types.string import TextLoader

from pipecd.controlplane.datastore.database import Row
from pipecd.controlplane.datastore.engine.link import Arguments, Begin
from pipecd.controlplane.datastore.postgres.address import SILENCE_SECONDS, shown
from pipecd.controlplane.datastore.postgres.errors import while_connecting, while_running

T = TypeVar("T")

SESSION = (
    "SET lock_timeout = '5s'",
    f"SET statement_timeout = '{SILENCE_SECONDS}s'",
    # A process that hangs in a transaction must not hold its locks for ever.
    "SET idle_in_transaction_session_timeout = '60s'",
    # How a list is best found depends on how rare the values are that are looked for.
    "SET plan_cache_mode = force_custom_plan",
)
WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresLink:
    """One connection; statements outside of a transaction commit by themselves."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self.connection = connection

    def rows(self, text: str, arguments: Arguments) -> Sequence[Row]:
        return self._told(lambda: self._execute(text, arguments).fetchall())

    def run(self, text: str, arguments: Arguments) -> int:
        return self._told(lambda: self._execute(text, arguments).rowcount)

    def run_many(self, text: str, arguments: Sequence[Arguments]) -> None:
        if len(arguments) == 1:
            self.run(text, arguments[0])
            return
        statement = cast("LiteralString", text)
        self._told(lambda: self.connection.cursor().executemany(statement, arguments))

    def begin(self, what: Begin) -> None:
        self.statement(WRITE if what is Begin.WRITE else SNAPSHOT)

    def commit(self) -> None:
        self.statement("COMMIT")

    def roll_back(self) -> None:
        self.statement("ROLLBACK")

    def statement(self, text: str) -> None:
        """Runs a statement as it stands, without parameters or an answer."""
        self._told(lambda: self._execute(text, None))

    def close(self) -> None:
        with suppress(Exception):
            self.connection.close()

    def abort(self) -> None:
        # The other thread waits for the socket; shutting it down is what wakes it.
        with suppress(Exception), socket.socket(fileno=os.dup(self.connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)

    def _execute(self, text: str, arguments: Arguments | None) -> "psycopg.Cursor[Any]":
        # Statements are composed by SQLAlchemy; values go beside them.
        return self.connection.execute(cast("LiteralString", text), arguments)

    def _told(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except psycopg.Error as e:
            told = while_running(e)
            if told is e:
                raise
            raise told from e


def connect(conninfo: str, *settings: str) -> PostgresLink:
    """A connection that behaves the same whatever the defaults of its server are.

    `settings` are statements that set what is to be different from other connections of ours.
    """
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True)
        # Documents go in and out as text; whoever needs them parsed does it once.
        connection.adapters.register_loader("json", TextLoader)
        for statement in (*SESSION, *settings):
            connection.execute(cast("LiteralString", statement))
    except psycopg.Error as e:
        raise while_connecting(e, shown(conninfo)) from e
    return PostgresLink(connection)
