# SPDX-License-Identifier: Apache-2.0
"""A connection to MySQL or MariaDB by the PyMySQL driver."""

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import pymysql
from pymysql.constants import CLIENT

from pipecd.controlplane.datastore.database import Row
from pipecd.controlplane.datastore.engine.link import Arguments, Begin, Lost, unreachable
from pipecd.controlplane.datastore.mysql.address import MySqlAddress, Tls
from pipecd.controlplane.datastore.mysql.errors import while_connecting, while_running

T = TypeVar("T")

# Under this level a row read for update locks nothing but itself, not the gaps around it.
LEVEL = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
LOCK_SECONDS = 5
# Words in double quotes are texts, a backslash escapes, and what does not fit is refused.
MODE = "STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,ERROR_FOR_DIVISION_BY_ZERO"


class MySqlLink:
    """One connection; statements outside of a transaction commit by themselves."""

    def __init__(self, connection: "pymysql.Connection[Any]") -> None:
        self._connection = connection

    def rows(self, text: str, arguments: Arguments) -> Sequence[Row]:
        def ask(cursor: Any) -> Sequence[Row]:
            cursor.execute(text, arguments)
            return list(cursor.fetchall())

        return self._on_cursor(ask)

    def run(self, text: str, arguments: Arguments) -> int:
        return self._on_cursor(lambda cursor: cursor.execute(text, arguments))

    def run_many(self, text: str, arguments: Sequence[Arguments]) -> None:
        self._on_cursor(lambda cursor: cursor.executemany(text, arguments))

    def begin(self, what: Begin) -> None:
        match what:
            case Begin.WRITE:
                self.statement("START TRANSACTION")
            case Begin.SNAPSHOT:
                self.statement("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                self.statement("START TRANSACTION READ ONLY")

    def commit(self) -> None:
        self._told(self._connection.commit)

    def roll_back(self) -> None:
        self._told(self._connection.rollback)

    def statement(self, text: str) -> None:
        """Runs a statement as it stands, without parameters or an answer."""
        self._on_cursor(lambda cursor: cursor.execute(text))

    def close(self) -> None:
        with suppress(Exception):
            self._connection.close()

    def abort(self) -> None:
        # The other thread holds the socket; shutting it down is what wakes it.
        with suppress(Exception):
            cast("Any", self._connection)._sock.shutdown(socket.SHUT_RDWR)

    def _on_cursor(self, work: Callable[[Any], T]) -> T:
        def on_cursor() -> T:
            with self._connection.cursor() as cursor:
                return work(cursor)

        return self._told(on_cursor)

    def _told(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except (pymysql.Error, OSError, AttributeError) as e:
            told = while_running(e)
            if told is e:
                raise
            raise told from e


def connect(address: MySqlAddress) -> MySqlLink:
    """A connection that behaves the same whatever the defaults of its server are."""
    try:
        connection = pymysql.connect(
            host=address.host or None,
            port=address.port,
            unix_socket=address.socket or None,
            user=address.user,
            password=address.password.encode(),
            database=address.database,
            charset="utf8mb4",
            sql_mode=MODE,
            autocommit=True,
            # An update that changes nothing has found its row all the same.
            client_flag=CLIENT.FOUND_ROWS,
            connect_timeout=address.connect_seconds,
            read_timeout=address.answer_seconds,
            write_timeout=address.answer_seconds,
            program_name="pipecd",
            **_tls(address),
        )
        with connection.cursor() as cursor:
            cursor.execute(LEVEL)
    except (pymysql.Error, OSError) as e:
        raise while_connecting(e, address.name) from e
    link = MySqlLink(connection)
    try:
        # Servers that only speak the dialect do not have this variable, or do not wait for locks.
        with suppress(pymysql.Error):
            link.statement(f"SET SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}")
    except Lost as e:
        link.close()
        raise unreachable(address.name, str(e)) from e
    return link


def _tls(address: MySqlAddress) -> dict[str, Any]:
    match address.tls:
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
            # The driver does so by itself when nothing is said.
            return {}
