# SPDX-License-Identifier: Apache-2.0
"""Stage logs lose no block on a restart, a killed process or concurrent writers."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select

from pipecd.controlplane.datastore.database import Database
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.log_file import LogFile, StoredLog, format_log, parse_log
from pipecd.controlplane.datastore.schema import EXT_LOG_BLOCK
from pipecd.controlplane.datastore.stage_logs import StageLogs, StageRun, log_path
from pipecd.controlplane.datastore.stores import Stores
from pipecd.controlplane.filestore import Files, VersionedFile
from pipecd.model.clock import utc_now
from pipecd.model.errors import Conflict, NotFound, Unavailable, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.logblock_pb2 import ERROR, INFO, LogBlock

RUN = StageRun("16fd2706-8baf-433b-82eb-8c7fada847da", "stage-0")
CLOSED = "^could not append the logs because the stage was already completed$"


def block(index: int, text: str = "") -> LogBlock:
    return LogBlock(index=index, log=text or f"line {index}", created_at=1_700_000_000)


async def indexes(stores: Stores, run: StageRun = RUN, from_index: int = 0) -> list[int]:
    return [b.index for b in (await stores.stage_logs.read(run, from_index=from_index)).blocks]


async def row_count(database: Database) -> int:
    counted = select(func.count()).select_from(EXT_LOG_BLOCK)
    return await database.read(lambda transaction: transaction.query(counted)[0][0])


async def test_reading_a_log_without_blocks_raises_not_found(stores: Stores) -> None:
    with pytest.raises(NotFound):
        await stores.stage_logs.read(RUN)


async def test_appended_blocks_are_read_at_once_and_after_a_restart(
    open_stores: Callable[[], AbstractAsyncContextManager[Stores]],
) -> None:
    async with open_stores() as stores:
        await stores.stage_logs.append(RUN, [block(2), block(1)])
        assert await indexes(stores) == [1, 2]
    async with open_stores() as stores:
        await stores.stage_logs.append(RUN, [block(3)])
        part = await stores.stage_logs.read(RUN)
        assert [b.log for b in part.blocks] == ["line 1", "line 2", "line 3"]
        assert not part.completed


async def test_a_block_sent_twice_is_stored_once(stores: Stores) -> None:
    await stores.stage_logs.append(RUN, [block(1, "first"), block(1, "again")])
    await stores.stage_logs.append(RUN, [block(1, "later"), block(2)])
    await stores.stage_logs.checkpoint(RUN, [block(2, "other"), block(3)], completed=False)
    await stores.stage_logs.append(RUN, [block(3, "late"), block(4)])
    part = await stores.stage_logs.read(RUN)
    assert [b.log for b in part.blocks] == ["first", "line 2", "line 3", "line 4"]


async def test_a_checkpoint_moves_the_blocks_to_the_file(
    stores: Stores, database: Database
) -> None:
    await stores.stage_logs.append(RUN, [block(1)])
    await stores.stage_logs.checkpoint(RUN, [block(2)], completed=False)
    assert await row_count(database) == 0
    file = parse_log(await stores.files.get(log_path(RUN)), "")
    assert ([b.index for b in file.blocks], file.completed) == ([1, 2], False)
    await stores.stage_logs.append(RUN, [block(3)])
    assert await indexes(stores) == [1, 2, 3]
    assert await indexes(stores, from_index=2) == [2, 3]
    assert await indexes(stores, from_index=3) == [3]
    assert await indexes(stores, from_index=4) == []


async def test_a_completed_log_refuses_new_blocks(stores: Stores, database: Database) -> None:
    await stores.stage_logs.append(RUN, [block(1)])
    await stores.stage_logs.checkpoint(RUN, [block(2)], completed=True)
    with pytest.raises(Conflict, match=CLOSED):
        await stores.stage_logs.append(RUN, [block(3)])
    with pytest.raises(Conflict, match=CLOSED):
        await stores.stage_logs.checkpoint(RUN, [block(3)], completed=True)
    part = await stores.stage_logs.read(RUN)
    assert ([b.index for b in part.blocks], part.completed) == ([1, 2], True)
    assert await row_count(database) == 0
    assert (await stores.stage_logs.read(RUN, from_index=3)).completed


async def test_the_last_checkpoint_can_be_repeated(stores: Stores) -> None:
    await stores.stage_logs.checkpoint(RUN, [block(1), block(2)], completed=True)
    await stores.stage_logs.checkpoint(RUN, [block(1), block(2)], completed=True)
    await stores.stage_logs.checkpoint(RUN, [], completed=True)
    assert await indexes(stores) == [1, 2]


async def test_a_log_can_be_completed_without_blocks(stores: Stores) -> None:
    await stores.stage_logs.checkpoint(RUN, [], completed=True)
    part = await stores.stage_logs.read(RUN)
    assert (part.blocks, part.completed) == ((), True)
    assert await stores.files.get(log_path(RUN)) == b"EOL"


async def test_each_run_of_each_stage_has_its_own_log(stores: Stores) -> None:
    again = StageRun(RUN.deployment_id, RUN.stage_id, 1)
    other = StageRun(RUN.deployment_id, "stage-1")
    await stores.stage_logs.checkpoint(RUN, [block(1)], completed=True)
    await stores.stage_logs.append(again, [block(2)])
    await stores.stage_logs.append(other, [block(3)])
    assert [await indexes(stores, run) for run in (RUN, again, other)] == [[1], [2], [3]]


async def test_a_log_whose_file_another_control_plane_wrote_is_continued(stores: Stores) -> None:
    await stores.files.put(log_path(RUN), format_log(LogFile((block(1), block(2)))))
    assert await indexes(stores) == [1, 2]
    await stores.stage_logs.append(RUN, [block(2, "again"), block(3)])
    assert await indexes(stores) == [1, 2, 3]
    await stores.stage_logs.checkpoint(RUN, [], completed=True)
    file = parse_log(await stores.files.get(log_path(RUN)), "")
    assert [b.log for b in file.blocks] == ["line 1", "line 2", "line 3"]


async def test_a_log_whose_file_another_control_plane_completed_stays_completed(
    stores: Stores,
) -> None:
    await stores.files.put(log_path(RUN), format_log(LogFile((block(1),), completed=True)))
    with pytest.raises(Conflict, match=CLOSED):
        await stores.stage_logs.append(RUN, [block(2)])
    with pytest.raises(Conflict, match=CLOSED):
        await stores.stage_logs.checkpoint(RUN, [block(2)], completed=False)
    part = await stores.stage_logs.read(RUN)
    assert ([b.index for b in part.blocks], part.completed) == ([1], True)


async def test_blocks_can_have_any_length_and_contain_any_separator(stores: Stores) -> None:
    texts = ["x" * 200_000, "a\nb\r\nc", "d\u2028e\x85f", "EOL", '{"index":9}']
    blocks = [block(i, text) for i, text in enumerate(texts, start=1)]
    await stores.stage_logs.checkpoint(RUN, blocks, completed=False)
    await stores.stage_logs.checkpoint(RUN, [block(9)], completed=True)
    part = await stores.stage_logs.read(RUN)
    assert [b.log for b in part.blocks] == [*texts, "line 9"]
    assert part.completed


async def test_ids_that_leave_the_log_directory_are_refused(stores: Stores) -> None:
    with pytest.raises(UserMistake):
        await stores.stage_logs.append(StageRun("..", "../../etc"), [block(1)])


async def test_concurrent_writers_of_one_log_lose_no_block(
    stores: Stores, database: Database
) -> None:
    async def write(worker: int) -> None:
        for i in range(10):
            new = [block(1 + worker * 100 + i)]
            if i % 3:
                await stores.stage_logs.append(RUN, new)
            else:
                await stores.stage_logs.checkpoint(RUN, new, completed=False)

    async with asyncio.TaskGroup() as group:
        for worker in range(8):
            group.create_task(write(worker))
    assert await indexes(stores) == [1 + w * 100 + i for w in range(8) for i in range(10)]
    await stores.stage_logs.checkpoint(RUN, [], completed=True)
    assert len(parse_log(await stores.files.get(log_path(RUN)), "").blocks) == 80
    assert await row_count(database) == 0


async def test_a_reader_never_misses_a_block_during_a_checkpoint(stores: Stores) -> None:
    done = asyncio.Event()

    async def write() -> None:
        for i in range(1, 40):
            await stores.stage_logs.append(RUN, [block(i)])
            if i % 4 == 0:
                await stores.stage_logs.checkpoint(RUN, [], completed=False)
        done.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        previous = 0
        while not done.is_set():
            try:
                read_indexes = await indexes(stores)
            except NotFound:
                continue
            assert read_indexes == list(range(1, len(read_indexes) + 1))
            assert len(read_indexes) >= previous
            previous = len(read_indexes)


class Killed(BaseException):
    """Simulates a killed process."""


class ForwardingFiles:
    """A filestore on another one, to which tests add faults."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def get(self, path: str) -> bytes:
        return await self._files.get(path)

    async def get_versioned(self, path: str) -> VersionedFile:
        return await self._files.get_versioned(path)

    async def put(self, path: str, content: bytes) -> None:
        await self._files.put(path, content)

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        await self._files.replace(path, content, version=version)

    async def delete(self, path: str) -> None:
        await self._files.delete(path)

    async def list(self, prefix: str) -> tuple[str, ...]:
        return await self._files.list(prefix)


