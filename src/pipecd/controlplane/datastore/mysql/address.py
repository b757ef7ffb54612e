# SPDX-License-Identifier: Apache-2.0
"""Where the server is and who we are there, from the settings that upstream takes.

The grammar is that of the data source names of Go's MySQL driver:
`[user[:password]@][network[(address)]]/database[?key=value&…]`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from urllib.parse import parse_qsl, unquote

from pipecd.config.controlplane import DatastoreConfig
from pipecd.config.units import Duration
from pipecd.controlplane.datastore.engine.secret import read_secret
from pipecd.model.errors import UserMistake

PORT = 3306
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0

_NETWORK = re.compile(r"(?P<network>[a-z0-9]*)(?:\((?P<address>.*)\))?")


class Tls(Enum):
    """How much of TLS is wanted, by the words of Go's driver."""

    OFF = "false"
    ON = "true"
    UNVERIFIED = "skip-verify"
    PREFERRED = "preferred"


@dataclass(frozen=True)
class MySqlAddress:
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
        """What may be told of it."""
        return f"{self.database} on {self.socket or f'{self.host}:{self.port}'}"


def mysql_address(config: DatastoreConfig) -> MySqlAddress:
    """The address of a configuration in any of the forms that upstream takes."""
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


def _address(server: str, database: str, parameters: str) -> MySqlAddress:
    if not database:
        raise _malformed("it names no database")
    who, _, place = server.rpartition("@")
    user, _, password = who.partition(":")
    host, port, socket = _place(place)
    given = dict(parse_qsl(parameters, keep_blank_values=True))
    return MySqlAddress(
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
    known = {"0": Tls.OFF, "1": Tls.ON} | {tls.value: tls for tls in Tls}
    try:
        return known[word.lower()]
    except KeyError as e:
        raise _malformed(f"tls={word} is not one of {', '.join(known)}") from e


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
