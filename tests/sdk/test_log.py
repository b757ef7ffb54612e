# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: G003, G004 - a stage log takes whole lines, it is no logger
"""A stage log arrives in order and complete, soon, whatever the control plane does."""

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
from pipecd.sdk.log import CUT, LONGEST_LOG, Patience, StageLog
from pipecd.wire.validation import check

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Keeper:
    """The other side: keeps blocks by index as a control plane does, and may be away."""

    away: list[bool] = field(default_factory=list[bool])
    is_away: bool = False
    is_closed: bool = False
    calls: list[tuple[str, int, bool]] = field(default_factory=list[tuple[str, int, bool]])
    cached: dict[int, LogBlock] = field(default_factory=dict[int, LogBlock])
    saved: dict[int, LogBlock] = field(default_factory=dict[int, LogBlock])
    completed: bool = False
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def ReportStageLogs(
        self, request: pb.ReportStageLogsRequest
    ) -> pb.ReportStageLogsResponse:
        self._take(request, "report", False)
        self.cached.update({b.index: b for b in request.blocks})
        return pb.ReportStageLogsResponse()

    async def ReportStageLogsFromLastCheckpoint(
        self, request: pb.ReportStageLogsFromLastCheckpointRequest
    ) -> pb.ReportStageLogsFromLastCheckpointResponse:
        self._take(request, "checkpoint", request.completed)
        for block in request.blocks:
            self.saved.setdefault(block.index, block)
        self.completed = request.completed
        return pb.ReportStageLogsFromLastCheckpointResponse()

    def _take(
        self,
        request: pb.ReportStageLogsRequest | pb.ReportStageLogsFromLastCheckpointRequest,
        kind: str,
        completed: bool,
    ) -> None:
        check(request)
        if self.is_away or (self.away and self.away.pop(0)):
            raise Unavailable("gone fishing")
        if self.is_closed or self.completed:
            raise Conflict("the stage was already completed")
        self.calls.append((kind, len(request.blocks), completed))
        self.heard.set()

    @property
    def lines(self) -> list[str]:
        return [self.saved[index].log for index in sorted(self.saved)]


def log_to(keeper: Keeper, monotonic: Callable[[], float] = time.monotonic) -> StageLog:
    return StageLog(keeper, "d", "s", now=lambda: NOW, monotonic=monotonic)


async def test_the_first_line_is_a_checkpoint_and_the_next_ones_are_reports() -> None:
    keeper = Keeper()
    async with log_to(keeper).kept() as log:
        log.info("one")
        await keeper.heard.wait()
        assert keeper.calls == [("checkpoint", 1, False)]
        keeper.heard.clear()
        written = asyncio.get_running_loop().time()
        log.success("two")
        log.error("three")
        await keeper.heard.wait()
        assert asyncio.get_running_loop().time() - written < 0.3
        assert keeper.calls[1:] == [("report", 2, False)]
    assert keeper.calls[2:] == [("checkpoint", 2, True)]
    assert keeper.lines == ["one", "two", "three"]
    assert [LogSeverity(b.severity).name for b in keeper.saved.values()] == [
        "INFO",
        "SUCCESS",
        "ERROR",
    ]


async def test_every_two_minutes_everything_is_saved() -> None:
    keeper, clock = Keeper(), [0.0]
    async with log_to(keeper, lambda: clock[0]).kept() as log:
        log.info("one")
        await keeper.heard.wait()
        log.info("two")
        clock[0] += 121
        log.info("three")
        keeper.heard.clear()
        await keeper.heard.wait()
        assert keeper.calls[-1] == ("checkpoint", 2, False)
    assert keeper.calls[-1] == ("checkpoint", 0, True)


async def test_a_stage_that_wrote_nothing_has_no_log() -> None:
    keeper = Keeper()
    async with log_to(keeper).kept():
        await asyncio.sleep(0)
    assert keeper.calls == []


