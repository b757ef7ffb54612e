# SPDX-License-Identifier: Apache-2.0
"""A stage waits for the apply that a killed piped has left running."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipecd.plugins.terraform.apply_process import (
    RUN_VARIABLE,
    ApplyProcess,
    running_applies,
)
from pipecd.plugins.terraform.applying import ApplyRecords
from pipecd.sdk import StageStatus, Unavailable
from plugins.terraform.testbed import Application, data, has_begun
from servers.server import is_running

pytestmark = pytest.mark.xdist_group("applies")

# A process in the background may have inherited that interrupts are ignored.
APPLY = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
print(flush=True)
time.sleep(60)
"""
# The first thread of a process that is killed may end before the others, which still hold its locks.
ENDING = """
import ctypes, os, pathlib, platform, threading
def hold():
    input()
    os._exit(0)
threading.Thread(target=hold).start()
pathlib.Path("/proc/self/comm").write_text("tofu")
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
HELD = """
resource "terraform_data" "held" {
  input = "v1"
  provisioner "local-exec" {
    command = "echo begun; while [ -e HOLD ]; do sleep 0.05; done"
  }
}
"""


@pytest.fixture
def left(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like an apply, and the record of it."""
    record = {"who": "piped@host", "started": "2026-11-16T13:00:05+00:00", "run": "r1"}
    (tmp_path / "shop.json").write_text(json.dumps(record))
    with subprocess.Popen(
        ["tofu", "-c", APPLY, "apply"],
        executable=sys.executable,
        env={**os.environ, RUN_VARIABLE: "r1"},
        start_new_session=True,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


async def test_it_waits_until_the_apply_has_ended(
    left: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    lines: list[str] = []
    records = ApplyRecords(tmp_path)
    before = await records.unfinished("shop")
    waiting = asyncio.ensure_future(records.wait_for_former("shop", lines.append))
    while not lines:  # noqa: ASYNC110 - a log has no event
        await asyncio.sleep(0.01)
    assert lines == [
        "The apply that piped began at 13:00:05 UTC before it was killed still runs "
        f"(process {left.pid}): waiting until it ends"
    ]
    assert not waiting.done()
    left.kill()
    left.wait()
    await waiting
    assert lines[1:] == ["It has ended"]
    after = await records.unfinished("shop")
    # It may have taken its lock until its end.
    assert before is not None
    assert after is not None
    assert before.ended_at < after.ended_at
    await records.wait_for_former("shop", lines.append)
    assert len(lines) == 2


@pytest.fixture
def ending_apply(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose first thread has ended, and the record of an apply of its time."""
    started_at = datetime.now(UTC).isoformat()
    record = {"who": "piped@host", "started": started_at, "run": "r1"}
    (tmp_path / "shop.json").write_text(json.dumps(record))
    with subprocess.Popen(
        ["tofu", "-c", ENDING, "apply"], executable=sys.executable, stdin=subprocess.PIPE
    ) as process:
        while not ending(process.pid):
            time.sleep(0.01)
        yield process
        process.kill()


async def test_it_waits_for_an_apply_that_is_killed_and_has_not_ended(
    ending_apply: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    lines: list[str] = []
    waiting = asyncio.ensure_future(ApplyRecords(tmp_path).wait_for_former("shop", lines.append))
    while not lines:  # noqa: ASYNC110 - a log has no event
        await asyncio.sleep(0.01)
    assert f"still runs (process {ending_apply.pid})" in lines[0]
    assert not waiting.done()
    ending_apply.communicate(b"\n")
    await waiting
    assert lines[1:] == ["It has ended"]
    assert not ending(ending_apply.pid)


def ending(pid: int) -> list[ApplyProcess]:
    return [each for each in running_applies() or () if each.pid == pid and each.is_ending]


async def test_an_apply_that_takes_too_long_is_named(
    left: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    records = ApplyRecords(tmp_path, longest_wait=0.1)
    with pytest.raises(Unavailable) as raised:
        await records.wait_for_former("shop", lambda _: None)
    assert str(raised.value) == (
        "the apply that piped began at 13:00:05 UTC before it was killed still runs after 100ms "
        f"(process {left.pid}); wait until it ends and deploy again, or stop it with "
        f"`kill -INT {left.pid}`"
    )
    assert is_running(left.pid)


async def test_cancelling_the_wait_ends_the_apply(
    left: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    waiting = asyncio.ensure_future(ApplyRecords(tmp_path).wait_for_former("shop", print))
    await asyncio.sleep(0.1)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    # Python ends with this code on an interrupt.
    assert left.wait() == -2


async def test_applies_of_others_are_not_waited_for(
    left: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    for name, run in (("other", "r2"), ("unknown", "")):
        record = {"who": "piped@host", "started": "2026-11-16T13:00:05+00:00", "run": run}
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
        await ApplyRecords(tmp_path).wait_for_former(name, pytest.fail)
    await ApplyRecords(tmp_path).wait_for_former("never deployed", pytest.fail)
    found = {process.pid: process.run for process in running_applies() or ()}
    assert found[left.pid] == "r1"


async def test_the_next_stage_waits_for_a_real_apply(application: Application) -> None:
    hold = application.directory / "hold"
    hold.touch()
    first = application.commit("one", HELD.replace("HOLD", str(hold)))
    running = asyncio.ensure_future(first.run("TERRAFORM_APPLY"))
    host = application.host
    await host.until(lambda: has_begun(application))
    second = application.commit("two", data(web="v1"))
    waiting = asyncio.ensure_future(second.run("TERRAFORM_APPLY"))
    await host.until(lambda: any("waiting until it ends" in line for line in host.lines))
    hold.unlink()
    assert (await running).status is StageStatus.SUCCESS
    assert (await waiting).status is StageStatus.SUCCESS
    assert application.inputs == {"web": "v1"}
