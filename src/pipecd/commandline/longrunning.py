# SPDX-License-Identifier: Apache-2.0
"""Runs a program that goes on until it is told to stop."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress

import structlog

log = structlog.get_logger()


def run_until_signal(work: Coroutine[object, object, None], *, grace: float | None = None) -> None:
    """Runs the work; SIGINT and SIGTERM cancel it and count as a clean end.

    Work that has not ended `grace` seconds later is abandoned, and so is everything it waits for.
    """
    asyncio.run(_supervised(work, grace))


async def _supervised(work: Coroutine[object, object, None], grace: float | None) -> None:
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        if not stopped and grace is not None:
            loop.call_later(grace, _abandon, grace)
        stopped = True
        task.cancel()

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


def _abandon(grace: float) -> None:
    """Ends the process in spite of those who do not end."""
    log.error("the end took too long, what is left is abandoned", grace=grace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
