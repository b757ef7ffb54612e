# SPDX-License-Identifier: Apache-2.0
"""The log of one stage, from the written line to the control plane.

Writing never waits. Lines leave within a fraction of a second while the stage runs; what could not
be sent is kept and sent again in the same order. The control plane keeps a plain report in its
cache only, so every two minutes, at the start and at the end, everything since the last checkpoint
is sent as the next checkpoint, which it writes to its file store.
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

_GATHER = 0.2
_CHECKPOINT_EVERY = 120.0
_BACKOFF = Backoff(first=0.25, longest=5.0)
# A request stays far below the message limit of gRPC servers.
_BLOCKS_AT_ONCE, _BYTES_AT_ONCE = 1000, 1 << 20
_BYTES_WITHOUT_CHECKPOINT = 4 << 20
_LONGEST_LINE = 32 << 10
# More than anybody reads, and as much as a control plane should hold of one stage.
LONGEST_LOG = 16 << 20
CUT = f"The log is cut here: the stage wrote more than {LONGEST_LOG >> 20} MiB."


@dataclass(frozen=True)
class Patience:
    """How long the end of a stage waits for its last lines to arrive, in seconds."""

    completed: float = 60.0
    left_open: float = 5.0


class Spool(Protocol):
    """Spools written lines that may not have been sent yet."""

    def add(self, block: LogBlock) -> None: ...


@runtime_checkable
class SpoolKeeper(Protocol):
    """A host in the same process that spools lines on disk."""

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
        # Upstream counts from the seconds of the clock, so a resumed stage that had written more
        # than a line a second repeats indexes and loses lines; microseconds cannot be overtaken.
        self._next_index = int(now().timestamp() * 1_000_000) + 1
        self._unsaved: list[LogBlock] = []
        self._unsaved_bytes = 0
        self._written = 0
        self._sent = 0
        self._partial = ""
        self._news = asyncio.Event()
        self._last_checkpoint: float | None = None
        self._refused = False

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
        self, patience: Patience | None = None, *, closes: bool = True
    ) -> AsyncGenerator["StageLog", None]:
        """Sends while the block runs and closes the log at its end, unless somebody else will.

        When the block is left by an exception or a cancellation the log stays open: either the
        stage will be resumed, or whoever stopped it knows the reason and closes the log with it.
        """
        patience = patience or Patience()
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
            await self._end(completed=completed, patience=patience)
        if failure is not None:
            raise failure

    def _add(self, text: str, severity: LogSeverity) -> None:
        for line in () if self._refused else _lines(text):
            before, self._written = self._written, self._written + len(line)
            if self._written > LONGEST_LOG and severity is LogSeverity.INFO:
                if before > LONGEST_LOG:
                    continue
                line = CUT  # noqa: PLW2901 - in its place
            block = LogBlock(
                index=self._next_index,
                log=line,
                severity=logblock_pb2.LogSeverity.ValueType(severity),
                created_at=to_unix(self._now()),
            )
            self._next_index += 1
            self._unsaved.append(block)
            if self._spool is not None:
                self._spool.add(block)
            self._unsaved_bytes += len(line)
        self._news.set()

    async def _keep_sending(self) -> None:
        pauses = iter(_BACKOFF)
        while not self._refused:
            await self._until_due()
            try:
                await self._send(completed=False)
                pauses = iter(_BACKOFF)
            except Unavailable as e:
                logger.warning("stage log not sent, keeping it", stage=self._stage_id, error=str(e))
                self._news.set()
                await asyncio.sleep(next(pauses))

    async def _until_due(self) -> None:
        """Waits for a line, or for the checkpoint of lines that were only reported."""
        if self._last_checkpoint is None or not self._unsaved:
            await self._news.wait()
        else:
            due = self._last_checkpoint + _CHECKPOINT_EVERY - self._monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(due, 0)):
                    await self._news.wait()
        if self._last_checkpoint is not None:
            await asyncio.sleep(_GATHER)
        self._news.clear()

    async def _end(self, *, completed: bool, patience: Patience) -> None:
        self.flush()
        try:
            within = patience.completed if completed else patience.left_open
            await self._finish(completed=completed, within=within)
        except asyncio.CancelledError:
            await self._finish(completed=completed, within=patience.left_open)
            raise

    async def _finish(self, *, completed: bool, within: float) -> None:
        pauses = iter(_BACKOFF)
        try:
            async with asyncio.timeout(within):
                while not self._refused:
                    try:
                        await self._send(completed=completed, checkpoint=True)
                    except Unavailable:
                        await asyncio.sleep(next(pauses))
                    else:
                        return
        except TimeoutError:
            logger.warning("the end of a stage log was not sent", stage=self._stage_id)

    async def _send(self, *, completed: bool, checkpoint: bool = False) -> None:
        if not self._unsaved and (self._last_checkpoint is None or not completed):
            return  # A stage that wrote nothing has no log.
        try:
            if checkpoint or self._is_checkpoint_due():
                await self._send_checkpoint(completed=completed)
            else:
                await self._send_report()
        except Unavailable:
            raise
        except PipecdError as e:
            self._refused = True
            told = "stage log was closed before" if isinstance(e, Conflict) else "stage log refused"
            logger.warning(told, stage=self._stage_id, error=str(e))

    def _is_checkpoint_due(self) -> bool:
        last = self._last_checkpoint
        return (
            last is None
            or self._monotonic() - last >= _CHECKPOINT_EVERY
            or self._unsaved_bytes > _BYTES_WITHOUT_CHECKPOINT
        )

    async def _send_checkpoint(self, *, completed: bool) -> None:
        remaining = len(self._unsaved)
        for blocks in _portions(list(self._unsaved)):
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
        for blocks in _portions(self._unsaved[self._sent :]):
            if blocks:
                await self._sink.ReportStageLogs(
                    pb.ReportStageLogsRequest(
                        deployment_id=self._deployment_id, stage_id=self._stage_id, blocks=blocks
                    )
                )
                self._sent += len(blocks)


def _lines(text: str) -> Iterator[str]:
    # Protobuf texts are valid Unicode, and the wire refuses an empty line.
    text = text.encode("utf-8", "replace").decode("utf-8")
    for line in text.split("\n"):
        for start in range(0, max(len(line), 1), _LONGEST_LINE):
            yield line[start : start + _LONGEST_LINE] or " "


def _portions(blocks: Sequence[LogBlock]) -> Iterator[list[LogBlock]]:
    """Splits blocks into requests below the size limit; no blocks yield one empty request."""
    portion: list[LogBlock] = []
    size = 0
    for block in blocks:
        if portion and (len(portion) >= _BLOCKS_AT_ONCE or size + len(block.log) > _BYTES_AT_ONCE):
            yield portion
            portion, size = [], 0
        portion.append(block)
        size += len(block.log)
    yield portion
