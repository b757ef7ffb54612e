# SPDX-License-Identifier: Apache-2.0
"""Runs a server until SIGINT or SIGTERM."""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress

import structlog

from pipecd.commandline.allocator import use_one_arena

log = structlog.get_logger()


def run_until_signal(work: Coroutine[object, object, None], *, grace: float | None = None) -> None:
    """Runs the coroutine; SIGINT and SIGTERM cancel it and count as a clean exit.

    If it has not ended `grace` seconds later, the process exits with code 1.
    """

    async def supervise() -> None:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        stopped = False

        def stop() -> None:
            nonlocal stopped
            if not stopped and grace is not None:
                loop.call_later(grace, _force_exit, grace)
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

    use_one_arena()
    with _waiting_without_threads():
        asyncio.run(supervise())


@contextmanager
def _waiting_without_threads() -> Generator[None, None, None]:
    """Waits for processes by file descriptors, as later versions of Python do by themselves.

    A watcher of this kind works for one event loop, so the former one returns with the end of ours.
    """
    if sys.version_info >= (3, 12) or not _has_pidfd():
        yield
        return
    former = asyncio.get_child_watcher()
    asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    try:
        yield
    finally:
        asyncio.set_child_watcher(former)


def _has_pidfd() -> bool:
    """Whether processes have file descriptors, which old kernels and some containers lack."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _force_exit(grace: float) -> None:
    """Exits although tasks are still running."""
    log.error("shutdown exceeded the grace period, exiting", grace=grace)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
