# SPDX-License-Identifier: Apache-2.0
"""SQLite: the file and its permissions, locks, damage, and a full disk."""

import asyncio
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from pipecd.controlplane.datastore.database import Duplicate, Transaction
from pipecd.controlplane.datastore.engines.sqlite import (
    READERS,
    SqliteDatabase,
    explain_open,
    open_sqlite,
)
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.schema import EXT_META
from pipecd.model.errors import StorageUnavailable, Unavailable, UserMistake

INITIAL_ROWS = ("schema_version", "labelled_applications")


def add(name: str, value: str = "v") -> Callable[[Transaction], int]:
    statement = insert(EXT_META).values(Name=name, Value=value)
    return lambda transaction: transaction.execute(statement)


def count(transaction: Transaction) -> int:
    """The number of rows without those of a new database."""
    rows = transaction.query(select(func.count()).select_from(EXT_META))
    return rows[0][0] - len(INITIAL_ROWS)


async def open_and_close(path: Path) -> None:
    async with open_sqlite(path):
        pass


async def test_the_file_is_created_with_its_directories_for_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "pipecd.db"
    async with open_sqlite(path) as database:
        await database.write(add("x"))
        assert path.stat().st_mode & 0o077 == 0
        assert path.with_name("pipecd.db-wal").stat().st_mode & 0o077 == 0


async def test_closing_leaves_one_file_without_a_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        await database.write(add("x"))
    assert not path.with_name("pipecd.db-wal").exists()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT Name FROM ExtMeta WHERE Value = 'v'").fetchall() == [
            ("x",)
        ]
    connection.close()


async def test_closing_finishes_pending_writes(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        writes = [asyncio.create_task(database.write(add(str(i)))) for i in range(300)]
        await asyncio.sleep(0)
    assert sum(await asyncio.gather(*writes)) == 300
    async with open_sqlite(path) as database:
        assert await database.read(count) == 300


async def test_a_closed_database_refuses_work(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "pipecd.db") as database:
        pass
    with pytest.raises(Unavailable, match="the database is closed"):
        await database.write(add("x"))
    with pytest.raises(Unavailable, match="the database is closed"):
        await database.read(count)


async def test_a_second_process_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path):
        with pytest.raises(Unavailable, match=f"in use by process {os.getpid()}; stop that"):
            await open_and_close(path)
    await open_and_close(path)


async def test_a_database_locked_by_another_program_is_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path, busy_seconds=0.02) as database:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        results = await asyncio.gather(
            database.write(add("a")), database.write(add("b")), return_exceptions=True
        )
        assert [str(r) for r in results] == [
            f"the database {path} is locked by another process; "
            "end the other process, or try again later"
        ] * 2
        assert await database.read(count) == 0
        other.execute("ROLLBACK")
        other.close()
        await database.write(add("a"))
        assert await database.read(count) == 1


async def test_a_file_locked_at_startup_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    await open_and_close(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="is locked by another process"):
        async with open_sqlite(path, busy_seconds=0.02):
            pass
    other.close()
    await open_and_close(path)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"this is no database" * 100, id="not a SQLite file"),
        pytest.param(b"SQLite format 3\0" + b"\xff" * 4096, id="a broken header"),
    ],
)
async def test_a_damaged_file_is_refused_and_not_changed(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pipecd.db"
    path.write_bytes(content)
    with pytest.raises(UserMistake, match=r"is damaged or not a SQLite file.*restore it from"):
        await open_and_close(path)
    assert path.read_bytes() == content


async def test_damage_detected_by_a_read_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        for i in range(200):
            await database.write(add(str(i), value="h" * 200))
    damaged = bytearray(path.read_bytes())
    # The last pages hold the rows; the first ones, with the schema, stay intact.
    damaged[-8 * 4096 :] = b"\xab" * (8 * 4096)
    path.write_bytes(damaged)
    async with open_sqlite(path) as database:
        with pytest.raises(Unavailable, match=r"is damaged.*restore it from a backup"):
            await database.read(lambda transaction: transaction.query(select(EXT_META)))


async def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserMistake, match=r"cannot be created or written: .*make the directory"):
        await open_and_close(tmp_path / "file" / "pipecd.db")
    with pytest.raises(UserMistake, match="cannot be created or written: Is a directory"):
        await open_and_close(tmp_path)


def test_a_read_only_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    sqlite3.connect(path).close()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    with pytest.raises(sqlite3.OperationalError) as caught:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    explained = explain_open(caught.value, path)
    assert isinstance(explained, UserMistake)
    assert "cannot be created or written" in explained.message


async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        await database.write(
            lambda transaction: transaction.execute(EXT_META.update().values(Value="999"))
        )
    with pytest.raises(UserMistake, match="newer version"):
        await open_and_close(path)


async def test_a_full_disk_fails_only_the_writes_that_need_space(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "pipecd.db") as database:
        await limit_pages(database, more=2)
        small = [database.write(add(f"small {i}")) for i in range(3)]
        big = database.write(add("big", value="x" * 100_000))
        after = database.write(add("after"))
        results = await asyncio.gather(*small, big, after, return_exceptions=True)
        assert [r if isinstance(r, int) else type(r) for r in results] == [
            1,
            1,
            1,
            StorageUnavailable,
            1,
        ]
        assert "is full; free some space" in str(results[3])
        assert await database.read(count) == 4


async def limit_pages(database: SqliteDatabase, *, more: int) -> None:
    """Limits the file to so many pages more than it has."""

    def limit(transaction: Transaction) -> None:
        ((pages,),) = transaction.query_sql("PRAGMA page_count")
        transaction.run_sql(f"PRAGMA max_page_count = {pages + more}")

    await database.write(limit)


