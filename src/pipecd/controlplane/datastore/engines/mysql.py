# SPDX-License-Identifier: Apache-2.0
"""The datastore on MySQL or MariaDB, laid out as upstream has it."""

import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import Any, cast
from urllib.parse import parse_qsl, unquote

import pymysql
from pymysql import err
from pymysql.constants import CLIENT
from sqlalchemy import Dialect

from pipecd.config.controlplane import DatastoreConfig
from pipecd.config.units import Duration
from pipecd.controlplane.datastore.database import (
    TIMEOUT,
    Collision,
    ConnectionLost,
    Database,
    Duplicate,
    Transaction,
    ensure_version,
)
from pipecd.controlplane.datastore.engines import server
from pipecd.controlplane.datastore.engines.mysql_labels import (
    LABELLED_TABLES,
    LabelIndex,
    fill_label_index,
)
from pipecd.controlplane.datastore.engines.mysql_sql import list_statement, mysql_dialect
from pipecd.controlplane.datastore.expressions import AnySelect
from pipecd.controlplane.datastore.labelled_applications import fill_labelled_applications
from pipecd.controlplane.datastore.query import Shape
from pipecd.controlplane.datastore.schema import (
    METADATA,
    ExistingTables,
    missing_definitions,
    modify_column,
)
from pipecd.model.errors import PipecdError, Unavailable, UserMistake
from pipecd.observe.operations import OperationObserver

PORT = 3306
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0

_NETWORK = re.compile(r"(?P<network>[a-z0-9]*)(?:\((?P<address>.*)\))?")

# At this level SELECT … FOR UPDATE locks only the row, not the gaps around it.
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
LOCK_SECONDS = 5
# Double quotes enclose strings, a backslash escapes, and values that do not fit are refused.
SQL_MODE = "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO"

SCHEMA_LOCK_SECONDS = 60
SCHEMA_SECONDS = 3600.0
# Indexes of earlier upstream versions, which upstream drops as well.
OBSOLETE_INDEXES = {"application": ("application_piped_id", "application_deleted_created_at_asc")}
COLUMNS = "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s"
INDEXES = "SELECT TABLE_NAME, INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s"
# Columns that early upstream versions computed without a default, so that 0 was refused as null.
COLUMNS_WITHOUT_DEFAULT = (
    "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s "
    "AND (TABLE_NAME, COLUMN_NAME) IN (('Deployment', 'DeploymentChainId'), ('Event', 'Status')) "
    "AND GENERATION_EXPRESSION NOT LIKE '%%ifnull%%'"
)
TEXT_COLLATION = (
    "SELECT COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s "
    "AND TABLE_NAME = 'Deployment' AND COLUMN_NAME = 'ApplicationId'"
)
# The table, column or index exists already, or the index to drop does not.
ALREADY_DONE = frozenset({1050, 1060, 1061, 1091})

# A deadlock, a lock timeout, a row that changed since it was read.
COLLISIONS = frozenset({1213, 1205, 1020, 1637})
# The server is stopping, has killed the connection, or has become a read-only replica; all numbers
# of the client library are errors of the connection.
SERVER_GONE = frozenset(
    {1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1290, 1836, 1927, 3032, 4031}
)
CLIENT_ERRORS = frozenset(range(2000, 3000))
OUT_OF_SPACE = frozenset({1021, 1114, 1040, 1203, 1226})
DENIED = frozenset({1044, 1045, 1698, 1049, 1142, 1227, 3118})
# Too long, out of range, not in the character set, null, packet too large, not JSON.
CANNOT_HOLD = frozenset({1406, 1264, 1366, 1048, 1153, 3140, 3141, 4025})
TIMED_OUT = frozenset({3024, 1969})

ERRORS: tuple[tuple[frozenset[int], Callable[[str], Exception]], ...] = (
    (frozenset({1062}), Duplicate),
    (COLLISIONS, Collision),
    (SERVER_GONE | CLIENT_ERRORS, ConnectionLost),
    (OUT_OF_SPACE, server.out_of_space),
    (DENIED, server.not_permitted),
    (CANNOT_HOLD, server.cannot_hold),
    (TIMED_OUT, server.statement_timeout),
)


@asynccontextmanager
async def open_mysql(
    address: "MysqlAddress",
    *,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of each request, not of this function.
    observers: Sequence[OperationObserver] = (),
) -> AsyncIterator["MysqlDatabase"]:
    """Connects, creates missing tables and indexes, and closes all connections at the end."""
    dialect = await server.wait_until_ready(lambda: prepare(address))
    database = MysqlDatabase(address, dialect, timeout=timeout, observers=observers)
    try:
        yield database
    finally:
        await database.close()


