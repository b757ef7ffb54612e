# SPDX-License-Identifier: Apache-2.0
"""Where the server is and who we are there, as one text for libpq."""

from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import ProgrammingError

from pipecd.config.controlplane import DatastoreConfig
from pipecd.controlplane.datastore.engine.secret import read_secret
from pipecd.model.errors import UserMistake

SCHEMES = ("postgres://", "postgresql://")
# A server that is gone without a word is noticed in this time.
SILENCE_SECONDS = 30
DEFAULTS = {
    "connect_timeout": 5,
    "keepalives_idle": SILENCE_SECONDS,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": SILENCE_SECONDS * 1000,
    "application_name": "pipecd",
}


def postgres_conninfo(config: DatastoreConfig) -> str:
    """The settings of a connection: a URL, `host:port` or `key=value` pairs, and the files."""
    try:
        given = conninfo_to_dict(_as_libpq_reads_it(config.url))
        if config.database:
            given["dbname"] = config.database
        if config.username_file:
            given["user"] = read_secret(config.username_file, "usernameFile")
        if config.password_file:
            given["password"] = read_secret(config.password_file, "passwordFile")
        return make_conninfo("", **{**DEFAULTS, **given, "client_encoding": "UTF8"})
    except ProgrammingError as e:
        # The words of libpq may repeat the address, which may hold a password.
        raise UserMistake(
            "the url of the datastore is not understood",
            hint="write it as postgres://user:password@host:5432/database",
        ) from e


def shown(conninfo: str) -> str:
    """What may be told of it."""
    given = conninfo_to_dict(conninfo)
    host, port = given.get("host", "localhost"), given.get("port", "5432")
    return f"{given.get('dbname', '')} on {host}:{port}"


def _as_libpq_reads_it(url: str) -> str:
    is_plain = "=" not in url.partition("?")[0] and not url.startswith(SCHEMES)
    return f"postgres://{url}" if is_plain else url