class KillingFiles(ForwardingFiles):
    """A filestore whose next write kills the process, before or after the file is written."""

    def __init__(self, files: Files, *, after_writing: bool) -> None:
        super().__init__(files)
        self._after_writing = after_writing

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        if self._after_writing:
            await self._files.replace(path, content, version=version)
        raise Killed


class DelayedFiles(ForwardingFiles):
    """A filestore whose first write arrives late, as if its process was suspended meanwhile."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.started, self.released = asyncio.Event(), asyncio.Event()

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        self.started.set()
        await self.released.wait()
        await self._files.replace(path, content, version=version)


@pytest.mark.parametrize("is_first", [True, False], ids=["no file yet", "a file"])
@pytest.mark.parametrize("completed", [True, False], ids=["completed", "open"])
async def test_a_delayed_write_does_not_overwrite_a_newer_file(
    stores: Stores, database: Database, is_first: bool, completed: bool
) -> None:
    if not is_first:
        await stores.stage_logs.checkpoint(RUN, [block(1)], completed=False)
    delayed = DelayedFiles(stores.files)
    slow = StageLogs(database, delayed, Leases(database))
    # The lease of the first replica has expired, or the clock of the second one is ahead.
    ahead = Leases(database, now=lambda: utc_now() + timedelta(hours=2))
    other = StageLogs(database, stores.files, ahead)
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(slow.checkpoint(RUN, [block(1), block(2)], completed=False))
        await delayed.started.wait()
        await other.checkpoint(RUN, [block(2), block(3)], completed=completed)
        delayed.released.set()
        await first
    part = await stores.stage_logs.read(RUN)
    assert ([b.index for b in part.blocks], part.completed) == ([1, 2, 3], completed)
    file = parse_log(await stores.files.get(log_path(RUN)), "")
    assert ([b.index for b in file.blocks], file.completed) == ([1, 2, 3], completed)
    assert await row_count(database) == 0
    if completed:
        with pytest.raises(Conflict, match=CLOSED):
            await other.append(RUN, [block(4)])


class LateReports(ForwardingFiles):
    """A filestore that reports a write long after it was done."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.written, self.released = asyncio.Event(), asyncio.Event()

    async def replace(self, path: str, content: bytes, *, version: str) -> None:
        await self._files.replace(path, content, version=version)
        self.written.set()
        await self.released.wait()


