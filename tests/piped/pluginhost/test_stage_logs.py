# SPDX-License-Identifier: Apache-2.0
"""Stage logs are spooled on disk until the control plane has received them."""

import asyncio
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pipecd.model.errors import Unavailable
from pipecd.piped.pluginhost.masking import LogMasker, SecretMasks
from pipecd.piped.pluginhost.stage_logs import LogRelay, LogSpool, read_spool
from pipecd.proto.model.logblock_pb2 import LogBlock
from pipecd.proto.plugin import host_pb2 as pb
from pipecd.sdk.log import FlushTimeouts, StageLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deployment" / "stage"


@pytest.fixture
def spool(path: Path) -> LogSpool:
    """A spool that holds four lines."""
    spool = LogSpool(path, LogMasker(SecretMasks(), "deployment"))
    for index in range(4):
        spool.add(LogBlock(index=index, log=f"line {index}\n"))
    return spool


def lines(path: Path) -> list[int]:
    return [block.index for block in read_spool(path)]


def test_lines_are_spooled_until_the_control_plane_has_received_them(
    spool: LogSpool, path: Path
) -> None:
    assert lines(path) == [0, 1, 2, 3]
    spool.forget_through(1)
    assert lines(path) == [2, 3]
    spool.add(LogBlock(index=4, log="line 4\n"))
    assert lines(path) == [2, 3, 4]
    spool.forget_through(4)
    assert lines(path) == []


def test_a_kill_while_lines_are_dropped_leaves_the_others(
    spool: LogSpool, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> NoReturn:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", killed)
        with pytest.raises(SystemExit):
            spool.forget_through(1)
    assert lines(path)[-2:] == [2, 3]


class UnavailableControlPlane:
    """Refuses everything."""

    async def report_stage_logs_from_last_checkpoint(self, _: object) -> None:
        raise Unavailable("connection refused")


class SilentControlPlane:
    """Never answers."""

    async def report_stage_logs_from_last_checkpoint(self, _: object) -> None:
        await asyncio.Event().wait()


async def test_lines_of_a_cancelled_call_are_not_sent_twice() -> None:
    silent: Any = SilentControlPlane()
    relay = LogRelay(silent)

    def checkpoint(
        indexes: range, *, completed: bool
    ) -> pb.ReportStageLogsFromLastCheckpointRequest:
        return pb.ReportStageLogsFromLastCheckpointRequest(
            deployment_id="d",
            stage_id="s",
            blocks=[LogBlock(index=index, log="line") for index in indexes],
            completed=completed,
        )

    for indexes in (range(1), range(1, 3)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await relay.ReportStageLogsFromLastCheckpoint(checkpoint(indexes, completed=False))
    await relay.ReportStageLogsFromLastCheckpoint(checkpoint(range(1, 4), completed=True))
    unsent = relay.take_unsent("d", "s")
    assert [[block.index for block in each.blocks] for each in unsent] == [[0], [1, 2, 3]]
    assert [each.completed for each in unsent] == [False, True]


async def test_lines_that_a_stage_had_no_time_to_hand_over_are_left_to_send(tmp_path: Path) -> None:
    silent: Any = SilentControlPlane()
    relay = LogRelay(silent, logs=lambda deployment: tmp_path / deployment)
    stage_log = StageLog(relay, "d", "s", spool=relay.spool("d", "s"))
    async with stage_log.kept(FlushTimeouts(completed=0.1, left_open=0.1)) as lines:
        for number in range(5000):
            lines.info(f"line {number}")
    unsent = relay.take_unsent("d", "s")
    expected = [f"line {number}" for number in range(5000)]
    assert [block.log.strip() for each in unsent for block in each.blocks] == expected
    assert [each.completed for each in unsent] == [False] * (len(unsent) - 1) + [True]


async def test_lines_of_an_earlier_process_stay_on_disk_while_they_cannot_be_sent(
    spool: LogSpool, path: Path
) -> None:
    unavailable: Any = UnavailableControlPlane()

    async def restarted() -> LogRelay:
        relay = LogRelay(unavailable, logs=lambda deployment: path.parent.parent / deployment)
        await relay.send_spooled("deployment", "stage")
        return relay

    await restarted()
    assert lines(path) == [block.index for block in spool.blocks]
    relay = await restarted()
    assert lines(path) == [block.index for block in spool.blocks]
    resumed = relay.spool("deployment", "stage")
    assert resumed is not None
    resumed.add(LogBlock(index=4, log="line 4\n"))
    assert lines(path) == [0, 1, 2, 3, 4]
    unsent = relay.take_unsent("deployment", "stage")
    assert [block.index for each in unsent for block in each.blocks] == [0, 1, 2, 3, 4]
    relay.forget_spooled("deployment", "stage")
    assert lines(path) == []


def test_a_spool_that_cannot_be_written_fails_no_stage(tmp_path: Path) -> None:
    (tmp_path / "deployment").write_text("a file in its place")
    spool = LogSpool(tmp_path / "deployment" / "stage", LogMasker(SecretMasks(), "deployment"))
    spool.add(LogBlock(index=0, log="line\n"))
    spool.forget_through(0)
