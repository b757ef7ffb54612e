# SPDX-License-Identifier: Apache-2.0
"""Stage logs: new blocks as rows, checkpoints as files.

A checkpoint moves blocks from rows to the file: it writes the file first, then removes the rows. A
reader reads the rows first, then the file. So it never misses a block, even if a process is killed
at any point.

A log that is new and complete, as that of a short stage, is written as a file at once, then its
head as a row. After a kill in between the head is created from the file.

Replicas write a log one at a time by a lease. A lease expires while its holder is suspended or a
write takes long, or at once if the clocks of two replicas differ. So a checkpoint replaces only the
file that it has read, and starts again if there is a newer one.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, false, insert, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, OutcomeUnknown, Transaction
from pipecd.controlplane.datastore.expressions import Value, Values, param
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.limits import MAX_BYTES
from pipecd.controlplane.datastore.log_file import (
    LogFile,
    StoredLog,
    format_log,
    merge_blocks,
    parse_log,
)
from pipecd.controlplane.datastore.schema import EXT_LOG_BLOCK, EXT_STAGE_LOG
from pipecd.controlplane.filestore import FileChanged, Files
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import Conflict, NotFound, Unavailable, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.logblock_pb2 import LogBlock

# A replica that died with a lease holds up the log, and its stage, for this long. A write may take
# longer, because it replaces only the file that it has read.
LEASE_SECONDS = 4
LEASE_ATTEMPTS = 40
LEASE_RETRY_SECONDS = 0.05
FIRST_INDEX = -(2**63)
MAX_DEPLOYMENT_ID, MAX_STAGE_ID = 64, 255


def _of_run(table: Table) -> ColumnElement[bool]:
    return and_(
        table.c.DeploymentId == param("deployment"),
        table.c.StageId == param("stage"),
        table.c.RetriedCount == param("retried"),
    )


RUN_COLUMNS: dict[str, Any] = {
    "DeploymentId": param("deployment"),
    "StageId": param("stage"),
    "RetriedCount": param("retried"),
}
REPLACE_ATTEMPTS = 10
HEAD_COLUMNS = {"Completed": param("done"), "LastIndexInFile": param("last")}
HEAD = select(EXT_STAGE_LOG.c.Completed, EXT_STAGE_LOG.c.LastIndexInFile).where(
    _of_run(EXT_STAGE_LOG)
)
LOCKED_HEAD = HEAD.with_for_update()
ADD_HEAD = insert(EXT_STAGE_LOG).values(**RUN_COLUMNS, **HEAD_COLUMNS)
SET_HEAD = update(EXT_STAGE_LOG).where(_of_run(EXT_STAGE_LOG)).values(**HEAD_COLUMNS)
# Another replica may have completed the log meanwhile, or written later blocks.
SET_LAST_INDEX = (
    update(EXT_STAGE_LOG)
    .where(_of_run(EXT_STAGE_LOG), EXT_STAGE_LOG.c.LastIndexInFile < param("last"))
    .values(LastIndexInFile=param("last"))
)
BLOCKS = (
    select(EXT_LOG_BLOCK.c.Data)
    .where(_of_run(EXT_LOG_BLOCK), EXT_LOG_BLOCK.c.BlockIndex >= param("low"))
    .order_by(EXT_LOG_BLOCK.c.BlockIndex)
)
INDEXES = select(EXT_LOG_BLOCK.c.BlockIndex).where(
    _of_run(EXT_LOG_BLOCK),
    EXT_LOG_BLOCK.c.BlockIndex >= param("low"),
    EXT_LOG_BLOCK.c.BlockIndex <= param("high"),
)
ADD_BLOCK = insert(EXT_LOG_BLOCK).values(
    **RUN_COLUMNS, BlockIndex=param("index"), Data=param("data")
)
# Locks the head, so that the log is not closed in the meantime.
ADD_TO_OPEN_LOG = insert(EXT_LOG_BLOCK).from_select(
    [*RUN_COLUMNS, "BlockIndex", "Data"],
    select(
        EXT_STAGE_LOG.c.DeploymentId,
        EXT_STAGE_LOG.c.StageId,
        EXT_STAGE_LOG.c.RetriedCount,
        param("index"),
        param("data"),
    )
    .where(_of_run(EXT_STAGE_LOG), EXT_STAGE_LOG.c.Completed == false())
    .with_for_update(),
)
BLOCKS_PER_DELETE = 64
REMOVE_BLOCKS = delete(EXT_LOG_BLOCK).where(
    _of_run(EXT_LOG_BLOCK),
    EXT_LOG_BLOCK.c.BlockIndex.in_([param(f"index_{i}") for i in range(BLOCKS_PER_DELETE)]),
)


@dataclass(frozen=True)
class StageRun:
    """Identifies one run of a stage, to which a log belongs."""

    deployment_id: str
    stage_id: str
    retried_count: int = 0


@dataclass(frozen=True)
class StageLogPart:
    """Log blocks in the order of their index; `completed` says that none will follow."""

    blocks: tuple[LogBlock, ...]
    completed: bool


@dataclass(frozen=True)
class Head:
    """The database row of a log: whether it is closed, and the last index in its file."""

    completed: bool
    last_index_in_file: int


class StageLogs:
    """Logs of stages on a database and a filestore."""

    def __init__(self, database: Database, files: Files, leases: Leases) -> None:
        self._database = database
        self._files = files
        self._leases = leases
        self._holder = new_id()
        self._locks: dict[StageRun, asyncio.Lock] = {}
        self._lock_users: Counter[StageRun] = Counter()

    async def append(self, run: StageRun, blocks: Sequence[LogBlock]) -> None:
        """Adds the blocks whose index is new; raises LogCompleted when the log is completed."""
        if len(blocks) == 1:
            # Most appends need a single statement: the log is open and the block is new.
            (block,) = blocks
            values = {**_run_values(run), "index": block.index, "data": _block_text(block)}
            with suppress(Duplicate, OutcomeUnknown):
                if await self._database.execute(ADD_TO_OPEN_LOG, values):
                    return
        if not await self._database.write(lambda transaction: _append(transaction, run, blocks)):
            file = await self._file(run)
            await self._database.write(
                lambda transaction: _ensure_head(transaction, run, file or LogFile())
            )
            await self._database.write(lambda transaction: _append(transaction, run, blocks))

    async def checkpoint(
        self, run: StageRun, blocks: Sequence[LogBlock], *, completed: bool
    ) -> None:
        """Adds the blocks whose index is new and moves all blocks to the filestore."""
        if completed and await self._write_complete(run, blocks):
            return
        async with self._lock_log(run):
            for _ in range(REPLACE_ATTEMPTS):
                with suppress(FileChanged):
                    await self._move_to_file(run, blocks, completed=completed)
                    return
            raise Unavailable(f"other replicas are writing {log_path(run)}", hint="try again later")

    async def _write_complete(self, run: StageRun, blocks: Sequence[LogBlock]) -> bool:
        """Writes a complete log, unless there is a part of it already.

        It needs no lease: only one writer creates the file, and only one the head.
        """
        if await self._database.lookup(HEAD, _run_values(run)):
            return False
        if await self._file(run) is not None:
            return False
        for block in blocks:
            _block_text(block)
        log = LogFile(merge_blocks(blocks), completed=True)
        content = await asyncio.to_thread(format_log, log)
        values = {**_run_values(run), "done": True, "last": log.last_index}
        with suppress(FileChanged, Duplicate, OutcomeUnknown):
            await self._files.replace(log_path(run), content, version="")
            await self._database.execute(ADD_HEAD, values)
            return True
        return False

    async def _move_to_file(
        self, run: StageRun, blocks: Sequence[LogBlock], *, completed: bool
    ) -> None:
        file, version = await self._versioned_file(run)
        before = file or LogFile()
        # A piped that got no answer repeats its last checkpoint, which is no error.
        saved = {block.index for block in before.blocks}
        if before.completed and any(block.index not in saved for block in blocks):
            raise LogCompleted

        def collect(transaction: Transaction) -> LogFile:
            """Adds the new blocks, closes the log if requested, and returns all rows."""
            head = _ensure_head(transaction, run, before)
            done = head.completed or before.completed or completed
            _add_blocks(transaction, run, blocks)
            values = {**_run_values(run), "done": done, "last": head.last_index_in_file}
            transaction.execute(SET_HEAD, values)
            return LogFile(_blocks(transaction, run, FIRST_INDEX), done)

        rows = await self._database.write(collect)
        log = LogFile(merge_blocks(before.blocks, rows.blocks), rows.completed)
        if file is None or log != before:
            content = await asyncio.to_thread(format_log, log)
            await self._files.replace(log_path(run), content, version=version)
        await self._database.write(
            lambda transaction: _remove_saved(transaction, run, log, rows.blocks)
        )

    async def reopen(self, run: StageRun, blocks: Sequence[LogBlock]) -> bool:
        """Opens a completed log for later blocks; False if none of these is later."""
        async with self._lock_log(run):
            for _ in range(REPLACE_ATTEMPTS):
                with suppress(FileChanged):
                    return await self._reopen(run, blocks)
            raise Unavailable(f"other replicas are writing {log_path(run)}", hint="try again later")

    async def _reopen(self, run: StageRun, blocks: Sequence[LogBlock]) -> bool:
        file, version = await self._versioned_file(run)
        before = file or LogFile()
        if all(block.index <= before.last_index for block in blocks):
            return False
        if before.completed:
            opened = replace(before, completed=False)
            content = await asyncio.to_thread(format_log, opened)
            await self._files.replace(log_path(run), content, version=version)
        # After a kill in between the log still refuses blocks, and is opened with the next ones.
        values = {**_run_values(run), "done": False, "last": before.last_index}
        await self._database.write(
            lambda transaction: (
                _ensure_head(transaction, run, before),
                transaction.execute(SET_HEAD, values),
            )
        )
        return True

    async def read(self, run: StageRun, *, from_index: int = 0) -> StageLogPart:
        """Returns the blocks from that index on; raises NotFound when nothing was ever logged."""
        head, rows = await self._database.read(
            lambda transaction: (_head(transaction, run), _blocks(transaction, run, from_index))
        )
        if head is not None and head.last_index_in_file < from_index:
            return StageLogPart(rows, head.completed)
        file = await self._file(run)
        if head is None and file is None:
            raise NotFound("Stage log is not found")
        saved = file or LogFile()
        blocks = merge_blocks((b for b in saved.blocks if b.index >= from_index), rows)
        return StageLogPart(blocks, saved.completed or (head is not None and head.completed))

    async def read_whole(self, run: StageRun) -> StoredLog:
        """Returns the whole log, of which only what is used is decoded; raises NotFound.

        A log may have a hundred thousand blocks, and a page shows a few of them.
        """
        head, rows = await self._database.read(
            lambda transaction: (_head(transaction, run), _blocks(transaction, run, FIRST_INDEX))
        )
        path = log_path(run)
        try:
            content = (await self._files.get_versioned(path)).content
        except NotFound:
            if head is None:
                raise NotFound("Stage log is not found") from None
            content = b""
        completed = head is not None and head.completed
        return await asyncio.to_thread(StoredLog.merged, content, rows, path, completed=completed)

    async def _file(self, run: StageRun) -> LogFile | None:
        return (await self._versioned_file(run))[0]

    async def _versioned_file(self, run: StageRun) -> tuple[LogFile | None, str]:
        path = log_path(run)
        try:
            file = await self._files.get_versioned(path)
        except NotFound:
            return None, ""
        return await asyncio.to_thread(parse_log, file.content, path), file.version

    @asynccontextmanager
    async def _lock_log(self, run: StageRun) -> AsyncIterator[None]:
        """Holds the lock of a log in this process and its lease among the replicas."""
        lock = self._locks.setdefault(run, asyncio.Lock())
        self._lock_users[run] += 1
        path = log_path(run)
        try:
            async with lock:
                for _ in range(LEASE_ATTEMPTS):
                    if await self._leases.acquire(path, self._holder, seconds=LEASE_SECONDS):
                        break
                    await asyncio.sleep(LEASE_RETRY_SECONDS)
                else:
                    raise Unavailable(f"another replica is writing {path}", hint="try again later")
                try:
                    yield
                finally:
                    await self._leases.release(path, self._holder)
        finally:
            self._lock_users[run] -= 1
            if not self._lock_users[run]:
                del self._lock_users[run], self._locks[run]


class LogCompleted(Conflict):
    """A log is completed, and accepts no further blocks."""

    def __init__(self) -> None:
        super().__init__("could not append the logs because the stage was already completed")


def _run_values(run: StageRun) -> dict[str, Value]:
    if len(run.deployment_id) > MAX_DEPLOYMENT_ID or len(run.stage_id) > MAX_STAGE_ID:
        raise UserMistake("the id of a deployment or stage is too long to have a log")
    return {
        "deployment": run.deployment_id,
        "stage": run.stage_id,
        "retried": run.retried_count,
    }


def _head(transaction: Transaction, run: StageRun, *, locked: bool = False) -> Head | None:
    rows = transaction.query(LOCKED_HEAD if locked else HEAD, _run_values(run))
    return Head(bool(rows[0][0]), rows[0][1]) if rows else None


def _blocks(transaction: Transaction, run: StageRun, low: int) -> tuple[LogBlock, ...]:
    rows = transaction.query(BLOCKS, {**_run_values(run), "low": low})
    return tuple(from_json(data, LogBlock) for (data,) in rows)


def _ensure_head(transaction: Transaction, run: StageRun, file: LogFile) -> Head:
    """Returns the head of the log; creates it from the file if there is none yet."""
    head = _head(transaction, run, locked=True)
    if head is not None:
        return head
    values = {**_run_values(run), "done": file.completed, "last": file.last_index}
    transaction.execute(ADD_HEAD, values)
    return Head(file.completed, file.last_index)


def _append(transaction: Transaction, run: StageRun, blocks: Sequence[LogBlock]) -> bool:
    """Adds rows for new blocks; False when the log has no head yet."""
    head = _head(transaction, run, locked=True)
    if head is None:
        return False
    if head.completed:
        raise LogCompleted
    _add_blocks(transaction, run, blocks)
    return True


def _add_blocks(transaction: Transaction, run: StageRun, blocks: Sequence[LogBlock]) -> None:
    if not blocks:
        return
    low, high = min(b.index for b in blocks), max(b.index for b in blocks)
    values = _run_values(run)
    seen = {row[0] for row in transaction.query(INDEXES, {**values, "low": low, "high": high})}
    new: list[Values] = []
    for block in blocks:
        if block.index not in seen:
            seen.add(block.index)
            new.append({**values, "index": block.index, "data": _block_text(block)})
    if new:
        transaction.execute_many(ADD_BLOCK, new)


def _block_text(block: LogBlock) -> str:
    text = to_json(block)
    if len(text.encode()) > MAX_BYTES:
        raise UserMistake(f"block {block.index} of the log is larger than {MAX_BYTES} bytes")
    return text


def _remove_saved(
    transaction: Transaction, run: StageRun, log: LogFile, blocks: Sequence[LogBlock]
) -> None:
    """Removes the rows whose blocks are in the file now; newer rows stay."""
    values = _run_values(run)
    for start in range(0, len(blocks), BLOCKS_PER_DELETE):
        part = blocks[start : start + BLOCKS_PER_DELETE]
        # The last index is repeated for the remaining parameters.
        padded = [part[min(i, len(part) - 1)].index for i in range(BLOCKS_PER_DELETE)]
        indexes = {f"index_{i}": index for i, index in enumerate(padded)}
        transaction.execute(REMOVE_BLOCKS, {**values, **indexes})
    transaction.execute(SET_LAST_INDEX, {**values, "last": log.last_index})


def log_path(run: StageRun) -> str:
    return f"log/{run.deployment_id}/{run.stage_id}/{run.retried_count}.txt"