async def test_a_replica_that_continues_late_does_not_reopen_a_completed_log(
    stores: Stores, database: Database
) -> None:
    late = LateReports(stores.files)
    slow = StageLogs(database, late, Leases(database))
    ahead = Leases(database, now=lambda: utc_now() + timedelta(hours=2))
    other = StageLogs(database, stores.files, ahead)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(slow.checkpoint(RUN, [block(1)], completed=False))
        await late.written.wait()
        await other.checkpoint(RUN, [block(2)], completed=True)
        late.released.set()
    with pytest.raises(Conflict, match=CLOSED):
        await other.append(RUN, [block(3)])
    part = await stores.stage_logs.read(RUN, from_index=2)
    assert ([b.index for b in part.blocks], part.completed) == ([2], True)


@pytest.mark.parametrize("after_writing", [False, True], ids=["before the file", "after the file"])
@pytest.mark.parametrize("completed", [False, True], ids=["open", "completed"])
async def test_a_process_killed_during_a_checkpoint_loses_no_block(
    stores: Stores, database: Database, after_writing: bool, completed: bool
) -> None:
    await stores.stage_logs.checkpoint(RUN, [block(1)], completed=False)
    await stores.stage_logs.append(RUN, [block(2)])
    killed = StageLogs(
        database, KillingFiles(stores.files, after_writing=after_writing), Leases(database)
    )
    with pytest.raises(Killed):
        await killed.checkpoint(RUN, [block(3)], completed=completed)
    part = await stores.stage_logs.read(RUN)
    assert ([b.index for b in part.blocks], part.completed) == ([1, 2, 3], completed)
    # The piped got no answer and repeats the request.
    await stores.stage_logs.checkpoint(RUN, [block(3)], completed=completed)
    file = parse_log(await stores.files.get(log_path(RUN)), "")
    assert ([b.index for b in file.blocks], file.completed) == ([1, 2, 3], completed)
    assert await row_count(database) == 0


