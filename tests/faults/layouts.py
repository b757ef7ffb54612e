# SPDX-License-Identifier: Apache-2.0
"""The three layouts of a control plane that faults are tried on, and the servers that each one needs.

Every server is reached through a proxy that can be cut, silenced and slowed down, and has its data on a
small disk of its own, which can be filled.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import psycopg
import pymysql

from faults.network import TcpProxy
from faults.stores_on_disk import (
    BucketOfStorage,
    BucketOnSmallDisk,
    MariaDbOfStorage,
    MariaDbOnSmallDisk,
    PostgresOnSmallDisk,
    promoted_replica,
    promoted_standby,
)
from pipecd.config.controlplane import (
    DatastoreConfig,
    DatastoreSpec,
    FilestoreConfig,
    FilestoreSpec,
)
from servers.databases import MariaDb, Postgres, Redis
from servers.server import Server

BUCKET = "faults"
# MariaDB lets a user with all privileges write although it is read-only.
MYSQL_USER = "pipecd"

S = TypeVar("S", bound=Server)


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
    """`database`, `cache` and `bucket`, if the layout has them."""
    links: dict[str, TcpProxy] = field(default_factory=dict[str, TcpProxy])
    """The network between the replicas and each server."""

    def set_read_only(self, name: str, is_read_only: bool) -> None:
        """Makes a server refuse writes, or allows them again."""
        match self.servers[name]:
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
            case Redis() as redis:
                with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as connection:
                    # Without replicas it then refuses every write.
                    command = f"CONFIG SET min-replicas-to-write {int(is_read_only)}\r\n"
                    connection.sendall(command.encode())
                    connection.recv(100)
            case BucketOnSmallDisk() as bucket if bucket.disk is not None:
                bucket.disk.set_read_only(is_read_only)
            case _:
                pass

    def fail_over(self, name: str) -> None:
        """Replaces a server by another one that has its data; what was committed is not lost by that."""
        match self.servers[name]:
            case Postgres() as primary:
                successor = promoted_standby(primary)
            case Redis() as primary:
                successor = promoted_replica(primary)
            case BucketOnSmallDisk() as primary:
                primary.stop()
                successor = BucketOfStorage(primary)
            case primary:
                assert isinstance(primary, MariaDb)
                primary.stop()
                successor = MariaDbOfStorage(primary)
        self.servers[name] = successor
        self.links[name].targets = [successor.port]
        primary.close()


@asynccontextmanager
async def open_stores(layout: Layout, directory: Path) -> AsyncGenerator[Stores, None]:
    """Starts the servers of a layout, which end with the block."""
    data = directory / "data"
    data.mkdir(parents=True, exist_ok=True)
    local = FilestoreSpec(type="LOCAL", config=FilestoreConfig(path=str(data / "files")))
    servers: dict[str, Server] = {}
    links: dict[str, TcpProxy] = {}
    async with AsyncExitStack() as stack:
        stack.callback(lambda: [server.close() for server in servers.values()])

        async def started(name: str, kind: type[S]) -> S:
            server = await asyncio.to_thread(kind)
            servers[name] = server
            links[name] = await stack.enter_async_context(TcpProxy([server.port]).serve())
            return server

        match layout:
            case Layout.SQLITE:
                config = DatastoreConfig(path=str(data / "pipecd.db"))
                yield Stores(DatastoreSpec(type="SQLITE", config=config), local, replicas=1)
            case Layout.POSTGRESQL:
                postgres = await started("database", PostgresOnSmallDisk)
                await started("cache", Redis)
                bucket = await started("bucket", BucketOnSmallDisk)
                with psycopg.connect(postgres.url("postgres"), autocommit=True) as connection:
                    connection.execute("CREATE DATABASE faults")
                bucket.create(BUCKET)
                url = f"postgres://postgres@127.0.0.1:{links['database'].port}/faults"
                yield Stores(
                    DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=url)),
                    FilestoreSpec(type="GCS", config=FilestoreConfig(bucket=BUCKET)),
                    replicas=2,
                    cache_address=f"127.0.0.1:{links['cache'].port}",
                    environment={
                        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{links['bucket'].port}"
                    },
                    servers=servers,
                    links=links,
                )
            case Layout.MYSQL:
                mariadb = await started("database", MariaDbOnSmallDisk)
                await started("cache", Redis)
                with pymysql.connect(
                    host="127.0.0.1", port=mariadb.port, user="root"
                ) as connection:
                    cursor = connection.cursor()
                    cursor.execute("CREATE DATABASE faults")
                    cursor.execute(f"CREATE USER {MYSQL_USER}@'127.0.0.1'")
                    cursor.execute(f"GRANT ALL ON faults.* TO {MYSQL_USER}@'127.0.0.1'")
                url = f"{MYSQL_USER}@tcp(127.0.0.1:{links['database'].port})/faults"
                yield Stores(
                    DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url)),
                    local,
                    replicas=2,
                    cache_address=f"127.0.0.1:{links['cache'].port}",
                    servers=servers,
                    links=links,
                )
