# SPDX-License-Identifier: Apache-2.0
"""MariaDB, Dolt, PostgreSQL and Redis on loopback, each with its data in a directory of its own."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, LiteralString, cast

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from servers.programs import built_program, find
from servers.server import Server, run


class MariaDb(Server):
    """MariaDB with a user root without a password."""

    user = "mysql"

    def find_program(self) -> str:
        return find("mariadbd")

    def prepare(self) -> None:
        install = find("mariadb-install-db")
        user = ["--user=mysql"] if os.getuid() == 0 else []
        run(
            install,
            "--no-defaults",
            *user,
            f"--tmpdir={self._temporary_directory()}",
            f"--datadir={self.data}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )

    def _temporary_directory(self) -> Path:
        """A server that starts removes the temporary tables of others from a shared one."""
        path = self.directory / "temporary"
        path.mkdir(exist_ok=True)
        path.chmod(0o777)
        return path

    def command(self) -> Sequence[str]:
        return [
            self.program,
            "--no-defaults",
            f"--datadir={self.data}",
            f"--tmpdir={self._temporary_directory()}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.directory}/s.sock",
            "--skip-log-bin",
            "--skip-name-resolve",
            # What is written survives the end of the process; a test cuts no power.
            "--innodb-flush-log-at-trx-commit=2",
            "--innodb-buffer-pool-size=32M",
        ]

    def is_up(self) -> bool:
        import pymysql

        with suppress(pymysql.Error, OSError):
            pymysql.connect(host="127.0.0.1", port=self.port, user="root").close()
            return True
        return False


class Dolt(Server):
    """Dolt, which speaks the dialect of MySQL 8, with a user root without a password."""

    def find_program(self) -> str:
        return built_program("dolt")

    def prepare(self) -> None:
        super().prepare()
        for key, value in {
            "user.name": "t",
            "user.email": "t@t",
            "metrics.disabled": "true",
        }.items():
            run(*self.at_home("config", "--global", "--add", key, value))

    def command(self) -> Sequence[str]:
        listen = ("-H", "127.0.0.1", "-P", str(self.port))
        return self.at_home("sql-server", *listen, "--data-dir", str(self.data))

    def at_home(self, *arguments: str) -> Sequence[str]:
        return ["env", f"HOME={self.directory}", self.program, *arguments]

    def is_up(self) -> bool:
        return self.answers()


class Postgres(Server):
    """PostgreSQL with a user postgres without a password."""

    user = "postgres"

    def find_program(self) -> str:
        return find("postgres", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin"))))

    def prepare(self) -> None:
        initdb = str(Path(self.program).resolve().with_name("initdb"))
        run(
            *self.as_unprivileged_user(
                [initdb, "-D", str(self.data), "-A", "trust", "-N", "-E", "UTF8", "-U", "postgres"]
            )
        )

    def command(self) -> Sequence[str]:
        settings = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "shared_buffers": "32MB",
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [self.program, "-D", str(self.data), *options]

    def start(self) -> None:
        # Left behind by a server that was killed.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        super().start()

    def is_up(self) -> bool:
        import psycopg

        with suppress(psycopg.Error):
            psycopg.connect(self.url("postgres")).close()
            return True
        return False

    def url(self, database: str) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"


class Redis(Server):
    """Redis that remembers nothing after its end."""

    def find_program(self) -> str:
        return find("redis-server")

    def command(self) -> Sequence[str]:
        return [
            self.program,
            *("--port", str(self.port)),
            *("--bind", "127.0.0.1"),
            *("--save", "", "--appendonly", "no"),
            *("--dir", str(self.directory)),
        ]

    def is_up(self) -> bool:
        return self.answers()


@contextmanager
def sql(server: MariaDb | Postgres, database: str = "pipecd") -> Iterator[Callable[..., list[Any]]]:
    """Runs SQL on its own connection as an administrator."""
    if isinstance(server, Postgres):
        import psycopg

        with psycopg.connect(server.url(database), autocommit=True) as connection:

            def run(text: str) -> list[Any]:
                cursor = connection.execute(cast("LiteralString", text))
                return cursor.fetchall() if cursor.description else []

            yield run
    else:
        import pymysql

        address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "root"}
        with pymysql.connect(**address, database=database, autocommit=True) as connection:

            def run(text: str) -> list[Any]:
                cursor = connection.cursor()
                cursor.execute(text)
                return list(cursor.fetchall())

            yield run


@contextmanager
def empty_database(server: MariaDb | Postgres, name: str) -> Iterator[DatastoreSpec]:
    """A database without tables."""
    administration = "postgres" if isinstance(server, Postgres) else "mysql"
    with sql(server, administration) as run:
        run(f"CREATE DATABASE {name}")
    try:
        yield spec_of(server, name)
    finally:
        with sql(server, administration) as run:
            run(f"DROP DATABASE {name}")


def spec_of(server: MariaDb | Postgres, name: str, user: str = "") -> DatastoreSpec:
    if isinstance(server, Postgres):
        url = server.url(name).replace("postgres@", f"{user or 'postgres'}@")
        return DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=url))
    url = f"{user or 'root'}@tcp(127.0.0.1:{server.port})/{name}"
    return DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))
