# SPDX-License-Identifier: Apache-2.0
"""A connection to PostgreSQL that the event loop listens on.

Waking a thread and taking turns with it costs more than the whole conversation with the server. So
a single statement is sent from the event loop, and its answer taken when it arrives.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from pipecd.controlplane.datastore.database import Row, Value
from pipecd.controlplane.datastore.engine.link import Arguments, Lost
from pipecd.controlplane.datastore.postgres.errors import while_running
from pipecd.controlplane.datastore.postgres.link import PostgresLink

DONE = frozenset({ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK})
BINARY, TEXT = 1, 0

# Told that the answer is complete, and whether the connection may be used again.
Freed = Callable[["Line", bool], None]


class Line:
    """One connection and the statement that is under way on it.

    Whoever asked may stop waiting; the statement is brought to its end all the same.
    """

    def __init__(self, link: PostgresLink) -> None:
        # What is asked here is found by the same index, whatever the values are.
        link.statement("SET plan_cache_mode = auto")
        self._link = link
        self._connection = link.connection.pgconn
        self._loader = Transformer(link.connection)
        self._prepared: dict[str, bytes] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # A number of our own for the socket: the driver gives its number back as soon as the
        # connection breaks, and another connection may get it before the loop has let go of it.
        self._socket = os.dup(self._connection.socket)
        self._is_sending = False
        self._answer: asyncio.Future[PGresult] | None = None
        self._freed: Freed | None = None
        self._text = ""
        # What follows once the statement is prepared.
        self._arguments: Arguments | None = None
        self._result: PGresult | None = None
        self._lost: Lost | None = None

    def ask(self, text: str, arguments: Arguments, freed: Freed) -> "asyncio.Future[PGresult]":
        """Sends a statement; the answer is an error if the server refuses it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket, self._arrived)
        self._answer = answer = self._loop.create_future()
        self._text, self._freed, self._result = text, freed, None
        if self._lost is not None:
            self._break(self._lost)
            return answer
        try:
            if text in self._prepared:
                self._execute(arguments)
            else:
                self._arguments = arguments
                name = f"pipecd_{len(self._prepared)}".encode()
                self._connection.send_prepare(name, text.encode())
                self._prepared[text] = name
            self._flush()
        except psycopg.Error as e:
            self._break(while_running(e))
        return answer

    def rows(self, answer: PGresult) -> Sequence[Row]:
        self._loader.set_pgresult(answer)
        found: list[Any] = self._loader.load_rows(0, answer.ntuples, tuple)
        return found

    def close(self) -> None:
        self._deaf()
        self._link.close()

    def abort(self) -> None:
        self._link.abort()

    def _execute(self, arguments: Arguments) -> None:
        self._arguments = None
        self._connection.send_query_prepared(
            self._prepared[self._text],
            [_encoded(value) for value in arguments],
            [BINARY if isinstance(value, bytes) else TEXT for value in arguments],
        )

    def _flush(self) -> None:
        """Sends what is left of a statement, when there is room for it."""
        is_sending = self._connection.flush() != 0
        if is_sending == self._is_sending or self._loop is None:
            return
        self._is_sending = is_sending
        if is_sending:
            self._loop.add_writer(self._socket, self._flush_more)
        else:
            self._loop.remove_writer(self._socket)

    def _flush_more(self) -> None:
        try:
            self._flush()
        except psycopg.Error as e:
            self._break(while_running(e))

    def _arrived(self) -> None:
        """Takes what the server sent, also when nothing was asked."""
        connection = self._connection
        try:
            connection.consume_input()
            while not connection.is_busy():
                result = connection.get_result()
                if result is None:
                    self._complete()
                    return
                self._result = result
        except psycopg.Error as e:
            self._break(while_running(e))

    def _complete(self) -> None:
        """The server waits for the next statement."""
        result = self._result
        if result is None:
            return
        if result.status not in DONE:
            self._refused(result)
        elif self._arguments is not None:
            self._result = None
            self._execute(self._arguments)
            self._flush()
        else:
            answer, freed = self._ended()
            if not answer.done():
                answer.set_result(result)
            freed(self, True)

    def _refused(self, result: PGresult) -> None:
        if self._arguments is not None:
            self._arguments = None
            del self._prepared[self._text]
        error = while_running(psycopg.errors.error_from_result(result))
        if isinstance(error, Lost):
            self._break(error)
            return
        answer, freed = self._ended()
        if not answer.done():
            answer.set_exception(error)
        freed(self, True)

    def _break(self, error: Exception) -> None:
        """The connection is of no use any more."""
        self._deaf()
        self._lost = error if isinstance(error, Lost) else Lost(str(error))
        if self._answer is not None:
            answer, freed = self._ended()
            if not answer.done():
                answer.set_exception(self._lost)
            freed(self, False)

    def _ended(self) -> "tuple[asyncio.Future[PGresult], Freed]":
        answer, freed = self._answer, self._freed
        if answer is None or freed is None:
            raise RuntimeError("an answer arrived to which there was no question")
        self._answer = self._freed = self._result = None
        return answer, freed

    def _deaf(self) -> None:
        if self._socket < 0:
            return
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        os.close(self._socket)
        self._socket = -1


def _encoded(value: Value) -> bytes | None:
    """A value as the server reads it; what type it is follows from the statement."""
    match value:
        case None | bytes():
            return value
        case str():
            return value.encode()
        case bool():
            return b"t" if value else b"f"
        case _:
            return str(value).encode()
