# SPDX-License-Identifier: Apache-2.0
"""The datastore on MySQL or MariaDB, laid out as upstream has it."""

import re
import socket
import ssl
import time
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
    Compiler,
    ConnectionLost,
    Database,
    Duplicate,
    Transaction,
    ensure_version,
)
from pipecd.controlplane.datastore.engines.mysql_labels import (
    CLOCK_SKEW_SECONDS,
    LABELLED_TABLES,
    LabelIndex,
    index_documents,
    next_documents,
    read_watermark,
    watermark_name,
    write_watermark,
)
from pipecd.controlplane.datastore.engines.mysql_sql import (
    choose_start,
    count_statement,
    list_statement,
    mysql_dialect,
)
from pipecd.controlplane.datastore.engines.server import (
    READERS,
    WRITERS,
    ConnectBackoff,
    access_denied,
    cannot_hold,
    create_pool,
    not_permitted,
    out_of_space,
    read_secret,
    statement_timeout,
    unreachable,
    wait_until_ready,
)
from pipecd.controlplane.datastore.expressions import Row
from pipecd.controlplane.datastore.query import Selection
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

# Under this level a row read for update locks nothing but itself, not the gaps around it.
ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
LOCK_SECONDS = 5
# Words in double quotes are texts, a backslash escapes, and what does not fit is refused.
SQL_MODE = "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO"

SCHEMA_LOCK_SECONDS = 60
# Indexes that upstream once had and drops where it finds them.
OBSOLETE_INDEXES = {"application": ("application_piped_id", "application_deleted_created_at_asc")}
COLUMNS = "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s"
INDEXES = "SELECT TABLE_NAME, INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s"
# Columns that an early upstream computed without a default, so that a zero was refused as null.
COLUMNS_WITHOUT_DEFAULT = (
    "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s "
    "AND (TABLE_NAME, COLUMN_NAME) IN (('Deployment', 'DeploymentChainId'), ('Event', 'Status')) "
    "AND GENERATION_EXPRESSION NOT LIKE '%%ifnull%%'"
)
# A table, a column, an index that exists already, one to drop that does not.
DONE_BY_ANOTHER = frozenset({1050, 1060, 1061, 1091})

# A deadlock, a lock timeout, a row that changed since it was read.
COLLISIONS = frozenset({1213, 1205, 1020, 1637})
# The server is stopping, has killed the connection, or has become a replica that may not write;
# numbers of the client library are all about the connection.
SERVER_GONE = frozenset(
    {1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1290, 1836, 1927, 3032, 4031}
)
CLIENT_ERRORS = frozenset(range(2000, 3000))
OUT_OF_SPACE = frozenset({1021, 1114, 1040, 1203, 1226})
DENIED = frozenset({1044, 1045, 1698, 1049, 1142, 1227, 3118})
# Too long, out of range, not in the character set, null, too large a packet, no JSON.
CANNOT_HOLD = frozenset({1406, 1264, 1366, 1048, 1153, 3140, 3141, 4025})
TIMED_OUT = frozenset({3024, 1969})

ERRORS: tuple[tuple[frozenset[int], Callable[[str], Exception]], ...] = (
    (frozenset({1062}), Duplicate),
    (COLLISIONS, Collision),
    (SERVER_GONE | CLIENT_ERRORS, ConnectionLost),
    (OUT_OF_SPACE, out_of_space),
    (DENIED, not_permitted),
    (CANNOT_HOLD, cannot_hold),
    (TIMED_OUT, statement_timeout),
)


@asynccontextmanager
async def open_mysql(
    address: "MysqlAddress",
    *,
    timeout: float = TIMEOUT,  # noqa: ASYNC109 - of each request, not of this function.
    observers: Sequence[OperationObserver] = (),
) -> AsyncIterator["MysqlDatabase"]:
    """Connects, adds the tables that are missing, and closes everything at the end."""
    dialect = await wait_until_ready(lambda: prepare(address))
    database = MysqlDatabase(address, dialect, timeout=timeout, observers=observers)
    try:
        yield database
    finally:
        await database.close()


