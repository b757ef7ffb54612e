# SPDX-License-Identifier: Apache-2.0
"""The database of a control plane: a few threads with connections of SQLAlchemy's pool.

Statements are built with SQLAlchemy Core, compiled once and executed by the driver; SQLAlchemy's
engine would double the CPU time of a short statement. A unit of work is a function that takes a
`Transaction`. It runs on another thread and is retried after a deadlock or a lost connection, so
it must change nothing but its transaction.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NoReturn, TypeVar

from sqlalchemy import Delete, Dialect, Insert, Table, Update
from sqlalchemy.pool import Pool, PoolProxiedConnection

from pipecd.controlplane.datastore.expressions import NO_VALUES, AnySelect, Row, Value, Values
from pipecd.controlplane.datastore.meta import add_meta, read_meta
from pipecd.controlplane.datastore.query import Selection, Shape, plain_statement
from pipecd.controlplane.datastore.ranges import entry_statement, page_statement
from pipecd.controlplane.datastore.schema import SCHEMA_VERSION, VERSION_ROW
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake
from pipecd.observe.operations import ObservedOperation, OperationObserver

T = TypeVar("T")

Change = Insert | Update | Delete

# How long a caller waits for an answer, in seconds.
TIMEOUT = 30.0
# How often a unit of work is retried, by cause.
MAX_RECONNECTS = 1
MAX_COLLISIONS = 12
MAX_DUPLICATES = 3
MAX_COMPILED_STATEMENTS = 2048


class Duplicate(Exception):
    """A row with this primary key exists already.

    Some engines abort the transaction: work that catches this error must not write anything else.
    Work that does not catch it lost a race against another writer and is retried.
    """


class OutcomeUnknown(Exception):
    """A single statement may or may not have been executed, because its connection was lost.

    The caller reads the stored state in a transaction.
    """


class ConnectionLost(Exception):
    """The connection is gone or the server is stopping; another connection may work."""


class Collision(Exception):
    """The transaction lost against another one (deadlock, lock timeout); a retry may succeed."""


class CommitUnconfirmed(Exception):
    """The connection was lost while the transaction was being committed."""


@dataclass(frozen=True)
class CompiledStatement:
    """The SQL of a statement, the names of its parameters in order, and its literal values."""

    text: str
    names: Sequence[str]
    literals: Mapping[str, Value]

    def arguments(self, values: Values) -> list[Value]:
        """Returns the values in the order of the parameters."""
        arguments = [values[n] if n in values else self.literals[n] for n in self.names]
        for value in arguments:
            # PostgreSQL cannot store it, so it is refused on every engine.
            if isinstance(value, str) and "\0" in value:
                raise UserMistake("a text with a zero byte cannot be stored or searched for")
        return arguments


@lru_cache(MAX_COMPILED_STATEMENTS)
def compile_statement(statement: AnySelect | Change, dialect: Dialect) -> CompiledStatement:
    """Compiles a statement of SQLAlchemy Core for a dialect, once."""
    compiled = statement.compile(dialect=dialect)
    return CompiledStatement(str(compiled), compiled.positiontup or (), compiled.params)


class Transaction:
    """Runs statements on one connection; `explain` translates the errors of the driver."""

    def __init__(
        self, connection: Any, dialect: Dialect, explain: Callable[[Exception], Exception]
    ) -> None:
        self.connection = connection
        self._dialect, self._explain = dialect, explain

    def query(self, statement: AnySelect, values: Values = NO_VALUES) -> Sequence[Row]:
        """Returns the matching rows; `values` are those of the named parameters."""
        compiled = compile_statement(statement, self._dialect)
        return self.query_sql(compiled.text, compiled.arguments(values))

    def rows(self, statement: AnySelect, values: Values = NO_VALUES) -> Iterator[Row]:
        """Iterates over the matching rows, of which the caller keeps few.

        Large values are read into the same memory again, which is faster than into more of it.
        """
        compiled = compile_statement(statement, self._dialect)
        arguments = compiled.arguments(values)
        try:
            # As text, PostgreSQL sends bytes in twice the length.
            binary = {"binary": True} if self._dialect.name == "postgresql" else {}
            cursor = self.connection.cursor(**binary)
            cursor.execute(compiled.text, arguments)
            yield from cursor
        except Exception as e:  # noqa: BLE001 - drivers raise errors of many kinds.
            self._fail(e)

    def execute(self, statement: Change, values: Values = NO_VALUES) -> int:
        """Returns how many rows were changed; raises Duplicate when a primary key is taken."""
        compiled = compile_statement(statement, self._dialect)
        return self._cursor("execute", compiled.text, compiled.arguments(values)).rowcount

    def execute_many(self, statement: Change, values: Sequence[Values]) -> None:
        """Executes the statement once for each of the values, in as few round trips as possible."""
        compiled = compile_statement(statement, self._dialect)
        method = "executemany" if len(values) > 1 else "execute"
        arguments = [compiled.arguments(each) for each in values]
        self._cursor(method, compiled.text, arguments if len(values) > 1 else arguments[0])

    def query_sql(self, text: str, arguments: Sequence[Value] = ()) -> Sequence[Row]:
        """Returns the rows that a query in the SQL of the engine matches."""
        cursor = self._cursor("execute", text, arguments)
        try:
            return list(cursor.fetchall())
        except Exception as e:  # noqa: BLE001 - drivers raise errors of many kinds.
            self._fail(e)

    def run_sql(self, *texts: str) -> None:
        """Runs statements in the SQL of the engine that return no rows."""
        for text in texts:
            self._cursor("execute", text)

    def _cursor(self, method: str, text: str, *arguments: Sequence[Any]) -> Any:
        try:
            cursor = self.connection.cursor()
            getattr(cursor, method)(text, *arguments)
        except Exception as e:  # noqa: BLE001 - drivers raise errors of many kinds.
            self._fail(e)
        return cursor

    def _fail(self, error: Exception) -> NoReturn:
        explained = self._explain(error)
        if explained is error:
            raise error
        raise explained from error


class Database:
    """One database with the tables of `schema`.

    Connections are in autocommit mode, so that a single statement takes one round trip;
    transactions begin and end with explicit statements. Each thread uses one connection at a time.
    Reads have their own threads, so that a write that waits for a lock never delays them.
    """

    BEGIN_SNAPSHOT: ClassVar[Sequence[str]] = ("BEGIN",)
    BEGIN_WRITE: ClassVar[Sequence[str]] = ("BEGIN",)

    def __init__(
        self,
        pool: Pool,
        dialect: Dialect,
        *,
        readers: int,
        writers: int,
        timeout: float = TIMEOUT,
        observers: Sequence[OperationObserver] = (),
    ) -> None:
        self._pool = self._read_pool = pool
        self._dialect = dialect
        self._timeout = timeout
        self._observers = tuple(observers)
        self._loop = asyncio.get_running_loop()
        self._readers = ThreadPoolExecutor(readers, "database-read")
        self._writers = ThreadPoolExecutor(writers, "database-write")
        self._closed = False
        self._lock = threading.Lock()
        # The connections in use, with the time when each was taken.
        self._busy: dict[PoolProxiedConnection, float] = {}

    @property
    def engine(self) -> str:
        """The name of the dialect."""
        return self._dialect.name

    async def lookup(self, statement: AnySelect, values: Values = NO_VALUES) -> Sequence[Row]:
        """Returns the few rows of an index lookup; some engines need no thread for it."""
        return await self.query(statement, values)

    async def query(self, statement: AnySelect, values: Values = NO_VALUES) -> Sequence[Row]:
        """Returns the rows that a single statement matches."""
        return await self._on_thread(
            self._readers, "read", lambda: self._retry_read(lambda t: t.query(statement, values))
        )

    async def select(self, selection: Selection) -> Sequence[Row]:
        """Returns the documents of a selection."""
        statement = page_statement(selection.shape, self.engine)
        if statement is None:
            statement = self.list_statement(selection.shape)
        return await self.query(statement, selection.values)

    async def time_of_entry(self, selection: Selection, entries: int) -> int | None:
        """Returns a time since which the ranges of a page have about so many entries.

        None means that all of its ranges are shorter, or that it is no page from ranges.
        """
        statement = entry_statement(selection.shape, self.engine)
        if statement is None:
            return None
        ranges, entry = statement
        values = {**selection.values, "entry": entries // ranges}
        ((time,),) = await self.query(entry, values)
        return time

    def list_statement(self, shape: Shape) -> AnySelect:
        """The statement of a list that is no page; engines override it to suit their planners."""
        return plain_statement(shape)

    async def execute(self, statement: Insert | Update, values: Values = NO_VALUES) -> int:
        """Returns how many rows a single statement changed, once it is committed.

        Raises Duplicate when a primary key is taken, and OutcomeUnknown when the answer was lost.
        """

        def work() -> int:
            try:
                with self._connect(self._pool) as transaction:
                    return transaction.execute(statement, values)
            except (ConnectionLost, Collision) as e:
                raise OutcomeUnknown(str(e)) from e

        return await self._on_thread(self._writers, "write", work)

    async def read(self, work: Callable[[Transaction], T]) -> T:
        """Runs work whose queries all see the same snapshot of the database."""
        return await self._on_thread(
            self._readers, "read", lambda: self._retry_read(work, snapshot=True)
        )

    async def write(self, work: Callable[[Transaction], T]) -> T:
        """Returns the result of the work once it is committed; an error rolls it back."""
        return await self._on_thread(self._writers, "write", lambda: self._retry_write(work))

    async def clear(self, table: Table) -> None:
        """Removes all rows of a table, however many they are."""
        name = self._dialect.identifier_preparer.format_table(table)
        # SQLite has no TRUNCATE; it removes all rows at once if there is no condition.
        command = "DELETE FROM" if self._dialect.name == "sqlite" else "TRUNCATE TABLE"
        await self.write(lambda transaction: transaction.run_sql(f"{command} {name}"))

    async def refresh_labels(self, table: str, project: str) -> None:
        """Indexes the labels that another program may have written to the table."""

    async def close(self) -> None:
        """Finishes the work in progress, refuses new work and closes all connections."""
        self._closed = True
        pools = (self._writers, self._readers)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                for pool in pools:
                    await asyncio.to_thread(pool.shutdown)
        self._abort_older_than(0)
        for pool in pools:
            await asyncio.to_thread(pool.shutdown)
        for connections in (self._read_pool, self._pool):
            await asyncio.to_thread(connections.dispose)

    def explain(self, error: Exception) -> Exception:
        """Translates an error of the driver; returns an unexpected one as it is."""
        raise NotImplementedError

    def abort(self, driver_connection: Any) -> None:
        """Interrupts the thread that waits for an answer on this connection."""
        raise NotImplementedError

    async def _on_thread(
        self, pool: ThreadPoolExecutor, operation: str, work: Callable[[], T]
    ) -> T:
        self._check_open()
        with ObservedOperation(self._observers, "datastore", operation):
            return await self._with_timeout(
                self._loop.run_in_executor(pool, copy_context().run, work)
            )

    async def _with_timeout(self, answer: "asyncio.Future[T]") -> T:
        """Returns the answer; after the timeout, aborts the connections that are stuck."""
        try:
            async with asyncio.timeout(self._timeout):
                return await answer
        except TimeoutError as e:
            # The event loop may have been held up for as long, and then finds both at once.
            if not answer.cancelled():
                return answer.result()
            self._abort_older_than(self._timeout)
            raise StorageUnavailable(
                f"the database did not answer within {self._timeout:g} s", hint="try again later"
            ) from e

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the database is closed")

    def _retry_read(self, work: Callable[[Transaction], T], *, snapshot: bool = False) -> T:
        attempts = 0
        while True:
            try:
                with self._connect(self._read_pool) as transaction:
                    if not snapshot:
                        return work(transaction)
                    transaction.run_sql(*self.BEGIN_SNAPSHOT)
                    try:
                        return work(transaction)
                    finally:
                        _roll_back(transaction)
            except (ConnectionLost, Collision) as e:
                attempts += 1
                if attempts > MAX_RECONNECTS:
                    raise unavailable(e) from e

    def _retry_write(self, work: Callable[[Transaction], T]) -> T:
        reconnects = collisions = duplicates = 0
        while True:
            try:
                return self._transaction(work)
            except ConnectionLost as e:
                reconnects += 1
                if reconnects > MAX_RECONNECTS:
                    raise unavailable(e) from e
            except CommitUnconfirmed as e:
                raise unavailable(e) from e
            except Collision as e:
                collisions += 1
                if collisions > MAX_COLLISIONS:
                    raise unavailable(e) from e
                # Retries are jittered so that colliding writers spread out.
                time.sleep(random.uniform(0, 0.002 * 2 ** min(collisions, 6)))  # noqa: S311
            except Duplicate:
                duplicates += 1
                if duplicates > MAX_DUPLICATES:
                    raise

    def _transaction(self, work: Callable[[Transaction], T]) -> T:
        with self._connect(self._pool) as transaction:
            transaction.run_sql(*self.BEGIN_WRITE)
            try:
                result = work(transaction)
            except BaseException:
                _roll_back(transaction)
                raise
            try:
                transaction.run_sql("COMMIT")
            except ConnectionLost as e:
                raise CommitUnconfirmed(str(e)) from e
            except BaseException:
                _roll_back(transaction)
                raise
            return result

    @contextmanager
    def _connect(self, pool: Pool) -> Iterator[Transaction]:
        """Takes a connection from the pool; if it is lost, drops the idle connections as well."""
        connection = pool.connect()
        with self._lock:
            self._busy[connection] = time.monotonic()
        try:
            yield Transaction(connection.driver_connection, self._dialect, self.explain)
        except (ConnectionLost, CommitUnconfirmed) as e:
            connection.invalidate(e)
            pool.dispose()
            raise
        finally:
            with self._lock:
                del self._busy[connection]
            connection.close()

    def _abort_older_than(self, seconds: float) -> None:
        """Aborts connections that have been in use for so long, to free their threads."""
        since = time.monotonic() - seconds
        with self._lock:
            stuck = [connection for connection, at in self._busy.items() if at <= since]
        for connection in stuck:
            with suppress(Exception):
                self.abort(connection.driver_connection)


def ensure_version(transaction: Transaction, name: str) -> None:
    """Stores our schema version; refuses a database that a newer version has written."""
    add_meta(transaction, VERSION_ROW, str(SCHEMA_VERSION))
    if int(read_meta(transaction, VERSION_ROW) or 0) > SCHEMA_VERSION:
        raise UserMistake(
            f"the database {name} was written by a newer version of this program",
            hint="run that version, or restore a backup made before the upgrade",
        )


def unavailable(error: Exception) -> StorageUnavailable:
    """The error that callers outside of the datastore get."""
    match error:
        case CommitUnconfirmed():
            return StorageUnavailable(
                f"the connection to the database was lost before it confirmed a change: {error}",
                hint="check whether the change was stored, then try again",
            )
        case Collision():
            return StorageUnavailable(
                f"too many transactions change the same rows of the database: {error}",
                hint="try again later",
            )
        case _:
            return StorageUnavailable(
                f"the connection to the database was lost: {error}", hint="try again later"
            )


def _roll_back(transaction: Transaction) -> None:
    """Rolls back; ConnectionLost if that fails, so that the connection is not used again."""
    try:
        transaction.connection.rollback()
    except Exception as e:
        raise ConnectionLost(str(e)) from e
