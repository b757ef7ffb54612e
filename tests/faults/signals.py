# SPDX-License-Identifier: Apache-2.0
"""Signals to processes that others started."""

import asyncio
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def signal_process(pid: int, number: int) -> bool:
    """Whether there is a process of this id, which gets the signal."""
    if not pid:
        return False
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def kill_all(pids: Iterable[int]) -> bool:
    """Whether at least one of these processes was killed."""
    return sum(signal_process(pid, signal.SIGKILL) for pid in pids) > 0


async def pause_all(pids: Iterable[int], seconds: float) -> bool:
    """Stops these processes for a while; returns whether there was one."""
    stopped = [pid for pid in pids if signal_process(pid, signal.SIGSTOP)]
    if stopped:
        await asyncio.sleep(seconds)
    for pid in stopped:
        signal_process(pid, signal.SIGCONT)
    return bool(stopped)


def processes_with(*words: bytes) -> list[int]:
    """The processes whose command line has all these words."""
    found: list[int] = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            with suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if all(word in command for word in words):
                    found.append(int(process.name))
    return found