async def test_an_existing_row_raises_duplicate(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "pipecd.db") as database:
        await database.write(add("x"))
        with pytest.raises(Duplicate):
            await database.write(add("x"))


async def test_a_read_transaction_cannot_write(tmp_path: Path) -> None:
    def write(transaction: Transaction) -> None:
        count(transaction)
        count(transaction)
        add("x")(transaction)  # type: ignore[arg-type]

    async with open_sqlite(tmp_path / "pipecd.db") as database:
        with pytest.raises(Unavailable):
            await database.read(write)
        assert await database.read(count) == 0


async def test_a_read_sees_every_confirmed_write(tmp_path: Path) -> None:
    async with open_sqlite(tmp_path / "pipecd.db") as database:
        for i in range(200):
            await database.write(add(str(i)))
            assert await database.read(count) == i + 1


WRITER = """
import asyncio, sys
from pathlib import Path
from sqlalchemy import insert
from pipecd.controlplane.datastore.schema import EXT_META
from pipecd.controlplane.datastore.engines.sqlite import open_sqlite

async def write(database, worker):
    for i in range(100_000):
        name = f"{worker}-{i}"
        statement = insert(EXT_META).values(Name=name, Value="v" * 500)
        await database.write(lambda transaction: transaction.execute(statement))
        sys.stdout.write(name + "\\n")
        sys.stdout.flush()

async def main():
    async with open_sqlite(Path(sys.argv[1])) as database:
        await asyncio.gather(*(write(database, worker) for worker in range(8)))

asyncio.run(main())
"""


async def test_confirmed_writes_survive_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    confirmed = [await writer.stdout.readline() for _ in range(500)]
    writer.kill()
    rest, _ = await writer.communicate()
    # The last line may be incomplete.
    names = {line.decode().strip() for line in confirmed + rest.splitlines()[:-1]}
    async with open_sqlite(path) as database:
        rows = await database.read(lambda transaction: transaction.query(select(EXT_META.c.Name)))
    assert len(names) >= 500
    assert names <= {name for (name,) in rows}
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


async def test_the_connections_cache_10_mb_of_the_file_at_most(tmp_path: Path) -> None:
    def cached(transaction: Transaction) -> int:
        # Until all readers are busy, none is used twice.
        together.wait(timeout=30)
        [(pages,)] = transaction.query_sql("PRAGMA cache_size")
        return -int(pages) * 1024

    async with open_sqlite(tmp_path / "pipecd.db") as database:
        together = threading.Barrier(READERS)
        readers = await asyncio.gather(*(database.read(cached) for _ in range(READERS)))
        together = threading.Barrier(1)
        writer = await database.write(cached)
        # One more runs single statements on the event loop.
        assert sum(readers) + 2 * writer <= 10 * 1024 * 1024


async def test_a_restart_releases_all_leases(tmp_path: Path) -> None:
    path = tmp_path / "pipecd.db"
    async with open_sqlite(path) as database:
        assert await Leases(database).acquire("insights", "the previous process", seconds=1000)
    async with open_sqlite(path) as database:
        assert await Leases(database).acquire("insights", "the next process", seconds=1000)


async def test_work_that_raises_is_rolled_back_alone(tmp_path: Path) -> None:
    def half(transaction: Transaction) -> None:
        add("half")(transaction)
        raise LookupError("the other half")

    async with open_sqlite(tmp_path / "pipecd.db") as database:
        works = (add("before"), half, add("after"))
        results = await asyncio.gather(*map(database.write, works), return_exceptions=True)
        assert [type(r) for r in results] == [int, LookupError, int]
        rows = await database.read(lambda transaction: transaction.query(select(EXT_META.c.Name)))
        assert {name for (name,) in rows} == {*INITIAL_ROWS, "before", "after"}


@pytest.mark.parametrize(
    ("conditions", "index"),
    [
        pytest.param({}, "ext_deployment_list", id="no filter"),
        pytest.param({"Status": 2}, "ext_deployment_status", id="a status"),
        pytest.param({"ApplicationName": "a"}, "ext_deployment_name", id="a name"),
        pytest.param({"ApplicationId": "a"}, "ext_deployment_application", id="an application"),
        pytest.param({"PipedId": "a", "Status": 2}, "ext_deployment_piped", id="a piped"),
        pytest.param(
            {"DeploymentTraceCommitHash": "a"}, "deployment_trace_commit_hash", id="a commit"
        ),
        pytest.param({"Id": b"a", "Status": 2}, "sqlite_autoindex", id="ids"),
    ],
)
async def test_the_index_of_a_list_in_an_empty_database(
    tmp_path: Path, conditions: dict[str, str], index: str
) -> None:
    async with open_sqlite(tmp_path / "pipecd.db"):
        pass
    filters = {"ProjectId": "p", **conditions}
    where = " AND ".join(f'"{name}" = ?' for name in filters)
    query = f'SELECT "Data" FROM "Deployment" WHERE {where} ORDER BY "UpdatedAt" DESC, "Id"'
    with closing(sqlite3.connect(tmp_path / "pipecd.db")) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {query}", tuple(filters.values()))
        assert f"USING INDEX {index}" in plan.fetchone()[3]


async def test_an_answer_that_waited_for_the_event_loop_is_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process may be suspended, or one request hold up all others, for longer than that."""
    answered = threading.Event()

    def work(transaction: Transaction) -> int:
        try:
            return count(transaction)
        finally:
            answered.set()

    async with open_sqlite(tmp_path / "pipecd.db") as database:
        monkeypatch.setattr(database, "_timeout", 0.3)
        reading = asyncio.create_task(database.read(work))
        await asyncio.sleep(0)
        assert answered.wait(10)
        time.sleep(0.4)  # noqa: ASYNC251 - the event loop has to be held up.
        assert await reading == 0
