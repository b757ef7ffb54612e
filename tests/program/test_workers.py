# SPDX-License-Identifier: Apache-2.0
"""Workers evaluate calls with limits; what breaks one costs that worker and nothing else."""

import asyncio
import json
import operator
import os
import signal
import time

import pytest

from pipecd.config.units import Duration, Size
from pipecd.model.duration import parse_duration
from pipecd.model.errors import Unavailable, UserMistake
from pipecd.program import workers
from pipecd.program.broken_inputs import BrokenInputs
from pipecd.program.limits import LimitExceeded
from pipecd.program.workers import WorkerLimits, WorkerPool
from servers.server import is_running

LIMITS = WorkerLimits(seconds=20, memory=256 * 1024**2, output=1024**2)


async def test_a_call_returns_the_result_of_the_function() -> None:
    async with WorkerPool(LIMITS) as pool:
        assert await pool.run(operator.add, "a", "b") == "ab"
        # What is no UTF-8 in a file is kept.
        assert await pool.run(operator.add, "\udcff", "é") == "\udcffé"


async def test_calls_share_a_worker_and_run_side_by_side_in_several() -> None:
    async with WorkerPool(LIMITS, size=2) as pool:
        first = await pool.run(os.getpid)
        assert await pool.run(os.getpid) == first
        assert first != os.getpid()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(pool.run(time.sleep, 0.1))
            await asyncio.sleep(0)
            other = await pool.run(os.getpid)
    assert other != first
    assert not is_running(first)
    assert not is_running(other)


async def test_no_process_starts_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers.sys, "executable", "/no/such/python")
    async with WorkerPool(LIMITS) as pool:
        pass
    with pytest.raises(UserMistake):
        await pool.run(os.getpid)


async def test_an_idle_worker_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.05)
    async with WorkerPool(LIMITS) as pool:
        process = await pool.run(os.getpid)
        while is_running(process):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert await pool.run(os.getpid) != process


BREAKING = {
    "never yields": (WorkerLimits(seconds=2), pow, (7, 10**8), "the time limit of 2s"),
    "allocates": (LIMITS, operator.mul, ("x", 2**30), "the memory limit of 256 MiB"),
    "floods its output": (LIMITS, operator.mul, ("x", 2**21), "the output limit of 1 MiB"),
    "is killed": (LIMITS, signal.raise_signal, (signal.SIGKILL,), "crashed the worker"),
    "exits": (LIMITS, os._exit, (0,), "crashed the worker"),
    "nests": (LIMITS, json.loads, ("[" * 100_000,), "nested too deeply"),
}


@pytest.mark.parametrize(
    ("limits", "function", "arguments", "error"), BREAKING.values(), ids=BREAKING
)
async def test_a_call_that_breaks_its_worker_fails_and_is_refused_from_then_on(
    limits: WorkerLimits, function: object, arguments: tuple[object, ...], error: str
) -> None:
    stored: list[bytes] = []
    async with WorkerPool(limits, broken=BrokenInputs(save=stored.append)) as pool:
        with pytest.raises(LimitExceeded, match=error) as failed:
            await pool.run(function, *arguments)  # pyright: ignore[reportArgumentType]
        assert failed.value.hint == "simplify it"
        assert await pool.run(operator.add, 1, 1) == 2
    after_restart = BrokenInputs(BrokenInputs.parse(stored[-1]))
    async with WorkerPool(limits, broken=after_restart) as pool:
        with pytest.raises(LimitExceeded, match=error) as refused:
            await pool.run(function, *arguments)  # pyright: ignore[reportArgumentType]
        assert "after a day" in refused.value.hint
        assert await pool.run(operator.add, 1, 1) == 2


async def test_a_worker_that_something_else_killed_is_replaced() -> None:
    async with WorkerPool(LIMITS) as pool:
        process = await pool.run(os.getpid)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(pool.run(time.sleep, 0.5))
            await asyncio.sleep(0.1)
            os.kill(process, signal.SIGKILL)
        assert running.result() is None
        assert await pool.run(os.getpid) != process


async def test_the_limits_may_be_those_of_a_configuration() -> None:
    limits = WorkerLimits(seconds=Duration(20), memory=Size(256 * 1024**2))
    async with WorkerPool(limits) as pool:
        assert await pool.run(operator.add, 1, 1) == 2


async def test_a_cancelled_call_ends_its_worker() -> None:
    async with WorkerPool(LIMITS) as pool:
        process = await pool.run(os.getpid)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await pool.run(time.sleep, 60)
        assert not is_running(process)
        assert await pool.run(operator.add, 1, 1) == 2


async def test_a_worker_that_gets_no_processor_does_not_make_its_input_refused() -> None:
    async with WorkerPool(WorkerLimits(seconds=0.5)) as pool:
        process = await pool.run(os.getpid)
        os.kill(process, signal.SIGSTOP)
        with pytest.raises(
            Unavailable, match=r"a worker process got 0\.0s of a processor in 0\.5s"
        ):
            await pool.run(operator.add, 1, 1)
        assert await pool.run(operator.add, 1, 1) == 2
        assert not is_running(process)


async def test_an_input_that_took_the_process_down_twice_is_refused() -> None:
    digest, stored = "d", list[bytes]()
    for _ in range(2):
        entries = BrokenInputs.parse(stored[-1]) if stored else {}
        broken = BrokenInputs(entries, save=stored.append)
        assert broken.refusal(digest) == ""
        broken.started(digest)
    after = BrokenInputs(BrokenInputs.parse(stored[-1]))
    assert "ended 2 times" in after.refusal(digest)


def test_a_broken_input_is_tried_again_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenInputs()
    broken.broke("d", "it hangs")
    assert broken.refusal("d") == "it hangs"
    later = time.time() + 86_401
    monkeypatch.setattr(time, "time", lambda: later)
    assert broken.refusal("d") == ""


@pytest.mark.parametrize("content", [b"", b"[]", b'{"d": 1}', b'{"d": {"unknown": 1}}'])
def test_damaged_records_of_broken_inputs_are_recognized(content: bytes) -> None:
    with pytest.raises(ValueError):
        BrokenInputs.parse(content)


async def test_a_mistake_is_raised_as_the_function_raised_it() -> None:
    async with WorkerPool(LIMITS) as pool:
        with pytest.raises(UserMistake, match="it cannot be evaluated: ValueError") as e:
            await pool.run(parse_duration, "secret")
    assert "secret" not in str(e.value)


async def test_workers_have_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIPECD_TEST_SECRET", "hunter2")
    async with WorkerPool(LIMITS) as pool:
        assert await pool.run(os.getenv, "PIPECD_TEST_SECRET") is None