async def test_indexes_grow_from_the_time_of_the_log() -> None:
    keeper = Keeper()
    async with log_to(keeper).kept() as log:
        for number in range(3):
            log.info(str(number))
    first = int(NOW.timestamp()) * 1_000_000 + 1
    assert sorted(keeper.saved) == [first, first + 1, first + 2]
    assert {b.created_at for b in keeper.saved.values()} == {int(NOW.timestamp())}


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        pytest.param("", [" "], id="an empty line is padded, as the wire refuses it"),
        pytest.param("a\n\nb", ["a", " ", "b"], id="lines are told apart"),
        pytest.param("x" * 70_000, ["x" * 32_768, "x" * 32_768, "x" * 4_464], id="a long line is cut"),
        pytest.param("bad \udc80 byte", ["bad ? byte"], id="what is no text is replaced"),
    ],
)  # fmt: skip
async def test_lines(written: str, kept: list[str]) -> None:
    keeper = Keeper()
    async with log_to(keeper).kept() as log:
        log.info(written)
    assert keeper.lines == kept


async def test_the_log_is_a_stream_too() -> None:
    keeper = Keeper()
    async with log_to(keeper).kept() as log:
        for piece in ("one\ntw", "o", "\n", "three"):
            log.write(piece)
    assert keeper.lines == ["one", "two", "three"]


async def test_nothing_is_lost_while_the_control_plane_is_away() -> None:
    keeper = Keeper(is_away=True)
    async with log_to(keeper).kept() as log:
        for number in range(50):
            log.info(f"line {number}")
            await asyncio.sleep(0.01)
            keeper.is_away = number < 45
    assert keeper.lines == [f"line {number}" for number in range(50)]
    assert keeper.completed


async def test_a_closed_log_is_not_argued_with() -> None:
    keeper = Keeper(is_closed=True)
    async with asyncio.timeout(1), log_to(keeper).kept() as log:
        log.info("too late")
        await asyncio.sleep(0.05)
        log.info("much too late")
    assert keeper.lines == []


async def test_a_control_plane_that_stays_away_does_not_hold_the_stage_forever() -> None:
    keeper = Keeper(is_away=True)
    async with asyncio.timeout(2), log_to(keeper).kept(Patience(completed=0.05)) as log:
        log.info("unheard")
    assert keeper.lines == []


async def test_a_stopped_stage_leaves_its_log_open() -> None:
    keeper, written = Keeper(), asyncio.Event()

    async def stage() -> None:
        async with log_to(keeper).kept() as log:
            log.info("working")
            written.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(stage())
    await written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (keeper.lines, keeper.completed) == (["working"], False)
    # Whoever stopped it closes the log with the reason.
    async with StageLog(keeper, "d", "s").kept() as log:
        log.error("Cancelled by ann")
    assert (keeper.lines, keeper.completed) == (["working", "Cancelled by ann"], True)


async def test_an_error_in_the_stage_is_not_changed_by_the_log() -> None:
    keeper = Keeper()
    with pytest.raises(ZeroDivisionError):
        async with log_to(keeper).kept() as log:
            log.info("before")
            raise ZeroDivisionError
    assert (keeper.lines, keeper.completed) == (["before"], False)


async def test_a_chatty_stage_is_sent_in_bearable_portions() -> None:
    keeper = Keeper()
    async with log_to(keeper).kept() as log:
        for number in range(5000):
            log.info(f"{number} " + "x" * 1000)
    assert len(keeper.lines) == 5000
    assert max(size for _, size, _ in keeper.calls) <= 1000
    assert [completed for _, _, completed in keeper.calls].count(True) == 1


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    texts=st.lists(st.text(alphabet="ab \n", max_size=4), max_size=20),
    away=st.lists(st.booleans(), max_size=4),
)
def test_whatever_fails_the_log_is_what_was_written(texts: list[str], away: list[bool]) -> None:
    async def written() -> Keeper:
        keeper = Keeper(away=list(away))
        async with log_to(keeper).kept() as log:
            for text in texts:
                log.info(text)
                await asyncio.sleep(0)
        return keeper

    keeper = asyncio.run(written())
    assert keeper.lines == [line or " " for text in texts for line in text.split("\n")]
    assert keeper.completed == bool(texts)


async def test_a_flood_is_cut_and_the_ending_is_kept() -> None:
    keeper = Keeper()
    async with StageLog(keeper, "d", "s").kept() as log:
        for _ in range(20 * 32):
            log.info("x" * (32 << 10))
        log.error("the reason")
    lines = [block.log for _, block in sorted(keeper.saved.items())]
    assert lines[-2:] == [CUT, "the reason"]
    assert sum(len(line) for line in lines) <= LONGEST_LOG + 200
