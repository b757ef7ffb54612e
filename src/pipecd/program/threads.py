# SPDX-License-Identifier: Apache-2.0
"""Runs blocking calls of filestores and clouds outside the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def wait_until_done(task: "asyncio.Future[T]") -> T:
    """Returns the result of the task; a cancelled caller also waits until the task is done.

    Otherwise a write that continues in its thread could replace a newer one.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # Also a caller that is cancelled again while it waits leaves an exception behind.
        task.add_done_callback(_retrieve_exception)
        await asyncio.wait({task})
        raise


def _retrieve_exception(task: "asyncio.Future[T]") -> None:
    """Keeps the event loop from logging the exception as unhandled."""
    if not task.cancelled():
        task.exception()


class ThreadPool:
    """The threads of one filestore or cloud, so that a slow one blocks nothing else."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    async def run(self, call: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await wait_until_done(loop.run_in_executor(self._executor, call))

    async def close(self) -> None:
        """Waits for the calls that are running."""
        await asyncio.to_thread(self._executor.shutdown)
