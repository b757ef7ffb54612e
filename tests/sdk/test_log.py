# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G003, G004 - a stage log takes whole lines, it is no logger
"""A stage log arrives complete, in order and soon, also when the control plane is unavailable."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipecd.model.errors import Conflict, Unavailable
from pipecd.model.severity import LogSeverity
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.sdk.log import MAX_LOG_LENGTH, TRUNCATED, FlushTimeouts, StageLog
from pipecd.wire.validation import check

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class LogServer:
    """Stores blocks by index as a control plane does, and may be unavailable."""

    outages: list[bool] = field(default_factory=list[bool])
    is_unavailable: bool = False
    is_closed: bool = False
    calls: list[tuple[str, int, bool]] = field(default_factory=list[tuple[str, int, bool]])
    cached: dict[int, LogBlock] = field(default_factory=dict[int, LogBlock])
    saved: dict[int, LogBlock] = field(default_factory=dict[int, LogBlock])
    completed: bool = False
    received: asyncio.Event = field(default_factory=asyncio.Event)

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        self._receive(request, "report", False)
        self.cached.update({b.index: b for b in request.blocks})
        return pb.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        self._receive(request, "checkpoint", request.completed)
        for block in request.blocks:
            self.saved.setdefault(block.index, block)
        self.completed = request.completed
        return pb.ReportStageLogsFromLastCheckpointResponse()

    def _receive(
        self,
        request: pb.ReportStageLogsRequest | pb.ReportStageLogsFromLastCheckpointRequest,
        kind: str,
        completed: bool,
    ) -> None:
        check(request)
        if self.is_unavailable or (self.outages and self.outages.pop(0)):
            raise Unavailable("connection refused")
        if self.is_closed or self.completed:
            raise Conflict("the stage was already completed")
        self.calls.append((kind, len(request.blocks), completed))
        self.received.set()

    @property
    def lines(self) -> list[str]:
        return [self.saved[index].log for index in sorted(self.saved)]


def log_to(server: LogServer, monotonic: Callable[[], float] = time.monotonic) -> StageLog:
    return StageLog(server, "d", "s", now=lambda: NOW, monotonic=monotonic)


async def test_the_first_line_is_a_checkpoint_and_the_next_ones_are_reports() -> None:
    server = LogServer()
    async with log_to(server).kept() as log:
        log.info("one")
        await server.received.wait()
        assert server.calls == [("checkpoint", 1, False)]
        server.received.clear()
        written = asyncio.get_running_loop().time()
        log.success("two")
        log.error("three")
        await server.received.wait()
        assert asyncio.get_running_loop().time() - written < 0.3
        assert server.calls[1:] == [("report", 2, False)]
    assert server.calls[2:] == [("checkpoint", 2, True)]
    assert server.lines == ["one", "two", "three"]
    assert [LogSeverity(b.severity).name for b in server.saved.values()] == [
        "INFO",
        "SUCCESS",
        "ERROR",
    ]


async def test_every_two_minutes_there_is_a_checkpoint() -> None:
    server, clock = LogServer(), [0.0]
    async with log_to(server, lambda: clock[0]).kept() as log:
        log.info("one")
        await server.received.wait()
        log.info("two")
        clock[0] += 121
        log.info("three")
        server.received.clear()
        await server.received.wait()
        assert server.calls[-1] == ("checkpoint", 2, False)
    assert server.calls[-1] == ("checkpoint", 0, True)


async def test_a_stage_that_wrote_nothing_has_no_log() -> None:
    server = LogServer()
    async with log_to(server).kept():
        await asyncio.sleep(0)
    assert server.calls == []


async def test_indexes_grow_from_the_time_of_the_log() -> None:
    server = LogServer()
    async with log_to(server).kept() as log:
        for number in range(3):
            log.info(str(number))
    first = int(NOW.timestamp()) * 1_000_000 + 1
    assert sorted(server.saved) == [first, first + 1, first + 2]
    assert {b.created_at for b in server.saved.values()} == {int(NOW.timestamp())}


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        pytest.param("", [" "], id="an empty line is padded, as the control plane rejects it"),
        pytest.param("a\n\nb", ["a", " ", "b"], id="several lines"),
        pytest.param("x" * 70_000, ["x" * 32_768, "x" * 32_768, "x" * 4_464], id="a long line is split"),
        pytest.param("bad \udc80 byte", ["bad ? byte"], id="invalid Unicode is replaced"),
    ],
)  # fmt: skip
async def test_a_text_becomes_lines(written: str, lines: list[str]) -> None:
    server = LogServer()
    async with log_to(server).kept() as log:
        log.info(written)
    assert server.lines == lines


async def test_the_log_can_be_written_like_a_file() -> None:
    server = LogServer()
    async with log_to(server).kept() as log:
        for piece in ("one\ntw", "o", "\n", "three"):
            log.write(piece)
    assert server.lines == ["one", "two", "three"]


async def test_lines_are_retried_while_the_control_plane_is_unavailable() -> None:
    server = LogServer(is_unavailable=True)
    async with log_to(server).kept() as log:
        for number in range(50):
            log.info(f"line {number}")
            await asyncio.sleep(0.01)
            server.is_unavailable = number < 45
    assert server.lines == [f"line {number}" for number in range(50)]
    assert server.completed


async def test_a_closed_log_is_not_retried() -> None:
    server = LogServer(is_closed=True)
    async with asyncio.timeout(1), log_to(server).kept() as log:
        log.info("too late")
        await asyncio.sleep(0.05)
        log.info("much too late")
    assert server.lines == []


async def test_a_stage_ends_after_the_timeout_when_the_control_plane_is_unavailable() -> None:
    server = LogServer(is_unavailable=True)
    async with asyncio.timeout(2), log_to(server).kept(FlushTimeouts(completed=0.05)) as log:
        log.info("not sent")
    assert server.lines == []


async def test_a_stopped_stage_leaves_its_log_open() -> None:
    server, written = LogServer(), asyncio.Event()

    async def stage() -> None:
        async with log_to(server).kept() as log:
            log.info("working")
            written.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(stage())
    await written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (server.lines, server.completed) == (["working"], False)
    # The caller that stopped it closes the log with the reason.
    async with StageLog(server, "d", "s").kept() as log:
        log.error("Cancelled by ann")
    assert (server.lines, server.completed) == (["working", "Cancelled by ann"], True)


async def test_the_log_raises_the_error_of_the_stage_unchanged() -> None:
    server = LogServer()
    with pytest.raises(ZeroDivisionError):
        async with log_to(server).kept() as log:
            log.info("before")
            raise ZeroDivisionError
    assert (server.lines, server.completed) == (["before"], False)


async def test_many_lines_are_sent_in_batches() -> None:
    server = LogServer()
    async with log_to(server).kept() as log:
        for number in range(5000):
            log.info(f"{number} " + "x" * 1000)
    assert len(server.lines) == 5000
    assert max(size for _, size, _ in server.calls) <= 1000
    assert [completed for _, _, completed in server.calls].count(True) == 1


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(alphabet="ab \n", max_size=4), max_size=20),
    outages=st.lists(st.booleans(), max_size=4),
)
def test_the_log_is_complete_after_any_outages(texts: list[str], outages: list[bool]) -> None:
    async def written() -> LogServer:
        server = LogServer(outages=list(outages))
        async with log_to(server).kept() as log:
            for text in texts:
                log.info(text)
                await asyncio.sleep(0)
        return server

    server = asyncio.run(written())
    assert server.lines == [line or " " for text in texts for line in text.split("\n")]
    assert server.completed == bool(texts)


async def test_a_log_beyond_the_limit_is_truncated_except_for_errors() -> None:
    server = LogServer()
    async with StageLog(server, "d", "s").kept() as log:
        for _ in range(20 * 32):
            log.info("x" * (32 << 10))
        log.error("the reason")
    lines = [block.log for _, block in sorted(server.saved.items())]
    assert lines[-2:] == [TRUNCATED, "the reason"]
    assert sum(len(line) for line in lines) <= MAX_LOG_LENGTH + 200
