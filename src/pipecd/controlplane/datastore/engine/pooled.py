# SPDX-License-Identifier: Apache-2.0
"""The `Database` on a server: pieces of work on threads, each with a connection of its own.

Drivers that block, on a few threads, were measured against asynchronous ones and through
SQLAlchemy's engine: they do several times the work for the same processor time.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from sqlalchemy import Delete, Insert, Update

from pipecd.controlplane.datastore.database import (
    NOTHING,
    AnySelect,
    Doubtful,
    Duplicate,
    Lone,
    Reading,
    Row,
    Values,
    Writing,
)
from pipecd.controlplane.datastore.engine.lane import Batch, Job, Lane, Outcome
from pipecd.controlplane.datastore.engine.link import Begin, Collided, Link, Lost
from pipecd.controlplane.datastore.engine.pool import Pool
from pipecd.controlplane.datastore.engine.statement import (
    Alone,
    AskedTwice,
    OneQuestion,
    Statements,
)
from pipecd.model.errors import StorageUnavailable, Unavailable

T = TypeVar("T")

READERS, WRITERS = 4, 8
MOST_READS_AT_ONCE = 16
READ_PATIENCE, WRITE_PATIENCE = 0.001, 0.0005
MOST_LOSSES = 1
MOST_COLLISIONS = 12
MOST_DUPLICATES = 3
# How long a caller waits for an answer.
PATIENCE = 30.0


class Transaction:
    """Runs statements on a connection within one transaction."""

    def __init__(self, link: Link, statements: Statements) -> None:
        self._link = link
        self._statements = statements

    def rows(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        ready = self._statements.ready(statement)
        return self._link.rows(ready.text, ready.arguments(values))

    def run(self, statement: Insert | Update | Delete, values: Values = NOTHING) -> int:
        ready = self._statements.ready(statement)
        return self._link.run(ready.text, ready.arguments(values))

    def run_many(self, statement: Insert | Update | Delete, values: Sequence[Values]) -> None:
        ready = self._statements.ready(statement)
        self._link.run_many(ready.text, [ready.arguments(v) for v in values])


class PooledDatabase:
    """A database that other processes use at the same time."""

    weighs = False

    def __init__(
        self, pool: Pool[Link], statements: Statements, *, patience: float = PATIENCE
    ) -> None:
        self._pool = pool
        self._statements = statements
        self._patience = patience
        self._reads: Lane[Reading] = Lane(
            "database-read",
            self._read_batch,
            threads=READERS,
            most_at_once=MOST_READS_AT_ONCE,
            patience=READ_PATIENCE,
        )
        # One that waits for a lock must not hold up the others, so that each goes by itself.
        self._writes: Lane[Writing] = Lane(
            "database-write",
            lambda batch: [self._write(job) for job in batch],
            threads=WRITERS,
            most_at_once=1,
            patience=WRITE_PATIENCE,
        )

    async def glance(self, statement: AnySelect, values: Values = NOTHING) -> Sequence[Row]:
        return await self.read(lambda reading: reading.rows(statement, values))

    async def change(self, statement: Lone, values: Values = NOTHING) -> int:
        return await self.write(Alone(statement, values))

    async def read(self, work: Callable[[Reading], T]) -> T:
        return await self._in_time(self._reads.do(work))

    async def write(self, work: Callable[[Writing], T]) -> T:
        return await self._in_time(self._writes.do(work))

    async def catch_up(self, table: str, project: str) -> None:
        """Nothing to do where nobody else writes."""

    async def close(self) -> None:
        """Finishes what was accepted; later work is refused."""
        await self._writes.close()
        await self._reads.close()
        await asyncio.to_thread(self._pool.close)

    async def _in_time(self, answer: Coroutine[Any, Any, T]) -> T:
        """The answer, if it comes before the patience is at an end; else what is stuck is ended."""
        try:
            async with asyncio.timeout(self._patience):
                return await answer
        except TimeoutError as e:
            self._pool.abort_stuck(self._patience)
            raise no_answer(self._patience) from e

    def _read_batch(self, batch: Batch[Reading]) -> Sequence[Outcome]:
        link: Link | None = None
        outcomes: list[Outcome] = []
        try:
            for job in batch:
                outcome, link = self._read(job, link)
                outcomes.append(outcome)
        finally:
            if link is not None:
                self._pool.give_back(link)
        return outcomes

    def _read(self, job: Job[Reading], link: Link | None) -> tuple[Outcome, Link | None]:
        """How the work ended, and the connection for the next one."""
        outcome = Outcome()
        for _ in range(2):
            if link is None:
                try:
                    link = self._pool.take()
                except Unavailable as e:
                    return Outcome(error=e), None
            outcome = job.attempt(OneQuestion(Transaction(link, self._statements)))
            if isinstance(outcome.error, AskedTwice):
                outcome = self._snapshot(job, link)
            if isinstance(outcome.error, Lost):
                self._pool.discard(link)
                link = None
            elif not isinstance(outcome.error, Collided):
                break
        return Outcome(outcome.result, for_the_caller(outcome.error)), link

    def _snapshot(self, job: Job[Reading], link: Link) -> Outcome:
        try:
            link.begin(Begin.SNAPSHOT)
            outcome = job.attempt(Transaction(link, self._statements))
            link.roll_back()
        except (Lost, Collided) as e:
            return Outcome(error=e)
        return outcome

    def _write(self, job: Job[Writing]) -> Outcome:
        """Does the work until it is committed or refused for good."""
        if isinstance(job.work, Alone):
            return doubted(self._attempt(job, self._alone))
        losses = collisions = duplicates = 0
        while True:
            outcome = self._attempt(job, self._transaction)
            match outcome.error:
                case Lost() if losses < MOST_LOSSES:
                    losses += 1
                case Collided() if collisions < MOST_COLLISIONS:
                    collisions += 1
                    # Whoever collided must not meet again.
                    time.sleep(random.uniform(0, 0.002 * 2 ** min(collisions, 6)))  # noqa: S311
                case Duplicate() if duplicates < MOST_DUPLICATES:
                    duplicates += 1
                case _:
                    return Outcome(outcome.result, for_the_caller(outcome.error))

    def _attempt(self, job: Job[Writing], do: Callable[[Job[Writing], Link], Outcome]) -> Outcome:
        try:
            link = self._pool.take()
        except Unavailable as e:
            return Outcome(error=e)
        outcome = do(job, link)
        if isinstance(outcome.error, Lost | InDoubt):
            self._pool.discard(link)
        else:
            self._pool.give_back(link)
        return outcome

    def _alone(self, job: Job[Writing], link: Link) -> Outcome:
        return job.attempt(Transaction(link, self._statements))

    def _transaction(self, job: Job[Writing], link: Link) -> Outcome:
        try:
            link.begin(Begin.WRITE)
            outcome = job.attempt(Transaction(link, self._statements))
            if outcome.error is None:
                _commit(link)
            elif not isinstance(outcome.error, Lost):
                link.roll_back()
        except (Lost, Collided, InDoubt) as e:
            return Outcome(error=e)
        return outcome


def no_answer(patience: float) -> StorageUnavailable:
    return StorageUnavailable(
        f"the database gave no answer in {patience:g} s", hint="try again later"
    )


class InDoubt(Exception):
    """The connection broke while the transaction was being committed."""


def _commit(link: Link) -> None:
    try:
        link.commit()
    except Lost as e:
        raise InDoubt(str(e)) from e


def doubted(outcome: Outcome) -> Outcome:
    """How a statement by itself ended; it is not run again before somebody has looked."""
    if not isinstance(outcome.error, Lost | Collided):
        return outcome
    doubt = Doubtful(str(outcome.error))
    doubt.__cause__ = outcome.error
    return Outcome(error=doubt)


def for_the_caller(error: BaseException | None) -> BaseException | None:
    """The error in words for whoever asked, who knows nothing of connections."""
    match error:
        case Lost():
            told = StorageUnavailable(f"the database went away: {error}", hint="try again later")
        case InDoubt():
            told = StorageUnavailable(
                f"the database went away before it confirmed the change: {error}",
                hint="look whether it was stored, then try again",
            )
        case Collided():
            told = StorageUnavailable(
                f"too many others use the same rows of the database: {error}",
                hint="try again later",
            )
        case _:
            return error
    told.__cause__ = error
    return told
