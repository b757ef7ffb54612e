# SPDX-License-Identifier: Apache-2.0
"""The datastore on PostgreSQL, in the shape that upstream has on MySQL."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, LiteralString, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import ProgrammingError
from psycopg.types.string import TextLoader
from sqlalchemy import Insert, Update, or_
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.ext.compiler import compiles

from pipecd.config.controlplane import DatastoreConfig
from pipecd.controlplane.datastore.database import (
    TIMEOUT,
    Collision,
    ConnectionLost,
    Database,
    Duplicate,
    OutcomeUnknown,
    Transaction,
    compile_statement,
    ensure_version,
    unavailable,
)
from pipecd.controlplane.datastore.engines import server
from pipecd.controlplane.datastore.expressions import (
    NO_VALUES,
    AnySelect,
    ExactText,
    FieldType,
    FromDocument,
    IsDeleted,
    Like,
    MayContain,
    Row,
    SameDocument,
    UpstreamText,
    Value,
    Values,
)
from pipecd.controlplane.datastore.labelled_applications import fill_labelled_applications
from pipecd.controlplane.datastore.query import Shape
from pipecd.controlplane.datastore.schema import (
    EXT_DEPLOYMENT_SEGMENT,
    ExistingTables,
    missing_definitions,
)
from pipecd.model.errors import PipecdError, UserMistake
from pipecd.observe.operations import ObservedOperation, OperationObserver

DIALECT = PGDialect(paramstyle="format")
LOOKUP_CONNECTIONS, EXECUTE_CONNECTIONS = 2, 4
SCHEMES = ("postgres://", "postgresql://")
# A server that stops responding without closing the connection is detected after this time.
SILENCE_SECONDS = 30
DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": SILENCE_SECONDS,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": SILENCE_SECONDS * 1000,
    "application_name": "pipecd",
}
SESSION = (
    "SET lock_timeout = '5s'",
    f"SET statement_timeout = '{SILENCE_SECONDS}s'",
    # A process that hangs in a transaction must not keep its locks.
    "SET idle_in_transaction_session_timeout = '60s'",
    # The best plan of a list depends on how rare the filtered values are.
    "SET plan_cache_mode = force_custom_plan",
)
# A single statement uses the same index for all values.
KEEP_PLANS = "SET plan_cache_mode = auto"

# Advisory locks are numbers; this one is "pipecd" in ASCII.
SCHEMA_LOCK = int.from_bytes(b"pipecd")
COLUMNS = (
    "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_schema = current_schema()"
)
# The columns of bytes of a table whose values are compressed.
COMPRESSED = (
    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass "
    "AND atttypid = 'bytea'::regtype AND attstorage <> 'e'"
)
INDEXES = "SELECT tablename, indexname FROM pg_indexes WHERE schemaname = current_schema()"

# SQLSTATEs by their first characters; the longest match decides.
ERRORS: dict[str, Callable[[str], Exception]] = {
    "23505": Duplicate,
    # Serialization failure, deadlock, lock timeout.
    "40": Collision,
    "55P03": Collision,
    # The connection is broken, the server stops, or it has become a read-only replica.
    "08": ConnectionLost,
    "57P": ConnectionLost,
    "25006": ConnectionLost,
    "57014": server.statement_timeout,
    "53": server.out_of_space,
    "42501": server.not_permitted,
    "22": server.cannot_hold,
    "23502": server.cannot_hold,
    "54": server.cannot_hold,
}
# A wrong password, an unknown user, an unknown database.
DENIED = ("28", "3D000", "42501")


def postgres_conninfo(config: DatastoreConfig) -> str:
    """The settings of libpq; the `url` is a URL, `host:port` or `key=value` pairs."""
    url = config.url
    if "=" not in url.partition("?")[0] and not url.startswith(SCHEMES):
        url = f"postgres://{url}"
    try:
        settings = conninfo_to_dict(url)
        if config.database:
            settings["dbname"] = config.database
        if config.username_file:
            settings["user"] = server.read_secret(config.username_file, "usernameFile")
        if config.password_file:
            settings["password"] = server.read_secret(config.password_file, "passwordFile")
        return make_conninfo("", **{**DEFAULTS, **settings, "client_encoding": "UTF8"})
    except ProgrammingError as e:
        # The message of libpq may quote the URL, which may contain a password.
        raise UserMistake(
            "the url of the datastore is not understood",
            hint="write it as postgres://user:password@host:5432/database",
        ) from e


def display_name(conninfo: str) -> str:
    """The database and its server, without credentials."""
    settings = conninfo_to_dict(conninfo)
    host, port = settings.get("host", "localhost"), settings.get("port", "5432")
    return f"{settings.get('dbname', '')} on {host}:{port}"


@asynccontextmanager
async def open_postgres(
    conninfo: str,
    *,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of each request, not of this function.
    observers: Sequence[OperationObserver] = (),
) -> AsyncIterator["PostgresDatabase"]:
    """Connects, creates missing tables and indexes, and closes all connections at the end."""
    await server.wait_until_ready(lambda: prepare(conninfo))
    database = PostgresDatabase(conninfo, timeout=timeout, observers=observers)
    try:
        yield database
    finally:
        await database.close()


@dataclass(eq=False)
class Statement:
    """A single statement and the future of its result.

    If the caller cancels the future, a statement that has started is still finished.
    """

    text: str
    arguments: Sequence[Value]
    result: "asyncio.Future[tuple[Sequence[Row], int]]"


@dataclass(frozen=True)
class OpenConnection:
    """An asynchronous connection, its generation, and the time when it was opened."""

    connection: "psycopg.AsyncConnection[Any]"
    generation: int
    opened_at: float


class StatementQueue:
    """Runs single statements on a few asynchronous connections, which are opened on first use.

    A lost connection starts a new generation: connections of older generations are replaced before
    they are used again.
    """

    def __init__(self, conninfo: str, connections: int, backoff: server.ConnectBackoff) -> None:
        self._conninfo, self._backoff = conninfo, backoff
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Queue[Statement] = asyncio.Queue()
        self._generation = 0
        # The connections that run a statement, with the time when it started.
        self._busy: dict[psycopg.AsyncConnection[Any], float] = {}
        self._workers = [asyncio.create_task(self._run_worker()) for _ in range(connections)]

    def submit(self, text: str, arguments: Sequence[Value]) -> "asyncio.Future[Any]":
        """Queues a statement; the result is its rows and the number of changed rows."""
        statement = Statement(text, arguments, self._loop.create_future())
        self._waiting.put_nowait(statement)
        return statement.result

    def abort_older_than(self, seconds: float) -> None:
        """Aborts the connections whose statement has been running for so long."""
        since = self._loop.time() - seconds
        for connection, started_at in tuple(self._busy.items()):
            if started_at <= since:
                with suppress(Exception):
                    shut_down(connection)

    async def join(self) -> None:
        """Waits until all submitted statements are finished."""
        await self._waiting.join()

    async def close(self) -> None:
        """Aborts running statements and closes the connections."""
        self.abort_older_than(0)
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _run_worker(self) -> None:
        """Runs queued statements one after the other on its own connection."""
        opened: OpenConnection | None = None
        try:
            while True:
                statement = await self._waiting.get()
                try:
                    # A statement whose caller gave up before it started is skipped.
                    if not statement.result.done():
                        opened = await self._current_connection(opened)
                        await self._execute(statement, opened.connection)
                except (PipecdError, psycopg.Error) as e:
                    error = explain(e)
                    if isinstance(error, ConnectionLost):
                        self._generation += 1
                    if not statement.result.done():
                        statement.result.set_exception(error)
                finally:
                    self._waiting.task_done()
        finally:
            if opened is not None:
                await opened.connection.close()

    async def _current_connection(self, opened: OpenConnection | None) -> OpenConnection:
        """Returns the connection, or a new one if it is of an older generation or too old."""
        if opened is not None:
            is_recent = self._loop.time() - opened.opened_at < server.RECYCLE_SECONDS
            if opened.generation == self._generation and is_recent:
                return opened
            await opened.connection.close()
        self._backoff.check()
        generation = self._generation
        try:
            connection = await connect_async(self._conninfo)
        except PipecdError as e:
            raise self._backoff.failed(e) from e
        self._backoff.reset()
        return OpenConnection(connection, generation, self._loop.time())

    async def _execute(
        self, statement: Statement, connection: "psycopg.AsyncConnection[Any]"
    ) -> None:
        self._busy[connection] = self._loop.time()
        try:
            cursor = await connection.execute(
                cast("LiteralString", statement.text), statement.arguments
            )
            rows = await cursor.fetchall() if cursor.description else ()
        finally:
            del self._busy[connection]
        if not statement.result.done():
            statement.result.set_result((rows, cursor.rowcount))


class PostgresDatabase(Database):
    """A PostgreSQL database, which other replicas use at the same time.

    Transactions run on threads. Single statements run on the event loop with asynchronous
    connections, which takes less CPU time than waking a thread for each.
    """

    BEGIN_WRITE = ("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",)
    BEGIN_SNAPSHOT = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)

    def __init__(
        self,
        conninfo: str,
        *,
        timeout: float = TIMEOUT,
        observers: Sequence[OperationObserver] = (),
    ) -> None:
        backoff = server.ConnectBackoff()
        super().__init__(
            server.create_pool(lambda: connect(conninfo), backoff),
            DIALECT,
            readers=server.READERS,
            writers=server.WRITERS,
            timeout=timeout,
            observers=observers,
        )

        self._lookups = StatementQueue(conninfo, LOOKUP_CONNECTIONS, backoff)
        self._executes = StatementQueue(conninfo, EXECUTE_CONNECTIONS, backoff)

    async def lookup(self, statement: AnySelect, values: Values = NO_VALUES) -> Sequence[Row]:
        self._check_open()
        compiled = compile_statement(statement, self._dialect)
        arguments = compiled.arguments(values)
        with ObservedOperation(self._observers, "datastore", "read"):
            try:
                rows, _ = await self._with_timeout(self._lookups.submit(compiled.text, arguments))
            except (ConnectionLost, Collision):
                try:
                    rows, _ = await self._with_timeout(
                        self._lookups.submit(compiled.text, arguments)
                    )
                except (ConnectionLost, Collision) as e:
                    raise unavailable(e) from e
            return rows

    def list_statement(self, shape: Shape) -> AnySelect:
        return list_statement(shape)

    async def execute(self, statement: Insert | Update, values: Values = NO_VALUES) -> int:
        self._check_open()
        compiled = compile_statement(statement, self._dialect)
        arguments = compiled.arguments(values)
        with ObservedOperation(self._observers, "datastore", "write"):
            try:
                _, count = await self._with_timeout(self._executes.submit(compiled.text, arguments))
            except (ConnectionLost, Collision) as e:
                raise OutcomeUnknown(str(e)) from e
            return count

    async def close(self) -> None:
        self._closed = True
        for queue in (self._lookups, self._executes):
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout):
                    await queue.join()
            await queue.close()
        await super().close()

    def explain(self, error: Exception) -> Exception:
        return explain(error)

    def abort(self, driver_connection: Any) -> None:
        shut_down(driver_connection)

    def _abort_older_than(self, seconds: float) -> None:
        super()._abort_older_than(seconds)
        self._lookups.abort_older_than(seconds)
        self._executes.abort_older_than(seconds)


def shut_down(connection: "psycopg.Connection[Any] | psycopg.AsyncConnection[Any]") -> None:
    """Shuts down the socket, which wakes the thread or task that waits for an answer."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.shutdown(socket.SHUT_RDWR)


