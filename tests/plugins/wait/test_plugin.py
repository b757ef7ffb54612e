# SPDX-License-Identifier: Apache-2.0
"""The stage WAIT: its duration, and how it resumes."""

import asyncio
import time
from pathlib import Path

from pipecd.plugins.wait.plugin import PLUGIN, WaitPlugin
from pipecd.sdk import StageStatus
from pipecd.sdk.testing import StageBench


async def test_the_stage_waits_for_its_duration(tmp_path: Path) -> None:
    bench = StageBench(PLUGIN(), tmp_path)
    started = time.monotonic()
    result = await bench.run("WAIT", {"duration": "50ms"})
    assert 0.05 <= time.monotonic() - started < 1
    assert (result.status, result.message) == (StageStatus.SUCCESS, "Waited for 50ms")
    assert bench.host.stage_metadata["startTime"].isdecimal()


async def test_a_wait_resumes_after_a_restart(tmp_path: Path) -> None:
    clock = [1_700_000_000.5]
    bench = StageBench(WaitPlugin(now=lambda: clock[0]), tmp_path)
    waiting = asyncio.ensure_future(bench.run("WAIT", {"duration": "1h"}))
    await bench.host.until(lambda: bool(bench.host.stage_metadata))
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert bench.host.stage_metadata == {"startTime": "1700000000"}
    clock[0] += 3600
    async with asyncio.timeout(1):
        assert (await bench.run("WAIT", {"duration": "1h"})).status is StageStatus.SUCCESS
    assert "Resuming the wait after a restart" in bench.host.lines


async def test_a_stage_without_a_duration_fails(tmp_path: Path) -> None:
    result = await StageBench(PLUGIN(), tmp_path).run("WAIT")
    assert result.status is StageStatus.FAILURE
    assert "duration must be greater than 0" in result.message