class MysqlDatabase(Database):
    """A MySQL or MariaDB database, which upstream may be using too."""

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
            create_pool(partial(connect, address), ConnectBackoff()),
            dialect,
            readers=READERS,
            writers=WRITERS,
            timeout=timeout,
            observers=observers,
        )
        self._labels = LabelIndex(self)

    async def select(self, selection: Selection) -> Sequence[Row]:
        shape, values, start = selection.shape, selection.values, None
        if (statement := count_statement(shape)) is not None:
            (counts,) = await self.lookup(statement, values)
            start = choose_start(shape, counts)
        return await self.query(list_statement(shape, start), values)

    async def refresh_labels(self, table: str, project: str) -> None:
        await self._labels.refresh(table, project)

    def explain(self, error: Exception) -> Exception:
        return explain(error)

    def abort(self, driver_connection: Any) -> None:
        # The other thread waits for the socket; shutting it down wakes it.
        driver_connection._sock.shutdown(socket.SHUT_RDWR)


def connect(address: "MysqlAddress") -> "pymysql.Connection[Any]":
    """Opens a connection that behaves the same whatever the defaults of its server are."""
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
            # An update that changes nothing has matched its row all the same.
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=address.connect_seconds,
            read_timeout=address.answer_seconds,
            write_timeout=address.answer_seconds,
            program_name="pipecd",
            **_tls_settings(address.tls),
        )
        with connection.cursor() as cursor:
            cursor.execute(ISOLATION)
        _limit_lock_wait(connection)
    except (pymysql.Error, OSError) as e:
        raise explain_connect(e, address.name) from e
    return connection


def _limit_lock_wait(connection: "pymysql.Connection[Any]") -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}")
    except pymysql.Error as e:
        # Servers that only speak the dialect do not have this variable, or do not wait for locks.
        if isinstance(explain(e), ConnectionLost):
            connection.close()
            raise


def prepare(address: "MysqlAddress") -> Dialect:
    """Creates what is missing of the schema; returns the dialect of the server."""
    with closing(connect(address)) as connection:
        ((version,),) = Transaction(connection, Compiler(mysql_dialect()), explain).query_sql(
            "SELECT VERSION()"
        )
        dialect = mysql_dialect(is_mariadb="mariadb" in str(version).lower())
        transaction = Transaction(connection, Compiler(dialect), explain)
        with _schema_lock(transaction, address.database):
            _ensure_tables(transaction, address.database, dialect)
            ensure_version(transaction, address.name)
            for table in LABELLED_TABLES:
                _fill_label_index(transaction, table)
    return dialect