async def test_a_log_that_is_new_and_complete_is_written_without_rows_and_a_lease(
    stores: Stores, database: Database
) -> None:
    assert await stores.leases.acquire(log_path(RUN), "another replica", seconds=5)
    await stores.stage_logs.checkpoint(RUN, [block(2), block(1), block(2)], completed=True)
    part = await stores.stage_logs.read(RUN)
    assert ([b.index for b in part.blocks], part.completed) == ([1, 2], True)
    assert await row_count(database) == 0
    with pytest.raises(Conflict, match=CLOSED):
        await stores.stage_logs.append(RUN, [block(3)])


@pytest.mark.parametrize("after_writing", [False, True], ids=["before the file", "after the file"])
async def test_a_process_killed_while_it_writes_a_complete_log_loses_no_block(
    stores: Stores, database: Database, after_writing: bool
) -> None:
    killed = StageLogs(
        database, KillingFiles(stores.files, after_writing=after_writing), Leases(database)
    )
    with pytest.raises(Killed):
        await killed.checkpoint(RUN, [block(1), block(2)], completed=True)
    # The piped got no answer and repeats the request.
    await stores.stage_logs.checkpoint(RUN, [block(1), block(2)], completed=True)
    part = await stores.stage_logs.read(RUN)
    assert ([b.index for b in part.blocks], part.completed) == ([1, 2], True)
    assert await row_count(database) == 0
    with pytest.raises(Conflict, match=CLOSED):
        await stores.stage_logs.append(RUN, [block(3)])


async def test_a_line_that_arrives_while_a_complete_log_is_written_is_not_lost(
    stores: Stores, database: Database
) -> None:
    delayed = DelayedFiles(stores.files)
    slow = StageLogs(database, delayed, Leases(database))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(slow.checkpoint(RUN, [block(1), block(3)], completed=True))
        await delayed.started.wait()
        # Another replica stores it and confirms it.
        await stores.stage_logs.append(RUN, [block(2)])
        delayed.released.set()
    part = await stores.stage_logs.read(RUN)
    assert ([b.index for b in part.blocks], part.completed) == ([1, 2, 3], True)
    assert await row_count(database) == 0


