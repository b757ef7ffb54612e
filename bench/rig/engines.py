# SPDX-License-Identifier: Apache-2.0
"""The databases of the benchmarks: those of the tests, empty, on loopback."""

import importlib
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.datastore.engines.mysql import connect, mysql_address

# The servers are those of the tests.
sys.path.append(str(Path(__file__).parents[2] / "tests"))
databases: Any = importlib.import_module("servers.databases")
NotInstalled: type[Exception] = importlib.import_module("servers.programs").NotInstalled


class MariaDb(databases.MariaDb):
    """With the default memory and durability, unlike in tests."""

    def command(self) -> Sequence[str]:
        settings = ("--innodb-buffer-pool-size=128M", "--innodb-flush-log-at-trx-commit=1")
        return [*super().command(), *settings]


class Postgres(databases.Postgres):
    """With the default memory and durability, unlike in tests."""

    def command(self) -> Sequence[str]:
        return [*super().command(), "-c", "shared_buffers=128MB", "-c", "fsync=on"]


@contextmanager
def engine(name: str) -> Iterator[DatastoreSpec]:
    """Opens an empty database of an engine; NotInstalled when its program is missing."""
    if name == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield sqlite_datastore(Path(directory) / "pipecd.db")
        return
    kind, create = {
        "mariadb": (MariaDb, _mysql),
        "postgres": (Postgres, _postgresql),
        "dolt": (databases.Dolt, _mysql),
    }[name]
    server = kind()
    try:
        yield create(server)
    finally:
        server.close()


def sqlite_datastore(path: Path) -> DatastoreSpec:
    return DatastoreSpec(type="SQLITE", config=DatastoreConfig(path=str(path)))


def rows_milliseconds(datastore: DatastoreSpec) -> float:
    """Returns how long the driver takes for thirty documents in the order of an index."""
    query = """SELECT "Data" FROM "Deployment" WHERE "ProjectId" = 'large'
        ORDER BY "UpdatedAt" DESC LIMIT 30"""
    connection: Any
    match datastore.type:
        case "SQLITE":
            connection = sqlite3.connect(datastore.config.path)
        case "POSTGRESQL":
            connection = psycopg.connect(datastore.config.url)
        case _:
            connection = connect(mysql_address(datastore.config))
            query = query.replace('"', "")
    taken: list[float] = []
    with closing(connection):
        for _ in range(4):
            began = time.perf_counter()
            cursor = connection.cursor()
            cursor.execute(query)
            cursor.fetchall()
            taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:]) * 1000


def analyze(datastore: DatastoreSpec) -> None:
    """Updates the statistics of PostgreSQL, which it does itself within a minute."""
    if datastore.type == "POSTGRESQL":
        with psycopg.connect(datastore.config.url, autocommit=True) as connection:
            connection.execute("ANALYZE")


def _mysql(server: Any) -> DatastoreSpec:
    with pymysql.connect(host="127.0.0.1", port=server.port, user="root") as connection:
        connection.cursor().execute("CREATE DATABASE bench")
    url = f"root@tcp(127.0.0.1:{server.port})/bench"
    return DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))


def _postgresql(server: Any) -> DatastoreSpec:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("CREATE DATABASE bench")
    return DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=server.url("bench")))
