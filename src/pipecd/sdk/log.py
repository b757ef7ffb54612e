# SPDX-License-Identifier: Apache-2.0
"""Sends the log of one stage to the control plane.

Writing a line does not wait. Lines are sent within a fraction of a second, and retried in the same
order while the control plane is unavailable. The control plane stores a report only in its cache.
So at the start, every two minutes and at the end everything since the last checkpoint is sent as
the next checkpoint, which the control plane writes to its file store.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import structlog

from pipecd.model.backoff import Backoff
from pipecd.model.clock import Now, to_unix, utc_now
from pipecd.model.errors import Conflict, PipecdError, Unavailable
from pipecd.model.severity import LogSeverity
from pipecd.proto.model import logblock_pb2
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.sdk.host import LogSink

logger = structlog.get_logger()

# Lines within this time share a request.
_BATCH_WINDOW = 0.2
_CHECKPOINT_INTERVAL = 120.0
_BACKOFF = Backoff(first=0.25, longest=5.0)
# Requests stay far below the message size limit of gRPC servers.
_MAX_BATCH_BLOCKS, _MAX_BATCH_BYTES = 1000, 1 << 20
_MAX_BYTES_WITHOUT_CHECKPOINT = 4 << 20
_MAX_LINE_LENGTH = 32 << 10
# The most that a control plane stores for one stage; errors and successes are logged beyond it.
MAX_LOG_LENGTH = 16 << 20
TRUNCATED = f"The log is truncated here: the stage wrote more than {MAX_LOG_LENGTH >> 20} MiB."


@dataclass(frozen=True)
class FlushTimeouts:
    """How many seconds the end of a stage waits until its last lines are sent.

    `completed` is for a log that is closed, `left_open` for one that the caller closes later.
    """

    completed: float = 60.0
    left_open: float = 5.0


class Spool(Protocol):
    """Stores lines on disk until they are sent, so that a crash does not lose them."""

    def add(self, *blocks: LogBlock) -> None: ...


@runtime_checkable
class SpoolProvider(Protocol):
    """A host in the same process that offers spools."""

    def spool(self, deployment_id: str, stage_id: str) -> Spool | None: ...


class StageLog:
    """The log of a stage, shown while it runs and afterwards."""

    def __init__(
        self,
        sink: LogSink,
        deployment_id: str,
        stage_id: str,
        *,
        spool: Spool | None = None,
        now: Now = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sink, self._deployment_id, self._stage_id = sink, deployment_id, stage_id
        self._spool = spool
        self._now, self._monotonic = now, monotonic
        # Indexes count from the time, because a resumed stage must not repeat them. Upstream counts
        # from seconds and so loses lines of a stage that wrote more than one a second.
        self._next_index = int(now().timestamp() * 1_000_000) + 1
        self._unsaved: list[LogBlock] = []
        # Lines that the spool receives before the event loop waits.
        self._unspooled: list[LogBlock] = []
        self._unsaved_bytes = 0
        self._written = 0
        self._sent = 0
        self._partial = ""
        self._has_lines = asyncio.Event()
        self._last_checkpoint: float | None = None
        self._is_rejected = False

    def info(self, text: str) -> None:
        """Adds a line of level INFO."""
        self._add(text, LogSeverity.INFO)

    def success(self, text: str) -> None:
        """Adds a line of level SUCCESS."""
        self._add(text, LogSeverity.SUCCESS)

    def error(self, text: str) -> None:
        """Adds a line of level ERROR."""
        self._add(text, LogSeverity.ERROR)

    def write(self, text: str) -> int:
        """Writes partial output, so that the log can be used as a file."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self.info(line)
        return len(text)

    def flush(self) -> None:
        """Ends the line that `write` has begun."""
        if self._partial:
            partial, self._partial = self._partial, ""
            self.info(partial)

    @asynccontextmanager
    async def kept(
        self, timeouts: FlushTimeouts | None = None, *, closes: bool = True
    ) -> AsyncGenerator["StageLog", None]:
        """Sends the log while the block runs, and closes it at the end with `closes`.

        After an exception or a cancellation the log stays open: either the stage is resumed, or
        the caller that stopped it closes the log with the reason.
        """
        timeouts = timeouts or FlushTimeouts()
        failure: Exception | None = None
        completed = False
        try:
            async with asyncio.TaskGroup() as tasks:
                sending = tasks.create_task(self._keep_sending(), name="stage log")
                try:
                    yield self
                    completed = closes
                except Exception as e:  # noqa: BLE001 - raised again below, outside of the group
                    failure = e
                finally:
                    sending.cancel()
        finally:
            self.flush()
            try:
                timeout = timeouts.completed if completed else timeouts.left_open
                await self._send_rest(completed, timeout)
            except asyncio.CancelledError:
                await self._send_rest(completed, timeouts.left_open)
                raise
        if failure is not None:
            raise failure

    def _add(self, text: str, severity: LogSeverity) -> None:
        if self._is_rejected:
            return
        # Protobuf strings are valid Unicode, and the control plane rejects an empty line.
        lines = text.encode("utf-8", "replace").decode("utf-8").split("\n")
        for line in (
            whole[start : start + _MAX_LINE_LENGTH] or " "
            for whole in lines
            for start in range(0, max(len(whole), 1), _MAX_LINE_LENGTH)
        ):
            before, self._written = self._written, self._written + len(line)
            if self._written > MAX_LOG_LENGTH and severity is LogSeverity.INFO:
                if before > MAX_LOG_LENGTH:
                    continue
                line = TRUNCATED  # noqa: PLW2901 - replaces the first line beyond the limit
            block = LogBlock(
                index=self._next_index,
                log=line,
                severity=logblock_pb2.LogSeverity.ValueType(severity),
                created_at=to_unix(self._now()),
            )
            self._next_index += 1
            self._unsaved.append(block)
            if self._spool is not None:
                if not self._unspooled:
                    # What a program prints at once is written at once.
                    asyncio.get_running_loop().call_soon(self._spool_lines)
                self._unspooled.append(block)
            self._unsaved_bytes += len(line)
        self._has_lines.set()

    def _spool_lines(self) -> None:
        if self._spool is not None and self._unspooled:
            blocks, self._unspooled = self._unspooled, []
            self._spool.add(*blocks)

    async def _keep_sending(self) -> None:
        pauses = iter(_BACKOFF)
        while not self._is_rejected:
            # A new line is sent soon, and reported lines with the next checkpoint.
            checkpoint_due = None
            if self._last_checkpoint is not None and self._unsaved:
                elapsed = self._monotonic() - self._last_checkpoint
                checkpoint_due = max(_CHECKPOINT_INTERVAL - elapsed, 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(checkpoint_due):
                    await self._has_lines.wait()
            # The first lines too: the log of a short stage then is one request.
            await asyncio.sleep(_BATCH_WINDOW)
            self._has_lines.clear()
            try:
                await self._send(completed=False)
                pauses = iter(_BACKOFF)
            except Unavailable as e:
                pause = next(pauses)
                logger.warning(
                    "stage log not sent, retrying",
                    stage=self._stage_id,
                    retry_in=f"{pause:.1f}s",
                    error=str(e),
                )
                self._has_lines.set()
                await asyncio.sleep(pause)

    async def _send_rest(self, completed: bool, seconds: float) -> None:
        pauses = iter(_BACKOFF)
        try:
            async with asyncio.timeout(seconds):
                while not self._is_rejected:
                    try:
                        await self._send(completed=completed, checkpoint=True)
                    except Unavailable:
                        await asyncio.sleep(next(pauses))
                    else:
                        return
        except TimeoutError:
            logger.warning("last lines of the stage log not sent in time", stage=self._stage_id)

    async def _send(self, *, completed: bool, checkpoint: bool = False) -> None:
        if not self._unsaved and (self._last_checkpoint is None or not completed):
            return  # A stage that wrote nothing has no log.
        self._spool_lines()
        last = self._last_checkpoint
        is_checkpoint = (
            checkpoint
            or last is None
            or self._monotonic() - last >= _CHECKPOINT_INTERVAL
            or self._unsaved_bytes > _MAX_BYTES_WITHOUT_CHECKPOINT
        )
        try:
            if is_checkpoint:
                await self._send_checkpoint(completed=completed)
            else:
                await self._send_report()
        except Unavailable:
            raise
        except PipecdError as e:
            self._is_rejected = True
            event = (
                "stage log is already closed" if isinstance(e, Conflict) else "stage log rejected"
            )
            logger.warning(event, stage=self._stage_id, error=str(e))

    async def _send_checkpoint(self, *, completed: bool) -> None:
        remaining = len(self._unsaved)
        for blocks in in_batches(list(self._unsaved)):
            remaining -= len(blocks)
            await self._sink.ReportStageLogsFromLastCheckpoint(
                pb.ReportStageLogsFromLastCheckpointRequest(
                    deployment_id=self._deployment_id,
                    stage_id=self._stage_id,
                    blocks=blocks,
                    completed=completed and not remaining,
                )
            )
            del self._unsaved[: len(blocks)]
            self._unsaved_bytes -= sum(len(b.log) for b in blocks)
            self._sent = max(self._sent - len(blocks), 0)
        self._last_checkpoint = self._monotonic()

    async def _send_report(self) -> None:
        for blocks in in_batches(self._unsaved[self._sent :]):
            if blocks:
                await self._sink.ReportStageLogs(
                    pb.ReportStageLogsRequest(
                        deployment_id=self._deployment_id, stage_id=self._stage_id, blocks=blocks
                    )
                )
                self._sent += len(blocks)


def in_batches(blocks: Sequence[LogBlock]) -> Iterator[list[LogBlock]]:
    """Splits blocks into requests below the size limit; no blocks yield one empty request."""
    batch: list[LogBlock] = []
    size = 0
    for block in blocks:
        if batch and (len(batch) >= _MAX_BATCH_BLOCKS or size + len(block.log) > _MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(block)
        size += len(block.log)
    yield batch