async def test_a_checkpoint_waits_for_the_lease_of_another_replica(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipecd.controlplane.datastore.stage_logs.LEASE_RETRY_SECONDS", 0.001)
    assert await stores.leases.acquire(log_path(RUN), "another replica", seconds=5)
    with pytest.raises(Unavailable, match="another replica is writing log/"):
        await stores.stage_logs.checkpoint(RUN, [block(1)], completed=False)
    await stores.leases.release(log_path(RUN), "another replica")
    await stores.stage_logs.checkpoint(RUN, [block(1)], completed=False)
    assert await indexes(stores) == [1]


def test_the_file_equals_that_of_upstream(spec_dir: Path) -> None:
    objects = json.loads((spec_dir / "vectors" / "storage_objects.json").read_text())
    expected_file = next(o for o in objects if o["key"] == log_path(RUN))
    log = parse_log(expected_file["value"].encode(), expected_file["key"])
    assert [(b.index, b.log, b.severity) for b in log.blocks] == [
        (1_700_000_001, "start <a>", 0),
        (1_700_000_002, "done", 1),
    ]
    assert log.completed
    assert format_log(log) == expected_file["value"].encode()


def test_a_damaged_line_is_reported_with_its_number() -> None:
    with pytest.raises(Conflict, match=r"log/x\.txt is damaged at line 2"):
        parse_log(b'{"index":1}\n{"ind\n', "log/x.txt")


async def test_a_whole_log_is_read_from_its_file_and_its_rows(stores: Stores) -> None:
    await stores.stage_logs.checkpoint(RUN, [block(1), block(2)], completed=False)
    await stores.stage_logs.append(RUN, [block(3)])
    log = await stores.stage_logs.read_whole(RUN)
    assert [b.index for b in log.blocks()] == [1, 2, 3]
    assert not log.completed
    # A process was killed after it had written the file, before it removed the row.
    file = LogFile((block(1), block(2), block(3)), completed=True)
    await stores.files.put(log_path(RUN), format_log(file))
    log = await stores.stage_logs.read_whole(RUN)
    assert [b.index for b in log.blocks()] == [1, 2, 3]
    assert log.completed
    with pytest.raises(NotFound):
        await stores.stage_logs.read_whole(StageRun("d1", "other"))


def test_errors_and_a_text_are_found_in_files_and_rows() -> None:
    lines = ["Pulling image", "\x1b[31mim\x1b[0mage is missing", 'say "image"', "done", "Ümage"]
    blocks = [
        LogBlock(index=i, log=log, severity=ERROR if "missing" in log else INFO)
        for i, log in enumerate(lines)
    ]
    saved = format_log(LogFile(tuple(blocks)))
    for log in (
        StoredLog.merged(saved, (), "", completed=True),
        StoredLog.merged(b"", tuple(blocks), "", completed=True),
    ):
        assert log.errors() == [1]
        assert {0, 1, 2} <= set(log.candidates("IMAGE"))
        assert 2 in log.candidates('"image')
        assert 4 in log.candidates("ümage")
    assert list(StoredLog.merged(saved, (), "", completed=True).candidates("done")) == [3]


Blocks = st.lists(
    st.builds(
        LogBlock,
        index=st.integers(0, 2**62),
        log=st.text(min_size=1),
        severity=st.integers(0, 2),
        created_at=st.integers(1, 2**40),
    ),
    unique_by=lambda b: b.index,
)


@given(Blocks, st.booleans())
def test_parsing_a_file_returns_its_log(blocks: list[LogBlock], completed: bool) -> None:
    log = LogFile(tuple(sorted(blocks, key=lambda b: b.index)), completed)
    assert parse_log(format_log(log), "") == log


Steps = st.lists(
    st.tuples(st.sampled_from(["append", "checkpoint"]), st.lists(st.integers(0, 20), max_size=4)),
    max_size=8,
)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=Steps)
async def test_every_index_is_read_once_whatever_the_order_of_writes(
    stores: Stores, steps: list[tuple[str, list[int]]]
) -> None:
    run = StageRun(new_id(), "stage")
    expected: set[int] = set()
    await stores.stage_logs.append(run, [])
    for action, numbers in steps:
        blocks = [block(n) for n in numbers]
        if action == "append":
            await stores.stage_logs.append(run, blocks)
        else:
            await stores.stage_logs.checkpoint(run, blocks, completed=False)
        expected |= set(numbers)
        assert await indexes(stores, run) == sorted(expected)
        assert await indexes(stores, run, 10) == sorted(n for n in expected if n >= 10)
