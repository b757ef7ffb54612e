# SPDX-License-Identifier: Apache-2.0
"""A program runs to its end, its output is read line by line, and it ends with its caller."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from pipecd.model.errors import Unavailable, UserMistake
from pipecd.program.limits import LimitExceeded
from pipecd.program.run import capture, run
from servers.server import is_running


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


async def test_lines_of_both_streams_arrive_in_order(tmp_path: Path) -> None:
    lines: list[str] = []
    done = await run(
        ["sh", "-c", "echo one; echo two >&2; echo; printf 'three\\r\\nno newline'; exit 3"],
        cwd=tmp_path,
        on_line=lines.append,
    )
    assert lines == ["one", "two", "", "three", "no newline"]
    assert (done.code, done.last_line) == (3, "no newline")
    assert done.output == "one\ntwo\n\nthree\nno newline"


async def test_bytes_that_are_not_utf8_are_replaced_even_when_split(tmp_path: Path) -> None:
    done = await run(["printf", r"\303\251 \377 \303"], cwd=tmp_path)
    assert done.output == "é � �"


async def test_a_line_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    seen: list[int] = []
    done = await run(
        script("import sys; sys.stdout.write('x' * 3_000_000)"),
        cwd=tmp_path,
        on_line=lambda line: seen.append(len(line)),
    )
    assert sum(seen) == 3_000_000
    assert max(seen) <= 64 * 1024
    assert len(done.output) <= 1024 * 1024 + 1


async def test_the_environment_is_the_one_given(tmp_path: Path) -> None:
    done = await run(["/usr/bin/env"], cwd=tmp_path, env={"ONLY": "this"})
    assert done.output == "ONLY=this"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        pytest.param(["no-such-program-here"], "was not found", id="a missing program"),
        pytest.param(["./not-executable"], "may not be run", id="a file that is no program"),
    ],
)
async def test_a_program_that_cannot_start_is_reported(
    argv: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "not-executable").write_text("hello")
    with pytest.raises(UserMistake, match=message):
        await run(argv, cwd=tmp_path)


async def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=r"directory .* does not exist"):
        await run(["true"], cwd=tmp_path / "nowhere")


@pytest.mark.slow
async def test_cancellation_ends_the_program_and_its_children(tmp_path: Path) -> None:
    started = asyncio.Event()
    pids: list[int] = []

    def line(text: str) -> None:
        pids.extend(int(word) for word in text.split())
        started.set()

    task = asyncio.create_task(
        run(["sh", "-c", "sleep 100 & echo $$ $!; wait"], cwd=tmp_path, on_line=line)
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


async def test_a_program_that_ignores_the_request_is_killed_after_the_grace(tmp_path: Path) -> None:
    started = asyncio.Event()
    text = "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
    task = asyncio.create_task(
        run(script(text), cwd=tmp_path, on_line=lambda _: started.set(), grace=0.05)
    )
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


@pytest.mark.slow
async def test_a_listener_that_fails_takes_the_program_with_it(tmp_path: Path) -> None:
    def fail(line: str) -> None:
        raise ValueError(line)

    with pytest.raises(ExceptionGroup) as caught:
        await run(["sh", "-c", "echo broken; sleep 100"], cwd=tmp_path, on_line=fail)
    assert caught.group_contains(ValueError, match="broken")


@pytest.mark.slow
async def test_a_daemon_left_behind_is_not_waited_for(tmp_path: Path) -> None:
    done = await asyncio.wait_for(run(["sh", "-c", "sleep 30 & echo $!"], cwd=tmp_path), 5)
    daemon = int(done.last_line)
    assert is_running(daemon)
    os.kill(daemon, 9)


async def test_captured_output_is_bytes_apart_from_messages(tmp_path: Path) -> None:
    done = await capture(["sh", "-c", "cat; echo why >&2; exit 4"], cwd=tmp_path, stdin=b"\xff\0")
    assert (done.code, done.stdout, done.stderr) == (4, b"\xff\0", b"why\n")


async def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"did not finish within 0\.05s"):
        await capture(["sleep", "100"], cwd=tmp_path, at_most=0.05)


FLOOD = "while True: print('x' * 1_000_000)"
HOARD = "x = [bytearray(20 * 2**20) for _ in range(20)]\nfor b in x: b[::4096] = b'1' * 5120\nimport time; time.sleep(100)"


async def test_a_program_that_prints_without_end_is_killed(tmp_path: Path) -> None:
    with pytest.raises(LimitExceeded, match="exceeds the output limit of 2 MiB"):
        await capture(script(FLOOD), cwd=tmp_path, output_limit=2 * 1024**2)


async def test_a_program_that_prints_errors_without_end_is_killed(tmp_path: Path) -> None:
    text = FLOOD.replace("print(", "import sys; print(file=sys.stderr, *[").replace("000)", "000])")
    with pytest.raises(LimitExceeded, match="exceeds the output limit of 2 MiB"):
        await capture(script(text), cwd=tmp_path, output_limit=2 * 1024**2)


async def test_a_program_that_fills_the_memory_is_killed_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "hoard.py").write_text(HOARD)
    shell = f"echo $$ > pid; {sys.executable} hoard.py & wait"
    with pytest.raises(LimitExceeded, match="sh needs more than the memory limit of 100 MiB"):
        await capture(["sh", "-c", shell], cwd=tmp_path, memory=100 * 1024**2)
    group = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        while True:
            os.killpg(group, 0)
            await asyncio.sleep(0.02)


async def test_a_program_within_its_limits_is_left_alone(tmp_path: Path) -> None:
    done = await capture(
        ["sh", "-c", "sleep 0.4; echo done"], cwd=tmp_path, memory=2**30, output_limit=5
    )
    assert done.stdout == b"done\n"


async def test_a_program_that_does_not_read_its_input_is_run(tmp_path: Path) -> None:
    assert (await capture(["true"], cwd=tmp_path, stdin=b"x" * 10**6)).code == 0
