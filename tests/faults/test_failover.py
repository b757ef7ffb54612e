# SPDX-License-Identifier: Apache-2.0
"""A server that takes the place of another one has what was committed, behind the same address."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import psycopg
import pymysql
import pytest

from faults.layouts import Layout, Stores, open_stores

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def written_to_postgresql(stores: Stores) -> list[int]:
    """Adds a row; returns all of them."""
    url = f"postgres://postgres@127.0.0.1:{stores.links['database'].port}/faults"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS t (n serial)")
        connection.execute("INSERT INTO t DEFAULT VALUES")
        return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]


def written_to_mysql(stores: Stores) -> list[int]:
    with pymysql.connect(
        host="127.0.0.1",
        port=stores.links["database"].port,
        user="pipecd",
        database="faults",
        autocommit=True,
    ) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE TABLE IF NOT EXISTS t (n int auto_increment primary key)")
        cursor.execute("INSERT INTO t VALUES ()")
        cursor.execute("SELECT n FROM t ORDER BY n")
        return [n for (n,) in cursor.fetchall()]


def written_to_redis(stores: Stores) -> list[int]:
    with socket.create_connection(("127.0.0.1", stores.links["cache"].port), 5) as connection:
        connection.sendall(b"INCR n\r\n")
        return list(range(1, int(connection.recv(100).strip(b":\r\n")) + 1))


@pytest.mark.parametrize(
    ("layout", "server", "write"),
    [
        pytest.param(Layout.POSTGRESQL, "database", written_to_postgresql, id="PostgreSQL"),
        pytest.param(Layout.MYSQL, "database", written_to_mysql, id="MariaDB"),
        pytest.param(Layout.MYSQL, "cache", written_to_redis, id="Redis"),
    ],
)
async def test_what_was_written_survives_a_failover(
    tmp_path: Path, layout: Layout, server: str, write: Callable[[Stores], list[int]]
) -> None:
    async with open_stores(layout, tmp_path) as stores:
        assert len(await asyncio.to_thread(write, stores)) == 1
        for rows in (2, 3):
            replaced = stores.servers[server]
            await asyncio.to_thread(stores.fail_over, server)
            assert stores.servers[server] is not replaced
            assert len(await asyncio.to_thread(write, stores)) == rows
        # Its successor can be restarted, too; Redis then has what it had when it became a replica.
        await asyncio.to_thread(stores.servers[server].stop)
        await asyncio.to_thread(stores.servers[server].start)
        assert len(await asyncio.to_thread(write, stores)) == (3 if server == "cache" else 4)
