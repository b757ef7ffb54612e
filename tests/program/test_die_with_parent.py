# SPDX-License-Identifier: Apache-2.0
"""A child process ends when its parent is killed, unless it may outlive it."""

import asyncio
import sys
from pathlib import Path

import pytest

from servers.server import is_running

CALLER = """
import asyncio, pathlib, sys
from pipecd.program.run import run
say = lambda line: print(line, flush=True)
asyncio.run(run(["sh", "-c", sys.argv[1]], cwd=pathlib.Path("."), on_line=say, grace=60))
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("sleep 99 & echo $$ $!; wait", id="its children end with it"),
        pytest.param("trap '' TERM HUP; echo $$; while :; do sleep 9; done", id="also if it is stubborn"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("amid_its_end", [False, True])
async def test_a_killed_caller_leaves_nothing_running(script: str, amid_its_end: bool) -> None:
    caller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CALLER, script, stdout=asyncio.subprocess.PIPE
    )
    assert caller.stdout is not None
    pids = [int(word) for word in (await caller.stdout.readline()).split()]
    assert pids
    if amid_its_end:
        caller.send_signal(2)
        await asyncio.sleep(0.05)
    caller.kill()
    await caller.wait()
    async with asyncio.timeout(5):
        while any(is_running(pid) for pid in pids):  # noqa: ASYNC110 - not our children
            await asyncio.sleep(0.01)


OUTLIVING = """
import asyncio, pathlib, sys
from pipecd.program.run import run
say = lambda line: print(line, flush=True)
asyncio.run(run(["sh", "-c", sys.argv[1]], cwd=pathlib.Path("."), on_line=say, outlives_us=True))
"""


async def test_a_program_that_may_outlive_its_caller_runs_to_its_end(tmp_path: Path) -> None:
    go, ended = tmp_path / "go", tmp_path / "ended"
    # It prints more than a pipe holds: nobody reading would end or block it.
    script = (
        f"echo $$; while [ ! -e {go} ]; do sleep 0.01; done; "
        f"head -c 300000 /dev/zero; echo last && touch {ended}"
    )
    caller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OUTLIVING, script, stdout=asyncio.subprocess.PIPE
    )
    assert caller.stdout is not None
    pid = int(await caller.stdout.readline())
    caller.kill()
    await caller.wait()
    assert is_running(pid)
    go.touch()
    async with asyncio.timeout(5):
        while is_running(pid):  # noqa: ASYNC110 - not our child
            await asyncio.sleep(0.01)
    assert ended.exists()