class MysqlDatabase(Database):
    """A MySQL or MariaDB database, which upstream's control plane may use as well."""

    BEGIN_WRITE = ("START TRANSACTION",)
    BEGIN_SNAPSHOT = (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION READ ONLY",
    )

    def __init__(
        self,
        address: "MysqlAddress",
        dialect: Dialect,
        *,
        timeout: float = TIMEOUT,
        observers: Sequence[OperationObserver] = (),
    ) -> None:
        super().__init__(
            server.create_pool(partial(connect, address), server.ConnectBackoff()),
            dialect,
            readers=server.READERS,
            writers=server.WRITERS,
            timeout=timeout,
            observers=observers,
        )
        self._labels = LabelIndex(self)

    def list_statement(self, shape: Shape) -> AnySelect:
        return list_statement(shape)

    async def refresh_labels(self, table: str, project: str) -> None:
        await self._labels.refresh(table, project)

    def explain(self, error: Exception) -> Exception:
        return explain(error)

    def abort(self, driver_connection: Any) -> None:
        # Shutting down the socket wakes the thread that waits for it.
        driver_connection._sock.shutdown(socket.SHUT_RDWR)


def connect(address: "MysqlAddress") -> "pymysql.Connection[Any]":
    """Opens a connection with settings that do not depend on the defaults of the server."""
    try:
        connection = pymysql.connect(
            host=address.host or None,
            port=address.port,
            unix_socket=address.socket or None,
            user=address.user,
            password=address.password.encode(),
            database=address.database,
            charset="utf8mb4",
            sql_mode=SQL_MODE,
            autocommit=True,
            # The row count of an update includes rows that it did not change.
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=address.connect_seconds,
            read_timeout=address.answer_seconds,
            write_timeout=address.answer_seconds,
            program_name="pipecd",
            **_tls_settings(address.tls),
        )
        with connection.cursor() as cursor:
            cursor.execute(ISOLATION)
            try:
                cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}")
            except pymysql.Error as e:
                # Some compatible servers do not have this variable.
                if isinstance(explain(e), ConnectionLost):
                    connection.close()
                    raise
    except (pymysql.Error, OSError) as e:
        raise explain_connect(e, address.name) from e
    return connection


def prepare(address: "MysqlAddress") -> Dialect:
    """Creates missing tables and indexes; returns the dialect of the server."""
    with closing(connect(address)) as connection:
        ((version,),) = Transaction(connection, mysql_dialect(), explain).query_sql(
            "SELECT VERSION()"
        )
        dialect = mysql_dialect(is_mariadb="mariadb" in str(version).lower())
        transaction = Transaction(connection, dialect, explain)
        with _schema_lock(transaction, address.database):
            # Creating the indexes of a large table takes longer than any other statement.
            cast("Any", connection)._read_timeout = SCHEMA_SECONDS
            _ensure_tables(transaction, address.database, dialect)
            ensure_version(transaction, address.name)
            for table in LABELLED_TABLES:
                fill_label_index(transaction, table)
            fill_labelled_applications(transaction)
            rows = transaction.query_sql(TEXT_COLLATION, (address.database,))
            dialect.text_collation = str(rows[0][0])
    return dialect


@contextmanager
def _schema_lock(transaction: Transaction, database: str) -> Iterator[None]:
    """Holds the lock under which one process at a time creates tables."""
    # Locks are named per server, not per database, with at most 64 characters.
    name = f"pipecd.schema.{database}"[:64]
    locked = transaction.query_sql("SELECT GET_LOCK(%s, %s)", (name, SCHEMA_LOCK_SECONDS))
    if locked[0][0] != 1:
        raise Unavailable(
            f"another process has held the schema lock for {SCHEMA_LOCK_SECONDS} s",
            hint="wait until it has created its tables and indexes, or end it",
        )
    try:
        yield
    finally:
        transaction.query_sql("SELECT RELEASE_LOCK(%s)", (name,))


def _ensure_tables(transaction: Transaction, database: str, dialect: Dialect) -> None:
    existing = ExistingTables.of(
        transaction.query_sql(COLUMNS, (database,)), transaction.query_sql(INDEXES, (database,))
    )
    outdated = transaction.query_sql(COLUMNS_WITHOUT_DEFAULT, (database,))
    for statement in (
        *missing_definitions(existing, dialect),
        *(modify_column(cast("Any", METADATA.tables[t].c[c]), dialect) for t, c in outdated),
        *(
            f"DROP INDEX {index} ON Application"
            for table, indexes in OBSOLETE_INDEXES.items()
            for index in indexes
            if index in existing.indexes.get(table, frozenset())
        ),
    ):
        try:
            transaction.run_sql(statement)
        except pymysql.Error as e:
            # Upstream may create the same at the same time, without a lock.
            if _number(e) not in ALREADY_DONE and "duplicate column" not in str(e).lower():
                raise


def explain(error: Exception) -> Exception:
    """Translates an error of the driver; returns an unexpected one as it is."""
    # The driver raises errors of several types when a connection is closed during a request.
    if isinstance(error, OSError | err.InterfaceError | err.InternalError | AttributeError):
        return ConnectionLost(_text(error))
    number = _number(error)
    matches = (create(_text(error)) for numbers, create in ERRORS if number in numbers)
    return next(matches, error)


