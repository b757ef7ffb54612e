# SPDX-License-Identifier: Apache-2.0
"""Stores on every engine, a manual clock, and builders of documents."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, LiteralString, cast

import psycopg
import pymysql
import pytest

from pipecd.config.controlplane import DatastoreConfig, DatastoreSpec
from pipecd.controlplane.cache.memory import MemoryCache
from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.engines import server as server_engine
from pipecd.controlplane.datastore.open import open_datastore
from pipecd.controlplane.datastore.stores import Stores, create_stores
from pipecd.controlplane.filestore.local import LocalFiles
from pipecd.model.ids import new_id
from pipecd.proto.model.apikey_pb2 import APIKey
from pipecd.proto.model.application_pb2 import Application
from pipecd.proto.model.command_pb2 import Command
from pipecd.proto.model.common_pb2 import ApplicationGitPath, ApplicationGitRepository
from pipecd.proto.model.deployment_pb2 import Commit, Deployment, DeploymentTrigger
from pipecd.proto.model.event_pb2 import Event
from servers.databases import Dolt, MariaDb, Postgres

START = 1_700_000_000


class ManualClock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.seconds: float = START

    def __call__(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


ENGINES = ("sqlite", "mariadb", "dolt", "postgres")
# Rows of ExtMeta that opening a database creates.
INITIAL_ROWS = (
    "('schema_version', 'labels:Application', 'labels:Deployment', 'labels:Event', "
    "'labelled_applications')"
)


@pytest.fixture(autouse=True)
def short_wait_for_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The servers run before a test begins, so a server that does not answer is an error soon."""
    monkeypatch.setattr(server_engine, "WAIT_SECONDS", 3.0)


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """The engine; every test of the package runs on each of them."""
    return request.param


@pytest.fixture
def row_locks(engine: str) -> None:
    """Skips the engine that has no row locks."""
    if engine == "dolt":
        pytest.skip("Dolt is compatible with MySQL but has no row locks")


@pytest.fixture
def spec(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> DatastoreSpec:
    """An empty database of the engine."""
    match engine:
        case "sqlite":
            path = str(tmp_path / "data" / "pipecd.db")
            return DatastoreSpec(type="SQLITE", config=DatastoreConfig(path=path))
        case "mariadb" | "dolt":
            server: MariaDb | Dolt = request.getfixturevalue(engine)
            return empty_mysql(server)
        case _:
            postgres: Postgres = request.getfixturevalue("postgres")
            return empty_postgres(postgres)


def empty_mysql(server: MariaDb | Dolt) -> DatastoreSpec:
    address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "root"}
    with pymysql.connect(**address, autocommit=True) as connection:
        connection.cursor().execute("CREATE DATABASE IF NOT EXISTS pipecd")
    with pymysql.connect(**address, database="pipecd", autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW TABLES")
        for (table,) in cursor.fetchall():
            cursor.execute(f"DELETE FROM {table} {initial_rows_only(table, '`Name`')}")
    url = f"root@tcp(127.0.0.1:{server.port})/pipecd"
    return DatastoreSpec(type="MYSQL", config=DatastoreConfig(url=url))


def empty_postgres(server: Postgres) -> DatastoreSpec:
    with (
        suppress(psycopg.errors.DuplicateDatabase),
        psycopg.connect(server.url("postgres"), autocommit=True) as connection,
    ):
        connection.execute("CREATE DATABASE pipecd")
    with psycopg.connect(server.url("pipecd"), autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        for (table,) in tables.fetchall():
            rows = initial_rows_only(table, '"Name"')
            connection.execute(cast("LiteralString", f'DELETE FROM "{table}" {rows}'))
    config = DatastoreConfig(url=server.url("pipecd"))
    return DatastoreSpec(type="POSTGRESQL", config=config)


def initial_rows_only(table: str, name: str) -> str:
    return f"WHERE {name} NOT IN {INITIAL_ROWS}" if table == "ExtMeta" else ""


@pytest.fixture
def open_database(spec: DatastoreSpec) -> Callable[[], AbstractAsyncContextManager[Database]]:
    """Opens the same database at each call."""
    return lambda: open_datastore(spec)


@pytest.fixture
def open_stores(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
    tmp_path: Path,
    clock: ManualClock,
) -> Callable[[], AbstractAsyncContextManager[Stores]]:
    """Opens all stores on the same data at each call."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Stores]:
        files = await LocalFiles.open(tmp_path / "files")
        async with open_database() as database:
            yield create_stores(database, files, MemoryCache(), now=clock)

    return opened


@pytest.fixture
async def database(
    open_database: Callable[[], AbstractAsyncContextManager[Database]],
) -> AsyncIterator[Database]:
    async with open_database() as database:
        yield database


@pytest.fixture
async def stores(database: Database, tmp_path: Path, clock: ManualClock) -> Stores:
    files = await LocalFiles.open(tmp_path / "files")
    return create_stores(database, files, MemoryCache(), now=clock)


def _git_path() -> ApplicationGitPath:
    repo = ApplicationGitRepository(id="repo", remote="git@example.com:o/r.git", branch="main")
    return ApplicationGitPath(repo=repo, path="apps/web", config_filename="app.pipecd.yaml")


@pytest.fixture
def application() -> Callable[..., Application]:
    def build(**fields: Any) -> Application:
        values: dict[str, Any] = {
            "id": new_id(),
            "name": "web",
            "piped_id": "piped-1",
            "project_id": "p",
        } | fields
        return Application(git_path=_git_path(), **values)

    return build


@pytest.fixture
def deployment() -> Callable[..., Deployment]:
    def build(**fields: Any) -> Deployment:
        commit = Commit(
            hash="c0ffee", message="change", author="dev", branch="main", created_at=START
        )
        values: dict[str, Any] = {
            "id": new_id(),
            "application_id": "application-1",
            "application_name": "web",
            "piped_id": "piped-1",
            "project_id": "p",
        } | fields
        trigger = DeploymentTrigger(commit=commit, timestamp=START)
        return Deployment(git_path=_git_path(), trigger=trigger, **values)

    return build


@pytest.fixture
def command() -> Callable[..., Command]:
    def build(**fields: Any) -> Command:
        values: dict[str, Any] = {"id": new_id(), "piped_id": "piped-1", "project_id": "p"} | fields
        return Command(**values)

    return build


@pytest.fixture
def event() -> Callable[..., Event]:
    def build(**fields: Any) -> Event:
        values: dict[str, Any] = {
            "id": new_id(),
            "name": "image",
            "data": "v1",
            "project_id": "p",
            "event_key": "key",
        } | fields
        return Event(**values)

    return build


@pytest.fixture
def api_key() -> Callable[..., APIKey]:
    def build(**fields: Any) -> APIKey:
        values: dict[str, Any] = {
            "id": new_id(),
            "name": "ci",
            "key_hash": "hash",
            "project_id": "p",
            "creator": "someone",
        } | fields
        return APIKey(**values)

    return build
