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