def explain_connect(error: Exception, name: str) -> PipecdError:
    create = server.access_denied if _number(error) in DENIED else server.unreachable
    return create(name, _text(error))


def _number(error: BaseException) -> int:
    first: object = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def _text(error: BaseException) -> str:
    """The message of an error without its number."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)


class Tls(Enum):
    """The values of the parameter `tls` of Go's driver."""

    OFF = "false"
    ON = "true"
    UNVERIFIED = "skip-verify"
    PREFERRED = "preferred"


@dataclass(frozen=True)
class MysqlAddress:
    """A database on a server and its credentials; `socket` replaces host and port."""

    host: str
    port: int
    socket: str
    user: str
    password: str = field(repr=False)
    database: str
    tls: Tls = Tls.OFF
    connect_seconds: float = CONNECT_SECONDS
    answer_seconds: float = ANSWER_SECONDS

    @property
    def name(self) -> str:
        """The database and its server, without credentials."""
        return f"{self.database} on {self.socket or f'{self.host}:{self.port}'}"


def mysql_address(config: DatastoreConfig) -> MysqlAddress:
    """The address in a configuration, in any of the forms that upstream accepts.

    The grammar is that of the data source names of Go's MySQL driver:
    `[user[:password]@][network[(address)]]/database[?key=value&…]`.
    """
    if not config.database:
        authority, slash, rest = config.url.rpartition("/")
        if not slash:
            raise _malformed("it names no database")
        database, _, parameters = rest.partition("?")
        return _address(authority, unquote(database), parameters)
    # The path follows the last bracket or at sign; a password may contain any character.
    start = max(config.url.rfind(")"), config.url.rfind("@")) + 1
    rest, _, parameters = config.url[start:].partition("?")
    # `database` replaces a database in the URL.
    authority = config.url[:start] + rest.partition("/")[0]
    if not (config.username_file and config.password_file):
        return _address(authority, config.database, parameters)
    user = server.read_secret(config.username_file, "usernameFile")
    password = server.read_secret(config.password_file, "passwordFile")
    # Upstream expects only host and port in the URL then; a network is accepted as well.
    server_address = authority.rpartition("@")[2]
    if "(" not in server_address:
        server_address = f"tcp({server_address})"
    address = _address(server_address, config.database, parameters)
    return replace(address, user=user, password=password)


def _address(authority: str, database: str, parameters: str) -> MysqlAddress:
    if not database:
        raise _malformed("it names no database")
    credentials, _, server_address = authority.rpartition("@")
    user, _, password = credentials.partition(":")
    host, port, socket = _parse_server_address(server_address)
    options = dict(parse_qsl(parameters, keep_blank_values=True))
    tls_modes = {"0": Tls.OFF, "1": Tls.ON} | {mode.value: mode for mode in Tls}
    tls = options.get("tls", "false")
    if tls.lower() not in tls_modes:
        raise _malformed(f"tls={tls} is not one of {', '.join(tls_modes)}")
    return MysqlAddress(
        host,
        port,
        socket,
        user,
        password,
        database,
        tls_modes[tls.lower()],
        _seconds(options, "timeout", CONNECT_SECONDS),
        _seconds(options, "readTimeout", ANSWER_SECONDS),
    )


def _parse_server_address(text: str) -> tuple[str, int, str]:
    """Returns host, port and socket; either the host or the socket is empty."""
    matched = _NETWORK.fullmatch(text)
    if matched is None:
        raise _malformed(f"{text!r} is not a network and address such as tcp(host:3306)")
    network, address = matched["network"] or "tcp", matched["address"] or ""
    if network == "unix":
        return "", 0, address or "/tmp/mysql.sock"  # noqa: S108 - the default of Go's driver.
    if network not in ("tcp", "tcp4", "tcp6"):
        raise _malformed(f"the network {network!r} is unknown, use tcp or unix")
    # An IPv6 address contains colons, but is in brackets.
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, ""
    if port and not port.isdigit():
        raise _malformed(f"{port!r} is not a port")
    return host.strip("[]") or "127.0.0.1", int(port or PORT), ""


def _seconds(options: Mapping[str, str], key: str, default: float) -> float:
    try:
        return float(Duration.parse(options[key])) if options.get(key) else default
    except ValueError as e:
        raise _malformed(f"{key}={options[key]} is not a duration such as 10s") from e


def _malformed(reason: str) -> UserMistake:
    # The URL itself is not shown, because it may contain a password.
    return UserMistake(
        f"the url of the datastore is not understood: {reason}",
        hint="write it as user:password@tcp(host:3306)/database",
    )


def _tls_settings(tls: Tls) -> dict[str, Any]:
    match tls:
        case Tls.OFF:
            return {"ssl_disabled": True}
        case Tls.ON:
            return {"ssl": ssl.create_default_context()}
        case Tls.UNVERIFIED:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return {"ssl": context}
        case Tls.PREFERRED:
            # The driver's default.
            return {}