@contextmanager
def _schema_lock(transaction: Transaction, database: str) -> Iterator[None]:
    """Lets one process at a time prepare a database."""
    # The names of locks are shared by all databases of a server, and short.
    name = f"pipecd.schema.{database}"[:64]
    locked = transaction.query_sql("SELECT GET_LOCK(%s, %s)", (name, SCHEMA_LOCK_SECONDS))
    if locked[0][0] != 1:
        raise Unavailable(
            f"another process has been preparing the database for {SCHEMA_LOCK_SECONDS} s",
            hint="wait until it is done, or check why it takes so long",
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
            # Upstream may do the same at the same time, and takes no lock.
            if _number(e) not in DONE_BY_ANOTHER and "duplicate column" not in str(e).lower():
                raise


def _fill_label_index(transaction: Transaction, table: str) -> None:
    """Indexes a table once, in batches; what others write meanwhile is indexed later."""
    name = watermark_name(table)
    if read_watermark(transaction, name) is not None:
        return
    started_at = int(time.time())
    after = b""
    while ids := next_documents(transaction, table, after):
        transaction.run_sql("START TRANSACTION")
        index_documents(transaction, table, ids)
        transaction.run_sql("COMMIT")
        after = ids[-1]
    write_watermark(transaction, name, started_at - CLOCK_SKEW_SECONDS)


def explain(error: Exception) -> Exception:
    """Translates an error of the driver; one that is unexpected stays as it is."""
    # A connection that was closed during a request shows in several ways in the driver.
    if isinstance(error, OSError | err.InterfaceError | err.InternalError | AttributeError):
        return ConnectionLost(_text(error))
    number = _number(error)
    matches = (create(_text(error)) for numbers, create in ERRORS if number in numbers)
    return next(matches, error)


def explain_connect(error: Exception, name: str) -> PipecdError:
    create = access_denied if _number(error) in DENIED else unreachable
    return create(name, _text(error))


def _number(error: BaseException) -> int:
    first: object = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def _text(error: BaseException) -> str:
    """The message of the server without its number."""
    return str(error.args[1]) if len(error.args) > 1 else str(error)


class Tls(Enum):
    """The values of the parameter `tls` of Go's driver."""

    OFF = "false"
    ON = "true"
    UNVERIFIED = "skip-verify"
    PREFERRED = "preferred"


@dataclass(frozen=True)
class MysqlAddress:
    """One database on one server, and the credentials for it; a socket stands for host and port."""

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
    """The address of a configuration in any of the forms that upstream takes.

    The grammar is that of the data source names of Go's MySQL driver:
    `[user[:password]@][network[(address)]]/database[?key=value&…]`.
    """
    if not config.database:
        server, slash, rest = config.url.rpartition("/")
        if not slash:
            raise _malformed("it names no database")
        database, _, parameters = rest.partition("?")
        return _address(server, unquote(database), parameters)
    # What follows the server begins behind its brackets; a password may hold any character.
    start = max(config.url.rfind(")"), config.url.rfind("@")) + 1
    place, _, parameters = config.url[start:].partition("?")
    # A database that the address names already is replaced, not appended to.
    server = config.url[:start] + place.partition("/")[0]
    if not (config.username_file and config.password_file):
        return _address(server, config.database, parameters)
    user = read_secret(config.username_file, "usernameFile")
    password = read_secret(config.password_file, "passwordFile")
    # Upstream has only host and port in the address then; a whole one is understood too.
    place = server.rpartition("@")[2]
    address = _address(place if "(" in place else f"tcp({place})", config.database, parameters)
    return replace(address, user=user, password=password)


def _address(server: str, database: str, parameters: str) -> MysqlAddress:
    if not database:
        raise _malformed("it names no database")
    who, _, place = server.rpartition("@")
    user, _, password = who.partition(":")
    host, port, socket = _place(place)
    given = dict(parse_qsl(parameters, keep_blank_values=True))
    return MysqlAddress(
        host,
        port,
        socket,
        user,
        password,
        database,
        _tls(given.get("tls", "false")),
        _seconds(given, "timeout", CONNECT_SECONDS),
        _seconds(given, "readTimeout", ANSWER_SECONDS),
    )


def _place(place: str) -> tuple[str, int, str]:
    found = _NETWORK.fullmatch(place)
    if found is None:
        raise _malformed(f"{place!r} is no network and address such as tcp(host:3306)")
    network, address = found["network"] or "tcp", found["address"] or ""
    if network == "unix":
        return "", 0, address or "/tmp/mysql.sock"  # noqa: S108 - the default of Go's driver.
    if network not in ("tcp", "tcp4", "tcp6"):
        raise _malformed(f"the network {network!r} is unknown, use tcp or unix")
    # An address of version 6 has colons of its own, and brackets around them.
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, ""
    if port and not port.isdigit():
        raise _malformed(f"{port!r} is no port")
    return host.strip("[]") or "127.0.0.1", int(port or PORT), ""


def _tls(word: str) -> Tls:
    values = {"0": Tls.OFF, "1": Tls.ON} | {tls.value: tls for tls in Tls}
    try:
        return values[word.lower()]
    except KeyError as e:
        raise _malformed(f"tls={word} is not one of {', '.join(values)}") from e


def _seconds(given: Mapping[str, str], key: str, default: float) -> float:
    try:
        return float(Duration.parse(given[key])) if given.get(key) else default
    except ValueError as e:
        raise _malformed(f"{key}={given[key]} is no duration such as 10s") from e


def _malformed(why: str) -> UserMistake:
    # The address itself is not shown, because it may hold a password.
    return UserMistake(
        f"the url of the datastore is not understood: {why}",
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
