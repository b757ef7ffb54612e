# SPDX-License-Identifier: Apache-2.0
"""How servers run until a signal."""

import asyncio
import threading

from pipecd.commandline.signals import run_until_signal


def test_a_program_that_runs_costs_no_thread() -> None:
    exit_codes: list[int] = []
    threads: list[str] = []

    async def work() -> None:
        program = await asyncio.create_subprocess_exec("sleep", "0.05")
        threads.extend(t.name for t in threading.enumerate() if "waitpid" in t.name)
        exit_codes.append(await program.wait())

    run_until_signal(work())
    assert exit_codes == [0]
    assert threads == []


def test_another_event_loop_runs_programs_afterwards() -> None:
    async def run_program() -> int:
        return await (await asyncio.create_subprocess_exec("true")).wait()

    async def work() -> None:
        await run_program()

    loop = asyncio.new_event_loop()
    try:
        run_until_signal(work())
        assert loop.run_until_complete(run_program()) == 0
    finally:
        loop.close()
