# SPDX-License-Identifier: Apache-2.0
"""Stage logs: new blocks as rows, checkpoints as files.

Blocks move from rows to the file in one order: the file is written first, then the rows go. A
reader takes the rows first, then the file. So a block is always in at least one of the two,
whenever a process is killed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Table, and_, delete, false, insert, select, update

from pipecd.controlplane.datastore.database import Database, Duplicate, OutcomeUnknown, Transaction
from pipecd.controlplane.datastore.expressions import Value, Values, given
from pipecd.controlplane.datastore.leases import Leases
from pipecd.controlplane.datastore.limits import MAX_BYTES
from pipecd.controlplane.datastore.schema import EXT_LOG_BLOCK, EXT_STAGE_LOG
from pipecd.controlplane.filestore import Files
from pipecd.model.document import from_json, to_json
from pipecd.model.errors import Conflict, NotFound, Unavailable, UserMistake
from pipecd.model.ids import new_id
from pipecd.proto.model.logblock_pb2 import LogBlock

LEASE_SECONDS = 30
LEASE_ATTEMPTS = 40
LEASE_RETRY_SECONDS = 0.05
FIRST_INDEX = -(2**63)
# The last line of the file of a completed log.
END = b"EOL"
MAX_DEPLOYMENT_ID, MAX_STAGE_ID = 64, 255


def _of_run(table: Table) -> ColumnElement[bool]:
    return and_(
        table.c.DeploymentId == given("deployment"),
        table.c.StageId == given("stage"),
        table.c.RetriedCount == given("retried"),
    )


RUN_COLUMNS: dict[str, Any] = {
    "DeploymentId": given("deployment"),
    "StageId": given("stage"),
    "RetriedCount": given("retried"),
}
HEAD_COLUMNS = {"Completed": given("done"), "LastIndexInFile": given("last")}
HEAD = select(EXT_STAGE_LOG.c.Completed, EXT_STAGE_LOG.c.LastIndexInFile).where(
    _of_run(EXT_STAGE_LOG)
)
LOCKED_HEAD = HEAD.with_for_update()
ADD_HEAD = insert(EXT_STAGE_LOG).values(**RUN_COLUMNS, **HEAD_COLUMNS)
SET_HEAD = update(EXT_STAGE_LOG).where(_of_run(EXT_STAGE_LOG)).values(**HEAD_COLUMNS)
BLOCKS = (
    select(EXT_LOG_BLOCK.c.Data)
    .where(_of_run(EXT_LOG_BLOCK), EXT_LOG_BLOCK.c.BlockIndex >= given("low"))
    .order_by(EXT_LOG_BLOCK.c.BlockIndex)
)
INDEXES = select(EXT_LOG_BLOCK.c.BlockIndex).where(
    _of_run(EXT_LOG_BLOCK),
    EXT_LOG_BLOCK.c.BlockIndex >= given("low"),
    EXT_LOG_BLOCK.c.BlockIndex <= given("high"),
)
ADD_BLOCK = insert(EXT_LOG_BLOCK).values(
    **RUN_COLUMNS, BlockIndex=given("index"), Data=given("data")
)
# Holds the head, so that the log is not closed in the meantime.
ADD_TO_OPEN_LOG = insert(EXT_LOG_BLOCK).from_select(
    [*RUN_COLUMNS, "BlockIndex", "Data"],
    select(
        EXT_STAGE_LOG.c.DeploymentId,
        EXT_STAGE_LOG.c.StageId,
        EXT_STAGE_LOG.c.RetriedCount,
        given("index"),
        given("data"),
    )
    .where(_of_run(EXT_STAGE_LOG), EXT_STAGE_LOG.c.Completed == false())
    .with_for_update(),
)
BLOCKS_PER_DELETE = 64
REMOVE_BLOCKS = delete(EXT_LOG_BLOCK).where(
    _of_run(EXT_LOG_BLOCK),
    EXT_LOG_BLOCK.c.BlockIndex.in_([given(f"index_{i}") for i in range(BLOCKS_PER_DELETE)]),
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
class LogFile:
    """The content of a log file: its blocks by index, and whether the log is completed."""

    blocks: tuple[LogBlock, ...] = ()
    completed: bool = False

    @property
    def last_index(self) -> int:
        return self.blocks[-1].index if self.blocks else -1


@dataclass(frozen=True)
class Head:
    """What the database knows of a log: whether it is closed, and how far its file reaches."""

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
        """Adds the blocks whose index is new; raises Conflict when the log is completed."""
        if len(blocks) == 1 and await self._added(run, blocks[0]):
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
        async with self._exclusive(run):
            file = await self._file(run)
            before = file or LogFile()
            # Repeating the last checkpoint, whose answer was perhaps lost, is no mistake.
            if before.completed and _has_new_blocks(before, blocks):
                raise already_completed()
            waiting = await self._database.write(
                lambda transaction: _collect_blocks(
                    transaction, run, before, blocks, close=completed
                )
            )
            log = LogFile(merge_blocks(before.blocks, waiting.blocks), waiting.completed)
            if file is None or log != before:
                content = await asyncio.to_thread(format_log, log)
                await self._files.put(log_path(run), content)
            await self._database.write(
                lambda transaction: _remove_saved(transaction, run, log, waiting.blocks)
            )

    async def read(self, run: StageRun, *, from_index: int = 0) -> StageLogPart:
        """Returns the blocks from that index on; raises NotFound when nothing was ever logged."""
        head, waiting = await self._database.read(
            lambda transaction: _read_rows(transaction, run, from_index)
        )
        if head is not None and head.last_index_in_file < from_index:
            return StageLogPart(waiting, head.completed)
        file = await self._file(run)
        if head is None and file is None:
            raise NotFound("Stage log is not found")
        saved = file or LogFile()
        blocks = merge_blocks((b for b in saved.blocks if b.index >= from_index), waiting)
        return StageLogPart(blocks, saved.completed or (head is not None and head.completed))

    async def _added(self, run: StageRun, block: LogBlock) -> bool:
        """Whether a block could be added at once: its log is open and it is new."""
        values = {**_run_values(run), "index": block.index, "data": _block_text(block)}
        try:
            return await self._database.execute(ADD_TO_OPEN_LOG, values) > 0
        except (Duplicate, OutcomeUnknown):
            return False

    async def _file(self, run: StageRun) -> LogFile | None:
        path = log_path(run)
        try:
            content = await self._files.get(path)
        except NotFound:
            return None
        return await asyncio.to_thread(parse_log, content, path)

    @asynccontextmanager
    async def _exclusive(self, run: StageRun) -> AsyncIterator[None]:
        """Lets one checkpoint of a log happen at a time, in this process and among replicas."""
        lock = self._locks.setdefault(run, asyncio.Lock())
        self._lock_users[run] += 1
        try:
            async with lock, self._lease(log_path(run)):
                yield
        finally:
            self._lock_users[run] -= 1
            if not self._lock_users[run]:
                del self._lock_users[run], self._locks[run]

    @asynccontextmanager
    async def _lease(self, name: str) -> AsyncIterator[None]:
        for _ in range(LEASE_ATTEMPTS):
            if await self._leases.acquire(name, self._holder, seconds=LEASE_SECONDS):
                break
            await asyncio.sleep(LEASE_RETRY_SECONDS)
        else:
            raise Unavailable(f"another server is transaction {name}", hint="try again later")
        try:
            yield
        finally:
            await self._leases.release(name, self._holder)


def already_completed() -> Conflict:
    return Conflict("could not append the logs because the stage was already completed")


def _has_new_blocks(log: LogFile, blocks: Sequence[LogBlock]) -> bool:
    saved = {block.index for block in log.blocks}
    return any(block.index not in saved for block in blocks)


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


def _read_rows(
    transaction: Transaction, run: StageRun, low: int
) -> tuple[Head | None, tuple[LogBlock, ...]]:
    return _head(transaction, run), _blocks(transaction, run, low)


def _ensure_head(transaction: Transaction, run: StageRun, file: LogFile) -> Head:
    """The head of the log, made from its file when there is none yet."""
    head = _head(transaction, run, locked=True)
    if head is not None:
        return head
    values = {**_run_values(run), "done": file.completed, "last": file.last_index}
    transaction.execute(ADD_HEAD, values)
    return Head(file.completed, file.last_index)


def _append(transaction: Transaction, run: StageRun, blocks: Sequence[LogBlock]) -> bool:
    """Adds rows for new blocks; False when the log is not saved here yet."""
    head = _head(transaction, run, locked=True)
    if head is None:
        return False
    if head.completed:
        raise already_completed()
    _add_blocks(transaction, run, blocks)
    return True


def _collect_blocks(
    transaction: Transaction,
    run: StageRun,
    file: LogFile,
    blocks: Sequence[LogBlock],
    *,
    close: bool,
) -> LogFile:
    """Adds rows for new blocks, closes the log for later ones, and gives all that wait."""
    head = _ensure_head(transaction, run, file)
    completed = head.completed or file.completed or close
    _add_blocks(transaction, run, blocks)
    values = {**_run_values(run), "done": completed, "last": head.last_index_in_file}
    transaction.execute(SET_HEAD, values)
    return LogFile(_blocks(transaction, run, FIRST_INDEX), completed)


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
    """Removes the rows that the file holds now; blocks that came later stay."""
    values = _run_values(run)
    for start in range(0, len(blocks), BLOCKS_PER_DELETE):
        part = blocks[start : start + BLOCKS_PER_DELETE]
        # The last one fills the places that are left over.
        padded = [part[min(i, len(part) - 1)].index for i in range(BLOCKS_PER_DELETE)]
        indexes = {f"index_{i}": index for i, index in enumerate(padded)}
        transaction.execute(REMOVE_BLOCKS, {**values, **indexes})
    transaction.execute(SET_HEAD, {**values, "done": log.completed, "last": log.last_index})


def log_path(run: StageRun) -> str:
    return f"log/{run.deployment_id}/{run.stage_id}/{run.retried_count}.txt"


def merge_blocks(*sources: Iterable[LogBlock]) -> tuple[LogBlock, ...]:
    """Every block once, by index; of two with the same index the earlier source wins."""
    merged: dict[int, LogBlock] = {}
    for blocks in sources:
        for block in blocks:
            merged.setdefault(block.index, block)
    return tuple(merged[index] for index in sorted(merged))


def format_log(log: LogFile) -> bytes:
    lines = "".join(f"{to_json(block)}\n" for block in log.blocks)
    return lines.encode() + (END if log.completed else b"")


def parse_log(content: bytes, path: str) -> LogFile:
    # Only the line feed ends a line; a log may hold any other separator, and be of any length.
    lines = content.split(b"\n")
    completed = lines[-1] == END
    blocks: list[LogBlock] = []
    for number, line in enumerate(lines[:-1] if completed else lines, start=1):
        if not line:
            continue
        try:
            blocks.append(from_json(line, LogBlock))
        except ValueError as e:
            raise Conflict(
                f"the log file {path} is damaged at line {number}",
                hint="remove that line from the file",
            ) from e
    return LogFile(merge_blocks(blocks), completed)
