# SPDX-License-Identifier: Apache-2.0
"""A connection to PostgreSQL that the event loop listens on.

Waking a thread and taking turns with it costs more than the whole conversation with the server. So
statements are sent from the event loop, a round of them at a time, and their answers are taken when
they arrive.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
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

# The rows that were found, or how many were changed.
Answer = Sequence[Row] | int


@dataclass(eq=False)
class Question:
    """A statement and who waits for its answer.

    They may stop waiting; the statement is brought to its end all the same.
    """

    text: str
    arguments: Arguments
    asked_at: float
    answer: "asyncio.Future[Answer]"

    def answered(self, answer: Answer) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def failed(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


# Told whether the connection may be used again, and which questions are to be asked once more.
Ended = Callable[["Line", bool, Sequence[Question]], None]


@dataclass
class Round:
    """Questions that went together, and what came back until now."""

    questions: Sequence[Question]
    ended: Ended
    # What the server was told to do, in order: to prepare a statement, or to run it.
    steps: "deque[tuple[Question, bool]]" = field(default_factory=deque[tuple[Question, bool]])
    answers: list[Answer] = field(default_factory=list[Answer])
    # What the server refused first; the rest of the round is undone then.
    refused: Question | None = None
    error: Exception | None = None


class Line:
    """One connection and the round that is under way on it.

    A round is one transaction: it costs one commit, and a statement that is refused undoes the
    others, which are then asked again without it.
    """

    def __init__(self, link: PostgresLink) -> None:
        self._link = link
        self._connection = link.connection.pgconn
        self._connection.enter_pipeline_mode()
        self._loader = Transformer(link.connection)
        self._names = count()
        self._prepared: dict[str, bytes] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # A number of our own for the socket: the driver gives its number back as soon as the
        # connection breaks, and another connection may get it before the loop has let go of it.
        self._socket = os.dup(self._connection.socket)
        self._is_sending = False
        self._round: Round | None = None
        self._result: PGresult | None = None
        self._lost: Lost | None = None

    def ask(self, questions: Sequence[Question], ended: Ended) -> None:
        """Sends a round of statements; an answer is an error if the server refuses it."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket, self._arrived)
        self._round, self._result = Round(questions, ended), None
        if self._lost is not None:
            self._break(self._lost)
            return
        try:
            for question in questions:
                self._send(question, self._round.steps)
            self._connection.pipeline_sync()
            self._flush()
        except psycopg.Error as e:
            self._break(while_running(e))

    def close(self) -> None:
        self._deaf()
        self._link.close()

    def abort(self) -> None:
        self._link.abort()

    def _send(self, question: Question, steps: "deque[tuple[Question, bool]]") -> None:
        name = self._prepared.get(question.text)
        if name is None:
            name = self._prepared[question.text] = f"pipecd_{next(self._names)}".encode()
            self._connection.send_prepare(name, question.text.encode())
            steps.append((question, True))
        self._connection.send_query_prepared(
            name,
            [_encoded(value) for value in question.arguments],
            [BINARY if isinstance(value, bytes) else TEXT for value in question.arguments],
        )
        steps.append((question, False))

    def _flush(self) -> None:
        """Sends what is left of a round, when there is room for it."""
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
                    if self._result is None:
                        return
                    self._stepped(self._result)
                    self._result = None
                elif result.status == ExecStatus.PIPELINE_SYNC:
                    self._complete()
                else:
                    self._result = result
        except psycopg.Error as e:
            self._break(while_running(e))

    def _stepped(self, result: PGresult) -> None:
        """The server has told how one statement ended."""
        now = self._under_way()
        question, is_preparing = now.steps.popleft() if now.steps else (None, False)
        if result.status in DONE:
            if not is_preparing:
                now.answers.append(self._read(result))
            return
        if is_preparing and question is not None:
            del self._prepared[question.text]
        if now.error is None:
            now.refused = question
            now.error = while_running(psycopg.errors.error_from_result(result))

    def _read(self, result: PGresult) -> Answer:
        if result.status == ExecStatus.COMMAND_OK:
            return result.command_tuples or 0
        self._loader.set_pgresult(result)
        found: list[Any] = self._loader.load_rows(0, result.ntuples, tuple)
        return found

    def _complete(self) -> None:
        """The transaction is committed or undone, and the server waits for the next round."""
        now = self._under_way()
        if isinstance(now.error, Lost):
            self._break(now.error)
            return
        self._round = None
        again: Sequence[Question] = ()
        if now.error is None:
            for question, answer in zip(now.questions, now.answers, strict=True):
                question.answered(answer)
        elif now.refused is None:
            # It was refused as a whole when it was to be committed.
            for question in now.questions:
                question.failed(now.error)
        else:
            now.refused.failed(now.error)
            again = [q for q in now.questions if q is not now.refused]
        now.ended(self, True, again)

    def _break(self, error: Exception) -> None:
        """The connection is of no use any more."""
        self._deaf()
        self._lost = error if isinstance(error, Lost) else Lost(str(error))
        if self._round is not None:
            now, self._round = self._round, None
            for question in now.questions:
                question.failed(self._lost)
            now.ended(self, False, ())

    def _under_way(self) -> Round:
        if self._round is None:
            raise RuntimeError("an answer arrived to which there was no question")
        return self._round

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
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return str(value).encode()
