# SPDX-License-Identifier: Apache-2.0
"""Runs a program that goes on until it is told to stop."""

import asyncio
import signal
from collections.abc import Coroutine
from contextlib import suppress


def run_until_signal(work: Coroutine[object, object, None]) -> None:
    """Runs the work; SIGINT and SIGTERM cancel it and count as a clean end."""
    asyncio.run(_supervised(work))


async def _supervised(work: Coroutine[object, object, None]) -> None:
    task = asyncio.ensure_future(work)
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):
                loop.remove_signal_handler(number)