def connect(conninfo: str) -> "psycopg.Connection[Any]":
    """Opens a connection with settings that do not depend on the defaults of the server."""
    try:
        connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True)
        # Documents are read as text; `DocumentCache` parses them.
        connection.adapters.register_loader("json", TextLoader)
        for statement in SESSION:
            connection.execute(cast("LiteralString", statement))
    except psycopg.Error as e:
        raise explain_connect(e, display_name(conninfo)) from e
    return connection


async def connect_async(conninfo: str) -> "psycopg.AsyncConnection[Any]":
    """Opens a connection for single statements, whose query plans are cached."""
    try:
        connection: psycopg.AsyncConnection[Any] = await psycopg.AsyncConnection.connect(
            conninfo, autocommit=True
        )
        connection.adapters.register_loader("json", TextLoader)
        for statement in (*SESSION, KEEP_PLANS):
            await connection.execute(cast("LiteralString", statement))
    except psycopg.Error as e:
        raise explain_connect(e, display_name(conninfo)) from e
    return connection


def prepare(conninfo: str) -> None:
    """Creates missing tables and indexes in one transaction, one process at a time."""
    with closing(connect(conninfo)) as connection:
        transaction = Transaction(connection, DIALECT, explain)
        ((encoding,),) = transaction.query_sql("SHOW server_encoding")
        if encoding != "UTF8":
            raise UserMistake(
                f"the database {display_name(conninfo)} has the encoding {encoding}, which cannot "
                "hold every text",
                hint="create it with ENCODING 'UTF8' TEMPLATE template0",
            )
        # Another process may hold the lock while it creates large indexes.
        transaction.run_sql("SET lock_timeout = 0", "SET statement_timeout = 0", "BEGIN")
        transaction.query_sql("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        existing = ExistingTables.of(transaction.query_sql(COLUMNS), transaction.query_sql(INDEXES))
        transaction.run_sql(*missing_definitions(existing, DIALECT))
        transaction.run_sql(*_stored_plainly(transaction))
        ensure_version(transaction, display_name(conninfo))
        fill_labelled_applications(transaction)
        transaction.run_sql("COMMIT")


def _stored_plainly(transaction: Transaction) -> list[str]:
    """Statements after which the packed history is stored as it is.

    Compressed, a segment takes longer to unpack than to search.
    """
    table = EXT_DEPLOYMENT_SEGMENT.name
    compressed = transaction.query_sql(COMPRESSED, (f'"{table}"',))
    return [
        f'ALTER TABLE "{table}" ALTER COLUMN "{column}" SET STORAGE EXTERNAL'
        for (column,) in compressed
    ]


def explain(error: Exception) -> Exception:
    """Translates an error of the driver; returns an unexpected one as it is."""
    if not isinstance(error, psycopg.Error):
        return error
    text = error.diag.message_primary or str(error).strip().partition("\n")[0]
    state = error.sqlstate
    if state is None:
        # Errors without a SQLSTATE come from the connection, not from the server.
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return ConnectionLost(text) if is_lost else error
    for length in range(len(state), 1, -1):
        if create := ERRORS.get(state[:length]):
            return create(text)
    return error


def explain_connect(error: psycopg.Error, name: str) -> PipecdError:
    text = str(error).strip().rpartition("\n")[2]
    # libpq drops the SQLSTATE of errors during connecting.
    denied = ("password authentication failed", "does not exist", "no pg_hba.conf entry")
    is_denied = (error.sqlstate or "").startswith(DENIED) or any(words in text for words in denied)
    return server.access_denied(name, text) if is_denied else server.unreachable(name, text)


# Byte order is the same on every machine and the fastest to compare.
@compiles(ExactText, "postgresql")
@compiles(UpstreamText, "postgresql")
def _text_column(element: ExactText | UpstreamText, *_: Any, **__: Any) -> str:
    return f'VARCHAR({element.length}) COLLATE "C"'


def postgresql_expression(path: str, field_type: FieldType) -> str:
    value = f"\"Data\"#>>'{{{path.replace('.', ',')}}}'"
    match field_type:
        case FieldType.TEXT:
            return value
        case FieldType.TEXT_OR_EMPTY:
            return f"coalesce({value}, '')"
        case FieldType.NUMBER:
            return f"({value})::bigint"
        case FieldType.NUMBER_OR_ZERO:
            return f"coalesce(({value})::bigint, 0)"
        case FieldType.BOOLEAN:
            return f"coalesce(({value})::boolean, false)"


# PostgreSQL before 18 has stored computed columns only.
@compiles(FromDocument, "postgresql")
def _computed_column(element: FromDocument, *_: Any, **__: Any) -> str:
    return f"GENERATED ALWAYS AS ({postgresql_expression(element.path, element.field_type)}) STORED"


@compiles(IsDeleted, "postgresql")
def _is_deleted(*_: Any, **__: Any) -> str:
    return postgresql_expression("deleted", FieldType.BOOLEAN)


@compiles(Like, "postgresql")
def _like(element: Like, compiler: Any, **options: Any) -> str:
    (pattern,) = (compiler.process(clause, **options) for clause in element.clauses)
    is_path = bool(element.path)
    text = postgresql_expression(element.path, FieldType.TEXT) if is_path else '"Data"::text'
    return f"{text} ILIKE {pattern} ESCAPE '!'"


@compiles(MayContain, "postgresql")
def _may_contain(element: MayContain, compiler: Any, **options: Any) -> str:
    column, part = (compiler.process(clause, **options) for clause in element.clauses)
    return f"position({part}::bytea IN {column}) > 0"


@compiles(SameDocument, "postgresql")
def _same_document(element: SameDocument, compiler: Any, **options: Any) -> str:
    column, text = (compiler.process(clause, **options) for clause in element.clauses)
    return f"{column}::text = {text}"


@lru_cache(maxsize=512)
def list_statement(shape: Shape) -> AnySelect:
    """The statement of a list that is not a page from ranges of an index.

    Before version 17 PostgreSQL scans an index once for every combination of two lists of values.
    So if there are lists of kinds and of statuses, the statuses become OR conditions on the rows
    that the kinds match.
    """
    conditions = shape.conditions()
    lists = {where.column: i for i, where in enumerate(shape.wheres) if where.parameters > 1}
    if {"Kind", "Status"} <= lists.keys():
        number = lists["Status"]
        column = shape.table.c.Status
        conditions[number] = or_(*(column == value for value in shape.parameters(number)))
    return shape.documents(*conditions)
