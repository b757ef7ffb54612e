# SPDX-License-Identifier: Apache-2.0
"""Databases with a history that stay for the next run, since filling one takes minutes."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pymysql

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.datastore.engines.mysql import connect, mysql_address
from rig.engines import analyze, engine, sqlite_datastore
from rig.history import Scale, write_history

DATABASE_EXISTS = 1007


@contextmanager
def filled_database(
    name: str, scale: Scale, kept: Path | None = None, url: str = ""
) -> Iterator[tuple[DatastoreSpec, Path]]:
    """Yields a database of an engine with a history, and a directory for what belongs to it.

    In `kept` is what the next run need not fill again: the file of SQLite, or that the database of
    this size is filled. Other engines need the URL of a server for that.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if kept is not None:
            directory = kept / str(scale.deployments)
            directory.mkdir(parents=True, exist_ok=True)
        if name == "sqlite":
            datastore = sqlite_datastore(directory / "pipecd.db")
        elif url:
            datastore = _database_of_server(url, f"deployments_{scale.deployments}")
        else:
            datastore = stack.enter_context(engine(name))
        filled = directory / f"{name}-filled"
        if not filled.exists():
            began = time.monotonic()
            asyncio.run(write_history(datastore, scale))
            print(f"filled in {time.monotonic() - began:.0f} s", flush=True)
            if name == "sqlite" or url:
                filled.touch()
        analyze(datastore)
        yield datastore, directory


def _database_of_server(url: str, name: str) -> DatastoreSpec:
    """Creates a database on a server if it does not exist.

    The URL is that of PostgreSQL, or `root@tcp(127.0.0.1:3306)` as in the configuration for MySQL.
    """
    if url.startswith("postgres"):
        with (
            closing(psycopg.connect(f"{url}/postgres", autocommit=True)) as connection,
            suppress(psycopg.errors.DuplicateDatabase),
        ):
            connection.execute(f"CREATE DATABASE {name}".encode())
        return DatastoreSpec(type="POSTGRESQL", config=DatastoreConfig(url=f"{url}/{name}"))
    server = DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=f"{url}/mysql"))
    with closing(connect(mysql_address(server.config))) as connection:
        try:
            connection.cursor().execute(f"CREATE DATABASE {name}")
        except pymysql.err.ProgrammingError as e:
            if e.args[0] != DATABASE_EXISTS:
                raise
    return DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=f"{url}/{name}"))
