# SPDX-License-Identifier: Apache-2.0
"""The connection pool: backoff while the server is unreachable, and recycling by age."""

import asyncio
import threading
import time
from typing import LiteralString

import psycopg
import pytest
import sqlalchemy.pool.base
from sqlalchemy import func, select

from pipecd.controlplane.datastore.database import Database, Transaction
from pipecd.controlplane.datastore.engines import server as server_engine
from pipecd.controlplane.datastore.engines.postgres import LOOKUP_CONNECTIONS
from pipecd.controlplane.datastore.engines.server import (
    CONNECT_BACKOFF,
    RECYCLE_SECONDS,
    ConnectBackoff,
    create_pool,
)
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake
from servers.databases import Postgres


class FakeServer:
    """Accepts connections unless `error` is set; the test advances its clock."""

    def __init__(self) -> None:
        self.attempts = 0
        self.error: Exception | None = None
        self.seconds = 0.0
        self.pool = create_pool(self.connect, ConnectBackoff(clock=lambda: self.seconds))

    def connect(self) -> "FakeConnection":
        self.attempts += 1
        if self.error is not None:
            raise self.error
        return FakeConnection()


class FakeConnection:
    """A connection without a server."""

    def close(self) -> None:
        """Does nothing."""


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def test_no_connection_is_attempted_during_the_backoff(server: FakeServer) -> None:
    server.error = Unavailable("no route")
    for _ in range(5):
        with pytest.raises(StorageUnavailable, match="no route"):
            server.pool.connect()
    assert server.attempts == 1
    server.seconds += CONNECT_BACKOFF
    server.error = None
    server.pool.connect().close()
    assert server.attempts == 2


def test_a_rejected_password_is_reported_as_unavailable_storage(server: FakeServer) -> None:
    server.error = UserMistake("wrong password")
    with pytest.raises(StorageUnavailable, match="wrong password"):
        server.pool.connect()


def test_the_pool_reuses_a_connection(server: FakeServer) -> None:
    first = server.pool.connect()
    driver_connection = first.driver_connection
    first.close()
    assert server.pool.connect().driver_connection is driver_connection


class PoolTime:
    """The clock of SQLAlchemy's pool, which a test can advance."""

    def __init__(self) -> None:
        self.advanced = 0.0

    def time(self) -> float:
        return time.time() + self.advanced


@pytest.fixture
def pool_time(monkeypatch: pytest.MonkeyPatch) -> PoolTime:
    clock = PoolTime()
    monkeypatch.setattr(sqlalchemy.pool.base, "time", clock)
    return clock


def backend_pid(transaction: Transaction) -> int:
    ((pid,),) = transaction.query(select(func.pg_backend_pid()))
    return pid


async def pids_of_concurrent_reads(database: Database, count: int) -> set[int]:
    """The server processes of so many reads that run at the same time."""
    barrier = threading.Barrier(count)

    def work(transaction: Transaction) -> int:
        barrier.wait(10)
        return backend_pid(transaction)

    return set(await asyncio.gather(*(database.read(work) for _ in range(count))))


async def lookup_pids(database: Database) -> set[int]:
    """The server processes of all connections for lookups."""
    statement = select(func.pg_backend_pid())
    rows = [await database.lookup(statement) for _ in range(2 * LOOKUP_CONNECTIONS)]
    return {pid for ((pid,),) in rows}


def run_sql(server: Postgres, text: LiteralString) -> list[tuple[int]]:
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        return connection.execute(text).fetchall()


def wait_until_closed(server: Postgres, pids: set[int]) -> None:
    """Waits until none of these server processes exists; a backend exits after its client."""
    for _ in range(500):
        if not pids & {pid for (pid,) in run_sql(server, "SELECT pid FROM pg_stat_activity")}:
            return
        time.sleep(0.01)
    raise AssertionError(f"connections {pids} are still open")


class TestRecycling:
    """Connections to PostgreSQL are replaced when they are old, or when another one was lost."""

    @pytest.fixture
    def engine(self) -> str:
        return "postgres"

    async def test_the_pool_replaces_a_connection_by_age(
        self, pool_time: PoolTime, database: Database, postgres: Postgres
    ) -> None:
        first = await database.read(backend_pid)
        pool_time.advanced = RECYCLE_SECONDS - 60
        assert await database.read(backend_pid) == first
        pool_time.advanced = RECYCLE_SECONDS + 1
        second = await database.read(backend_pid)
        assert second != first
        assert await database.read(backend_pid) == second
        await asyncio.to_thread(wait_until_closed, postgres, {first})

    async def test_the_pool_replaces_idle_connections_after_one_is_lost(
        self, database: Database, postgres: Postgres
    ) -> None:
        before = await pids_of_concurrent_reads(database, 3)
        assert len(before) == 3
        lost = await database.read(backend_pid)
        assert lost in before
        run_sql(postgres, f"SELECT pg_terminate_backend({lost})")  # type: ignore[arg-type]
        await database.read(backend_pid)
        after = await pids_of_concurrent_reads(database, 3)
        assert len(after) == 3
        assert not after & before
        await asyncio.to_thread(wait_until_closed, postgres, before)

    async def test_lookups_replace_a_connection_by_age(
        self, database: Database, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = await lookup_pids(database)
        assert len(before) <= LOOKUP_CONNECTIONS
        assert await lookup_pids(database) == before
        monkeypatch.setattr(server_engine, "RECYCLE_SECONDS", 0)
        after = await lookup_pids(database)
        assert not after & before
        await asyncio.to_thread(wait_until_closed, postgres, before)

    async def test_lookups_replace_all_connections_after_one_is_lost(
        self, database: Database, postgres: Postgres
    ) -> None:
        before = await lookup_pids(database)
        assert len(before) == LOOKUP_CONNECTIONS
        lost = min(before)
        run_sql(postgres, f"SELECT pg_terminate_backend({lost})")  # type: ignore[arg-type]
        # Until the lost connection is used, the other one may still answer.
        await lookup_pids(database)
        assert not await lookup_pids(database) & before
        await asyncio.to_thread(wait_until_closed, postgres, before)
