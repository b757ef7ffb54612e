# SPDX-License-Identifier: Apache-2.0
"""The three layouts of a control plane that faults are tried on, and the servers that each one needs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psycopg
import pymysql

from pipecd.config.controlplane import (
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from servers.databases import MariaDb, Postgres, Redis
from servers.objects import GcsOnDisk
from servers.server import Server

BUCKET = "faults"
# MariaDB lets a user with all privileges write although it is read-only.
MYSQL_USER = "pipecd"


class Layout(StrEnum):
    """How the control plane is installed."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"


@dataclass(frozen=True)
class Stores:
    """The settings of a control plane, and the servers behind them by what they are for."""

    datastore: DatastoreSpec
    filestore: FilestoreSpec
    replicas: int
    cache_address: str = ""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    servers: dict[str, Server] = field(default_factory=dict[str, Server])

    def set_read_only(self, is_read_only: bool) -> None:
        """Makes the database server refuse writes, or allows them again."""
        match self.servers.get("database"):
            case Postgres() as postgres:
                with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
                    # This connection too is read-only by the setting.
                    connection.execute("SET default_transaction_read_only = off")
                    value = "on" if is_read_only else "off"
                    connection.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
                    connection.execute("SELECT pg_reload_conf()")
            case MariaDb() as mariadb:
                with pymysql.connect(
                    host="127.0.0.1", port=mariadb.port, user="root"
                ) as connection:
                    connection.cursor().execute(f"SET GLOBAL read_only = {int(is_read_only)}")
            case _:
                pass


@contextmanager
def open_stores(layout: Layout, directory: Path) -> Iterator[Stores]:
    """Starts the servers of a layout, which end with the block."""
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    local = FilestoreSpec(type="LOCAL", config=FilestoreConfig(path=str(data / "files")))
    with ExitStack() as stack:

        def started(server: Server) -> Server:
            stack.callback(server.close)
            return server

        match layout:
            case Layout.SQLITE:
                config = DatastoreConfig(path=str(data / "pipecd.db"))
                yield Stores(DatastoreSpec(type="SQLITE", config=config), local, replicas=1)
            case Layout.POSTGRESQL:
                postgres, redis, bucket = Postgres(), Redis(), GcsOnDisk()
                servers = {"database": postgres, "cache": redis, "bucket": bucket}
                for server in servers.values():
                    started(server)
                with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
                    connection.execute("CREATE DATABASE faults")
                bucket.create(BUCKET)
                yield Stores(
                    DatastoreSpec(
                        type="POSTGRESQL", config=DatastoreConfig(url=postgres.url("faults"))
                    ),
                    FilestoreSpec(type="GCS", config=FilestoreConfig(bucket=BUCKET)),
                    replicas=2,
                    cache_address=f"127.0.0.1:{redis.port}",
                    environment={"STORAGE_EMULATOR_HOST": bucket.url},
                    servers=servers,
                )
            case Layout.MYSQL:
                mariadb, redis = MariaDb(), Redis()
                servers: dict[str, Server] = {"database": mariadb, "cache": redis}
                for server in servers.values():
                    started(server)
                with pymysql.connect(
                    host="127.0.0.1", port=mariadb.port, user="root"
                ) as connection:
                    cursor = connection.cursor()
                    cursor.execute("CREATE DATABASE faults")
                    cursor.execute(f"CREATE USER {MYSQL_USER}@'127.0.0.1'")
                    cursor.execute(f"GRANT ALL ON faults.* TO {MYSQL_USER}@'127.0.0.1'")
                url = f"{MYSQL_USER}@tcp(127.0.0.1:{mariadb.port})/faults"
                yield Stores(
                    DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url)),
                    local,
                    replicas=2,
                    cache_address=f"127.0.0.1:{redis.port}",
                    servers=servers,
                )
